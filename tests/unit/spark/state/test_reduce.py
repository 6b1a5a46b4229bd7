"""Reducers in columns: values are parsed in one of two ways, which must say the same."""

import base64
import datetime
import decimal
import json
import math
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.keys.groups import encode_key
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.spark.state import reduce
from tidegate.spark.state.reduce import (
    FLOATS,
    INTEGERS,
    SUM_ADVICE,
    ReducedColumn,
    ReduceStep,
    format_values,
    parse,
    reduced,
    reduced_column,
)
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.validate import BadRow

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
    monkeypatch.setattr(reduce, "_parse_numbers", lambda *_: None)
    assert plain == parse(array, columns)
    assert [one.type for one in plain] == [reduce.TYPES[column.type] for column in columns]


@pytest.mark.parametrize("seed", range(10))
def test_what_is_written_is_parsed_again_as_numbers(seed):
    chance = random.Random(seed)
    values = pa.array([content_of(chance, COLUMNS) for _ in range(20)], pa.binary())
    parsed = parse(values, COLUMNS)
    written = format_values(COLUMNS, parsed)
    bare = pa.array([value.as_py()[1:] for value in written], pa.binary())
    assert reduce._parse_numbers(bare, COLUMNS) == parsed


# -- against a fold in Python --------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
CELLS = {
    "bigint": st.integers(-(2**40), 2**40),
    "tinyint": st.integers(-128, 127),
    "double": st.floats(),
    "float": st.floats(width=32),
    "string": TEXT,
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.timezone.utc)),
    "timestamp_ntz": st.datetimes(),
    "binary": st.binary(max_size=5),
    "decimal(12,2)": st.integers(-(10**6), 10**6).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    "decimal(38,20)": st.integers(-(10**25), 10**25).map(lambda n: decimal.Decimal(n).scaleb(-20)),
}


@st.composite
def states_and_batches(draw):
    """Columns of any names and types, and rows: (state or None, the batch's own part)."""
    columns, cells = [], {}
    for name in draw(st.lists(TEXT.filter(bool), min_size=1, max_size=3, unique=True)):
        kind = draw(st.sampled_from(sorted(CELLS)))
        reducers = ["count", "first", "last", "min", "max"]
        reducers += ["sum"] * (kind in INTEGERS or kind in FLOATS or kind.startswith("decimal"))
        reducer = draw(st.sampled_from(reducers))
        columns.append(reduced_column("t", Column(name, kind), reducer))
        cells[name] = st.none() | (st.integers(0, 2**30) if reducer == "count" else CELLS[kind])
    row = st.fixed_dictionaries(cells)
    return tuple(columns), draw(st.lists(st.tuples(st.none() | row, row), min_size=1, max_size=4))


def folded(reducer, state, value):
    def rank(x):
        return (isinstance(x, float) and math.isnan(x), x)

    if state is None or value is None:
        return value if state is None else state
    ways = {"min": min, "max": max}
    if reducer in ways:
        return ways[reducer](state, value, key=rank)
    return {"first": state, "last": value}[reducer] if reducer in ("first", "last") else state + value


