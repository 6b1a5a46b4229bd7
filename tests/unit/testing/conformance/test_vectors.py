"""The vectors of readers are what the code makes, and every way in which Python decodes gives the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tidegate.base.names import escape
from tidegate.errors import TidegateError
from tidegate.keys.groups import decode_key, key_group
from tidegate.sinks.rules.layout import FEW, payloads
from tidegate.testing.conformance.canonical import canonical_key, canonical_value, comparable_value
from tidegate.testing.conformance.vectors.keys import encoded
from tidegate.testing.conformance.vectors.values import as_table
from tidegate.values.decode import values_of
from tidegate.values.kinds import kind_of

ROOT = Path(__file__).parents[4]


def vectors(name):
    return json.loads((ROOT / "conformance" / "vectors" / f"{name}.json").read_text())


def test_the_files_are_what_the_code_makes():
    command = [sys.executable, str(ROOT / "tools" / "vectors.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("vector", vectors("names"), ids=lambda vector: vector["name"])
def test_names(vector):
    assert escape(vector["name"]) == vector["escaped"]


def test_keys_are_encoded_and_decoded():
    for vector in vectors("keys"):
        if "error" in vector:
            with pytest.raises(TidegateError):
                encoded(vector["types"], vector["values"])
            continue
        content = bytes.fromhex(vector["bytes"])
        assert encoded(vector["types"], vector["values"]) == content
        assert canonical_key(vector["types"], decode_key(content, vector["types"])) == vector["values"]
        for group in vector["groups"]:
            assert key_group(content, group["key_groups"], group["stride"]) == group["key_group"]


def shown(vector, *, vectorised):
    """The row that readers show, one value at a time or as one of many in an Arrow array."""
    schema, stored, at_us = (
        as_table(vector["schema"]),
        bytes.fromhex(vector["stored"]),
        vector["decided_at_us"],
    )
    values = values_of(schema)
    content = payloads(pa.array([stored] * (FEW + 1 if vectorised else 1), pa.binary()), at_us)[-1].as_py()
    if content is None:
        return None
    if vectorised and schema.value_format != "bytes" and not schema.older:
        return values.decode_all(pa.array([content, None], pa.binary()))[0]
    return values.decode(content)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize(
    "vector",
    [*vectors("values"), *vectors("schemas")["schemas"]],
    ids=lambda vector: vector.get("name", "schema"),
)
def test_values(vector, vectorised):
    if "error" in vector:
        with pytest.raises((TidegateError, msgspec.MsgspecError, ValueError, ArithmeticError)) as raised:
            shown(vector, vectorised=vectorised)
        assert vectorised or type(raised.value).__name__ == vector["error"]
        return
    schema = as_table(vector["schema"])
    answer = canonical_value(schema, shown(vector, vectorised=vectorised))
    assert comparable_value(schema, answer) == comparable_value(schema, vector["value"])


def test_types_that_have_a_tree_are_read():
    for vector in vectors("schemas")["types"]:
        kind_of(vector["type"])


def test_no_two_vectors_have_one_name():
    names = [vector["name"] for vector in vectors("values")]
    assert len(set(names)) == len(names)


def test_every_refusal_has_a_next_step():
    for vector in vectors("refusals"):
        steps = {"refuse", "read the pointer again", "send it again", "send it again with the server's id"}
        assert vector["does"] in steps | {"go on without a lease"}
        assert ("error" in vector) == (vector["does"] != "go on without a lease")
