"""Reducers in columns: values are parsed in one of two ways, which must say the same."""

import json
import random

import pyarrow as pa
import pytest

from tidegate.spark import keyed_state
from tidegate.spark.keyed_state import ReducedColumn, format_values, parse

COLUMNS = (
    ReducedColumn("n", "bigint", "sum"),
    ReducedColumn("größe", "double", "max"),
    ReducedColumn("t", "tinyint", "last"),
)


def content_of(chance, columns):
    cells = {
        "n": chance.choice([0, -1, 2**63 - 1, -(2**63), None]),
        "größe": chance.choice([0.5, -1e300, 1e-7, None]),
        "t": chance.choice([-128, 127, None]),
    }
    row = {column.name: cells[column.name] for column in columns}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("seed", range(30))
def test_numbers_are_parsed_as_any_json_is(seed, monkeypatch):
    chance = random.Random(seed)
    columns = tuple(chance.sample(COLUMNS, chance.randint(1, 3)))
    values = [None if chance.random() < 0.2 else content_of(chance, columns) for _ in range(20)]
    odd = [b"{}", b'{"n": 7}', b'{"x":1,"n":7}', b'{"n":7,"x":1}', b'{"t":1,"n":7}', b'{"n":1e3,"t":2.5}']
    if seed % 3 == 0:
        values.append(odd[seed // 3 % len(odd)])
    array = pa.array([*values, b"before"], pa.binary()).slice(0, len(values))
    plain = parse(array, columns)
    monkeypatch.setattr(keyed_state, "_parse_numbers", lambda *_: None)
    assert plain == parse(array, columns)
    assert [one.type for one in plain] == [keyed_state.TYPES[column.type] for column in columns]


@pytest.mark.parametrize("seed", range(10))
def test_what_is_written_is_parsed_again_as_numbers(seed):
    chance = random.Random(seed)
    values = pa.array([content_of(chance, COLUMNS) for _ in range(20)], pa.binary())
    parsed = parse(values, COLUMNS)
    written = format_values(COLUMNS, parsed)
    bare = pa.array([value.as_py()[1:] for value in written], pa.binary())
    assert keyed_state._parse_numbers(bare, COLUMNS) == parsed