def plain(row):
    """NaN equals NaN here; zero has no sign."""
    return {k: "NaN" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


@settings(max_examples=60, deadline=None)
@given(states_and_batches())
def test_state_and_batch_are_combined_as_python_would(case):
    columns, rows = case
    schema = TableSchema((Column("k", "string"),), tuple(Column(c.name, c.type) for c in columns))
    encode, decode = encoder_of(schema).encode, values_of(schema).decode
    stored = [(state and encode(state), encode(part)) for state, part in rows]
    held = pa.array([state for state, _ in stored], pa.binary())
    parts = pa.array([b"+" + part for _, part in stored], pa.binary())
    keys = pa.array([b"k"] * len(rows), pa.binary())
    made, bad, _ = reduced(
        held, ReduceStep(0, "t", 0, columns, ("string",)), 1, pa.record_batch([keys, parts], ["k", "v"])
    )
    assert bad == []
    for (state, part), value in zip(stored, made.to_pylist(), strict=True):
        before, new = {} if state is None else decode(state), decode(part)
        expected = {c.name: folded(c.reducer, before.get(c.name), new[c.name]) for c in columns}
        assert plain(decode(value[1:])) == plain(expected)


@pytest.mark.parametrize("kind, text", [("timestamp", "+12000-01-01T00:00:00.000Z"), ("date", "-0044-03-15")])
def test_a_time_that_python_has_not_is_a_bad_record_with_its_key(kind, text):
    columns = (ReducedColumn("at", kind, "max"),)
    values = pa.array([b'+{"at":null}', b'+{"at":"%s"}' % text.encode()], pa.binary())
    rows = pa.record_batch([pa.array([b"k1", b"k2"], pa.binary()), values], ["k", "v"])
    with pytest.raises(BadRecordError, match=r"table t, key 'k2': .*years 1 to 9999"):
        reduced(pa.nulls(2, pa.binary()), ReduceStep(0, "t", 0, columns, ("string",)), 1, rows)


@pytest.mark.parametrize("kind, text", [("timestamp", "+12000-01-01T00:00:00.000Z"), ("date", "-0044-03-15")])
def test_a_time_that_python_has_not_in_what_is_held_is_told_with_its_key(kind, text):
    """Another call has put it there, an upsert for one: whatever Spark has can be stored."""
    columns = (ReducedColumn("at", kind, "max"),)
    rows = pa.record_batch(
        [pa.array([b"k1", b"k2"], pa.binary()), pa.array([b'+{"at":null}'] * 2, pa.binary())], ["k", "v"]
    )
    held = pa.array([None, b'{"at":"%s"}' % text.encode()], pa.binary())
    with pytest.raises(BadRecordError, match=r"table t, key 'k2': its row is .*years 1 to 9999; delete that"):
        reduced(held, ReduceStep(0, "t", 0, columns, ("string",)), 1, rows)


LARGEST = decimal.Decimal("9" * 36 + ".99")


@pytest.mark.parametrize(
    "kind, large, more", [("bigint", 2**62, 2**62), ("decimal(38,2)", LARGEST, decimal.Decimal("0.01"))]
)
def test_a_sum_that_does_not_fit_is_a_bad_row_and_the_others_are_sums(kind, large, more):
    columns = (ReducedColumn("n", kind, "sum"), ReducedColumn("m", "int", "max"))
    table = ReduceStep(0, "t", 0, columns, ("string", "int"))
    keys = pa.array([encode_key(key, table.key_types) for key in (("a", 1), ("b", 7))], pa.binary())
    parts = pa.array([b'+{"n":1,"m":1}', b'+{"n":%s,"m":2}' % str(more).encode()], pa.binary())
    held = pa.array([b'{"n":-3,"m":0}', b'{"n":%s,"m":0}' % str(large).encode()], pa.binary())
    values, bad, _ = reduced(held, table, 4, pa.record_batch([keys, parts], ["k", "v"]))
    assert values[0].as_py() == (b'+{"n":-2,"m":1}' if kind == "bigint" else b'+{"n":-2.00,"m":1}')
    why = f"the sum of field n of this batch and the state at version 4 does not fit {kind}"
    assert bad == [BadRow(1, why, SUM_ADVICE[kind.partition("(")[0]])]
    assert "double" not in bad[0].advice  # it has 15 digits


BIGINT = 2**63 - 1
UNITS = {"decimal(38,0)": 20, "decimal(38,10)": 10, "decimal(38,20)": 0, "decimal(38,38)": -18}
"""Decimals whose sums have a part in units of 10 to this power."""


@pytest.mark.parametrize(
    "state, part, total",
    [
        *((BIGINT, -1, BIGINT - 1), (-BIGINT, 2 * BIGINT, BIGINT), (1, -BIGINT - 2, -BIGINT - 1)),
        *((BIGINT, 1, None), (-1, BIGINT + 2, None), (None, BIGINT + 1, None), (None, BIGINT, BIGINT)),
    ],
)
def test_only_the_end_of_a_bigint_s_sum_has_to_fit(state, part, total):
    columns = (ReducedColumn("n", "bigint", "sum"), ReducedColumn("m", "int", "max"))
    rows = [(state, part, total), (1, 2, 3)]  # a row that needs no wide type beside
    check_sums(columns, [({"n": one}, {"n": two, "m": 1}, three) for one, two, three in rows])


@pytest.mark.parametrize("kind", UNITS)
def test_only_the_end_of_a_decimal_s_sum_has_to_fit(kind):
    power, scale = UNITS[kind], int(kind[:-1].partition(",")[2])
    columns = (ReducedColumn("n", kind, "sum", ("n high", power)), ReducedColumn("m", "int", "max"))
    largest = 10**38 - 1
    cases = [(0, largest, largest), (-largest, 2 * largest, largest), (largest, -1, largest - 1)]
    cases += [(largest, 1, None), (-1, largest + 2, None), (5, -largest - 5, -largest), (None, -7, -7)]
    exact = decimal.Context(prec=60)

    def number(unscaled):
        return None if unscaled is None else decimal.Decimal(unscaled).scaleb(-scale, exact)

    rows = []
    for state, part, total in cases:
        for low in (part % 10**20, part % 10**20 - 3 * 10**20):  # sums of remainders have any size
            high = (part - low) // 10**20
            rows.append(({"n": number(state)}, {"n": number(low), "m": 1, "n high": high}, number(total)))
    check_sums(columns, rows)


def check_sums(columns, rows):
    """Combine (state, the batch's part, the total or None if it does not fit)."""

    def encoded(row):
        cells = {
            name: "null" if cell is None else format(decimal.Decimal(cell), "f") for name, cell in row.items()
        }
        return ("{" + ",".join(f'"{name}":{cell}' for name, cell in cells.items()) + "}").encode()

    table = ReduceStep(0, "t", 0, columns, ("int",))
    keys = pa.array([b"%d" % place for place in range(len(rows))], pa.binary())
    stored = pa.array([encoded(state) for state, *_ in rows], pa.binary())
    parts = pa.array([b"+" + encoded(part) for _, part, _ in rows], pa.binary())
    values, bad, own = reduced(stored, table, 4, pa.record_batch([keys, parts], ["k", "v"]))
    assert [one.row for one in bad] == [place for place, row in enumerate(rows) if row[2] is None]
    read = [json.loads(value.as_py()[1:], parse_float=decimal.Decimal) for value in values]
    assert [row["n"] for place, row in enumerate(read) if rows[place][2] is not None] == [
        total for *_, total in rows if total is not None
    ]
    for place in (one.row for one in bad):  # the quarantine has the batch's own sum as one number
        assert json.loads(own[place].as_py()[1:]).keys() == {"n", "m"}


def made_of(kind, reducer):
    """The type of the field, as the page has it."""
    kind = kind.replace("(p,s)", "(7,3)")
    try:
        made = reduced_column("t", Column("c", kind), reducer).type
    except ConfigError:
        return ""
    return "the same type" if made == kind and reducer not in ("sum", "count") else made


def test_the_page_has_the_types_of_each_reducer():
    page = (Path(__file__).parents[4] / "docs/state.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.partition("## Reducers")[2].partition("\n- ")[0].splitlines()
        if line.startswith("|")
    ]
    others = "void, interval day, variant, array<int>, struct<x:int>, map<string,int>"
    shown = {
        kind: cells for names, *cells in rows[2:] for kind in names.replace("all others", others).split(", ")
    }
    assert {*reduce.TYPES, "binary", "decimal(p,s)"} <= shown.keys()
    for kind, (sums, counts, same) in shown.items():
        assert made_of(kind, "sum") == sums.replace("(38,s)", "(38,3)"), kind
        assert made_of(kind, "count") == counts, kind
        for reducer in ("min", "max", "first", "last"):
            assert made_of(kind, reducer) == same, (kind, reducer)


@pytest.mark.parametrize("text", ["1E-999999999", "1E+999999999", "0.001", '"x"', "1E5"])
def test_a_stored_decimal_that_is_none_is_an_error_with_its_key_and_ends_no_process(text):
    """Arrow 26 ends the process at the first one."""
    columns = (ReducedColumn("n", "decimal(5,2)", "max"),)
    table = ReduceStep(0, "t", 0, columns, ("string",))
    with pytest.raises(BadRecordError, match="table t, key 'k': its row is"):
        reduce.parse_state(table, pa.array([b"k"]), pa.array([b'{"n":%s}' % text.encode()]), columns)


def test_decimals_beside_a_nan_lose_no_digit():
    """Such rows are parsed one by one."""
    columns = (ReducedColumn("n", "decimal(38,2)", "sum"), ReducedColumn("d", "double", "max"))
    line = b'{"n":%s,"d":"NaN"}' % str(LARGEST).encode()
    assert parse(pa.array([line]), columns)[0].to_pylist() == [LARGEST]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.binary(max_size=7), st.binary(max_size=7)), min_size=1))
