"""Damaged values: the readers in Go and Java refuse what Python refuses, and show the same rows."""

from __future__ import annotations

import json
import random

import pytest

from services.support.go import BUILD_S, built
from services.support.java_reader import java_reader
from services.support.servers import ROOT
from tidegate.errors import TidegateError
from tidegate.testing.conformance.canonical import comparable_value
from tidegate.testing.conformance.program import Reader, ReaderRaisedError
from tidegate.testing.conformance.vectors.values import as_table, decoded

pytestmark = pytest.mark.timeout(BUILD_S + 100)
DAMAGED = 3_000
PIECES = (
    *(
        "0",
        "1",
        "9",
        "-",
        "+",
        ".",
        "e",
        "E",
        "_",
        " ",
        '"',
        "\\",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "true",
    ),
    *(
        "\n",
        "\x00",
        "\\u",
        "\\ud83d",
        "\\udeeb",
        "\u00e9",
        "\u0661",
        "NaN",
        "Infinity",
        "Z",
        "T",
        "=",
        "==",
        "/",
    ),
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("go", marks=pytest.mark.xdist_group("go")),
        pytest.param("java", marks=pytest.mark.xdist_group("java")),
    ],
)
def reader(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "java":
        with java_reader(folder) as started:
            yield started
    else:
        program = built(ROOT / "readers" / "go", "./cmd/conformance", folder)
        with Reader(str(program), folder / "errors") as started:
            yield started


def damage(content: bytes, chance: random.Random) -> bytes:
    """Change one or two places of a stored value, after its flags."""
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randint(1, len(content)) if content else 0
        match chance.randrange(4):
            case 0:
                content = content[:at] + content[at + 1 :]
            case 1:
                content = content[:at] + chance.choice(PIECES).encode() + content[at:]
            case 2:
                content = content[:at] + chance.choice(PIECES).encode() + content[at + 1 :]
            case _:
                content = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
    return content


def outcome(decode, schema):
    try:
        return repr(comparable_value(as_table(schema), decode()))
    except (TidegateError, ReaderRaisedError) as error:
        return getattr(error, "name", type(error).__name__)


def test_damaged_values(reader):
    chance, differ = random.Random(1), []
    cases = json.loads((ROOT / "conformance" / "vectors" / "values.json").read_text())
    for _ in range(DAMAGED):
        vector = chance.choice(cases)
        schema, at_us = vector["schema"], vector["decided_at_us"]
        stored = damage(bytes.fromhex(vector["stored"]), chance)
        request = {"schema": schema, "stored": stored.hex(), "decided_at_us": at_us}
        mine = outcome(lambda: decoded(schema, stored, at_us), schema)  # noqa: B023 - called at once
        other = outcome(lambda: reader.ask("decode_value", **request), schema)  # noqa: B023
        if mine != other:
            differ.append((stored, [column["type"] for column in schema["value"]], mine, other))
    assert differ == []