def test_base64_is_compared_as_the_bytes_that_it_encodes(pairs):
    one, other = (
        pa.array([b"=", *map(base64.b64encode, side)], pa.binary()).slice(1)
        for side in zip(*pairs, strict=True)
    )
    assert reduce._above(one, other).to_pylist() == [a > b for a, b in pairs]


@pytest.mark.parametrize(
    "kind,contents",
    [
        ("string", [b'{"a":"1","b":"2"} {"a":"3","b":"4"}', b" "]),
        ("string", [b'{"a":"1",', b'"b":"2"}', b'{"a":"3","b":"4"}{"a":"5","b":"6"}']),
        ("int", [b'{"a":1,"b":2},{"a":3', b'"b":4}']),
    ],
)
def test_values_that_cannot_be_read_do_not_become_rows_of_each_other(kind, contents):
    """As many rows were found as there were values, and others than theirs."""
    columns = [ReducedColumn(name, kind, "last") for name in "ab"]
    with pytest.raises(pa.ArrowInvalid):
        parse(pa.array(contents), columns)


NO_VALUES = {
    "not UTF-8": ("string", b'{"a":"x\xf7"}'),
    "not UTF-8, and not one line": ("string", b'{\n"a":"x\xf7"}'),
    "nested": ("double", b'{"a":1,"b":' + b"[" * 100_000),
    "no object": ("double", b"[1]"),
    "no number": ("double", b'{"a":{}}'),
    "another text": ("double", b'{"a":"x"}'),
    "a number for a text": ("string", b'{"a":5}'),
}


@pytest.mark.parametrize("which", NO_VALUES)
def test_a_stored_value_that_is_none_is_an_error_with_its_key(which):
    """``reduce`` reads it as a state, ``spark.read`` as a row."""
    kind, content = NO_VALUES[which]
    columns = [ReducedColumn("a", kind, "last")]
    with pytest.raises(pa.ArrowInvalid):
        parse(pa.array([content]), columns)
    table = ReduceStep(0, "t", 0, tuple(columns), ("string",))
    with pytest.raises(BadRecordError, match="table t, key 'k': its row is"):
        reduce.parse_state(table, pa.array([b"k"]), pa.array([content]), columns)
    schema = TableSchema((Column("k", "string"),), (Column("a", kind),))
    batch = pa.record_batch([pa.array([b"j", b"k"]), pa.array([b"{}", content])], ["key", "value"])
    with pytest.raises(CorruptError, match="table t, key b'k'"):
        columns_of(batch, values_of(schema), "table t")


def test_a_value_that_is_written_in_another_way_is_still_read():
    columns = [ReducedColumn("a", "string", "last"), ReducedColumn("b", "int", "last")]
    contents = pa.array([b'{"a":"x",\n"b":1}', b' {"b":2} ', None, b'{"b":3,"a":"y"}'])
    assert [column.to_pylist() for column in parse(contents, columns)] == [
        ["x", None, None, "y"],
        [1, 2, None, 3],
    ]
