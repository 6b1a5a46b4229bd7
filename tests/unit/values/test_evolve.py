"""Which changes of a table's columns are accepted: only those that keep every older value."""

import datetime
import decimal
import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.keys.types import parse, text_of
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of
from tidegate.values.evolve import evolved, is_wider, reads_all, renamed, stored_names
from tidegate.values.row_checks import check_schema, row_checks
from tidegate.wal.record import Column, TableSchema

KEY = (Column("k", "string"),)
D = decimal.Decimal
FINITE = {"allow_nan": False, "allow_infinity": False}


def schema_of(*columns, value_format="json"):
    return TableSchema(KEY, tuple(Column(*part.split(" ", 1)) for part in columns), value_format)


def decimals(precision, scale):
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: D(n).scaleb(-scale, decimal.Context(prec=precision)))


def integers(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES = {
    "tinyint": integers(8),
    "smallint": integers(16),
    "int": integers(32),
    "bigint": integers(64),
    "float": st.floats(width=32, **FINITE),
    "double": st.floats(**FINITE),
    "decimal(5,2)": decimals(5, 2),
    "decimal(7,2)": decimals(7, 2),
    "decimal(7,4)": decimals(7, 4),
    "decimal(20,1)": decimals(20, 1),
    "decimal(38,10)": decimals(38, 10),
    "void": st.none(),
    "boolean": st.booleans(),
    "string": st.text(),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.timezone.utc)),
    "timestamp_ntz": st.datetimes(),
}
WIDER = {
    "tinyint": {"smallint", "int", "bigint", "float", "double"},
    "smallint": {"int", "bigint", "float", "double"},
    "int": {"bigint", "double"},
    "bigint": set(),
    "float": {"double"},
    "decimal(5,2)": {"decimal(7,2)", "decimal(7,4)", "decimal(38,10)"},
    "decimal(7,2)": {"decimal(38,10)"},
    "decimal(7,4)": {"decimal(38,10)"},
    "decimal(20,1)": {"decimal(38,10)"},
    "void": VALUES.keys() - {"void"},
}
INTO_DECIMALS = {
    "tinyint": {"decimal(5,2)", "decimal(7,2)", "decimal(7,4)", "decimal(20,1)", "decimal(38,10)"},
    "smallint": {"decimal(7,2)", "decimal(20,1)", "decimal(38,10)"},
    "int": {"decimal(20,1)", "decimal(38,10)"},
    "bigint": {"decimal(20,1)", "decimal(38,10)"},
}


@pytest.mark.parametrize("narrow, wide", list(itertools.product(VALUES, VALUES)))
def test_exactly_the_widenings_without_loss_are_accepted(narrow, wide):
    expected = wide == narrow or wide in WIDER.get(narrow, set()) | INTO_DECIMALS.get(narrow, set())
    assert is_wider(wide, narrow) == expected
    older, newer = schema_of(f"a {narrow}"), schema_of(f"a {wide}")
    if expected or is_wider(narrow, wide):
        assert evolved("t", older, newer).schema == (newer if expected else older)
        assert evolved("t", newer, older).schema == (newer if expected else older), "a narrower call"
    else:
        with pytest.raises(ConfigError, match=r"^table t, column a: .* here, this call writes .*replace"):
            evolved("t", older, newer)
    assert reads_all(newer, older) == expected


@pytest.mark.parametrize(
    "narrow, wide", [pair for pair in itertools.permutations(VALUES, 2) if is_wider(pair[1], pair[0])]
)
@given(data=st.data())
def test_a_value_of_the_narrower_type_is_the_same_value_of_the_wider_one(narrow, wide, data):
    value = data.draw(VALUES[narrow])
    older, newer = schema_of(f"a {narrow}"), schema_of(f"a {wide}")
    stored = encoder_of(older).encode({"a": value})
    before, after = (values_of(schema).decode(stored)["a"] for schema in (older, newer))
    assert after == before
    if narrow == "float":
        assert np.float32(after) == np.float32(value), "cast back, it is the same float"
    else:
        assert after == value
    rows = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([stored], pa.binary())})
    (column,) = columns_of(rows, values_of(newer), "here")["a"].to_pylist()
    assert column == after


def test_float_specials_stay():
    for value in (math.nan, math.inf, -math.inf):
        stored = encoder_of(schema_of("a float")).encode({"a": value})
        assert repr(values_of(schema_of("a double")).decode(stored)["a"]) == repr(value)


NESTED = [
    ("struct<x:int>", "struct<x:bigint,y:string>", "struct<x:bigint,y:string>"),
    ("struct<y:string,x:bigint>", "struct<x:int,y:string>", "struct<y:string,x:bigint>"),
    ("array<struct<x:int>>", "array<struct<x:int,y:int>>", "array<struct<x:int,y:int>>"),
    ("map<string,struct<x:int>>", "map<string,struct<y:int,x:int>>", "map<string,struct<x:int,y:int>>"),
    ("array<map<int,array<float>>>", "array<map<int,array<double>>>", "array<map<int,array<double>>>"),
    ("struct<a:struct<b:decimal(5,2)>,c:int>", "struct<a:struct<b:decimal(7,4)>>",
     "struct<a:struct<b:decimal(7,4)>,c:int>"),
    ("array<void>", "array<struct<x:int>>", "array<struct<x:int>>"),
]  # fmt: skip


@pytest.mark.parametrize("known, written, after", NESTED)
def test_nested_types_change_as_columns_do(known, written, after):
    assert evolved("t", schema_of(f"a {known}"), schema_of(f"a {written}")).schema == schema_of(f"a {after}")
    assert reads_all(schema_of(f"a {after}"), schema_of(f"a {known}"))
    assert text_of(parse(known)) == known


def test_rows_from_before_have_null_in_new_fields_at_any_depth():
    before = b'{"a":[{"x":1}],"m":{"k":{"x":2}}}'
    after = schema_of(
        "a array<struct<x:bigint,y:struct<z:int>>>", "m map<string,struct<x:int,y:int>>", "n int"
    )
    assert values_of(after).decode(before) == {
        "a": [{"x": 1, "y": None}],
        "m": {"k": {"x": 2, "y": None}},
        "n": None,
    }


@pytest.mark.parametrize(
    "known, written, culprits",
    [
        ("struct<x:int>", "struct<x:string>", "column a.x: int here, this call writes string"),
        (
            "array<struct<x:int>>",
            "array<struct<x:date>>",
            "column a.element.x: int here, this call writes date",
        ),
        ("map<string,int>", "map<string,date>", "column a.value: int here, this call writes date"),
        ("map<int,int>", "map<bigint,int>", "column a: map<int,int> here, this call writes map<bigint,int>"),
        ("struct<x:int>", "int", "column a: struct<x:int> here, this call writes int"),
        ("date", "timestamp", "column a: date here, this call writes timestamp"),
        ("timestamp", "timestamp_ntz", "column a: timestamp here, this call writes timestamp_ntz"),
        ("bigint", "double", "column a: bigint here, this call writes double"),
        ("decimal(10,2)", "decimal(10,4)", "column a: decimal(10,2) here, this call writes decimal(10,4)"),
    ],
)
def test_the_culprits_come_first(known, written, culprits):
    older, newer = schema_of("b int", f"a {known}", "c int"), schema_of("b int", f"a {written}", "c date")
    with pytest.raises(ConfigError) as refused:
        evolved("t", older, newer)
    assert str(refused.value).startswith(f"table t, {culprits}")
    assert "; column c: int here, this call writes date: a column's type may only" in str(refused.value)
    assert "write a new table (docs/schema-changes.md)" in str(refused.value)


def test_what_a_call_leaves_out_stays_and_is_named():
    known = schema_of("a int", "s struct<x:int,y:array<struct<z:int,w:int>>>")
    result = evolved("t", known, schema_of("s struct<y:array<struct<z:int>>>", "n date"))
    assert result.schema == schema_of("a int", "s struct<x:int,y:array<struct<z:int,w:int>>>", "n date")
    assert result.left_out == ("a", "s.y.element.w", "s.x")


@pytest.mark.parametrize(
    "known, written, culprit",
    [
        ("Total int", "total int", "column total: Total here"),
        ("s struct<x:int,Y:int>", "s struct<y:int,x:int>", "column s.y: s.Y here"),
    ],
)
def test_a_name_in_another_case_is_no_new_column(known, written, culprit):
    """Spark, which ignores the case of names, could read neither of the two columns."""
    with pytest.raises(ConfigError) as refused:
        evolved("t", schema_of(known), schema_of(written))
    assert str(refused.value).startswith(f"table t, {culprit}, this call writes it in another case: ")


def test_a_renamed_column_may_differ_in_case_alone():
    after = renamed("t", schema_of("Total int"), "Total", "total")
    assert evolved("t", after, schema_of("total bigint")).schema.value[0].type == "bigint"
    both = schema_of("Total int", "total int")  # of a session that heeds the case
    assert evolved("t", schema_of("Total int"), both).schema == both
    assert evolved("t", both, schema_of("total int")).left_out == ("Total",)


def test_bytes_have_one_column_that_never_changes():
    known = schema_of("v binary", value_format="bytes")
    assert evolved("t", known, known).schema == known
    for other in (schema_of("v string", value_format="bytes"), schema_of("v binary")):
        with pytest.raises(ConfigError, match=r"values: bytes values of .v binary. here, this call"):
            evolved("t", known, other)
        assert not reads_all(known, other)


# -- renames --------------------------------------------------------------------------------------


def test_a_renamed_column_reads_and_writes_the_rows_by_the_first_name():
    known = schema_of("a int", "x double")
    new = renamed("t", known, "a", "b")
    assert (new.value_format, stored_names(new)) == ("json_renamed", {"b": "a"})
    stored = encoder_of(known).encode({"a": 1, "x": 0.5})
    assert values_of(new).decode(stored) == {"b": 1, "x": 0.5}
    assert encoder_of(new).encode({"b": 1, "x": 0.5}) == stored
    assert values_of(new).decode_all(pa.array([stored, None], pa.binary())) == [
        {"b": 1, "x": 0.5},
        {"b": None, "x": None},
    ]
    rows = pa.record_batch({"key": pa.array([b"k"], pa.binary()), "value": pa.array([stored], pa.binary())})
    assert columns_of(rows, values_of(new), "here")["b"].to_pylist() == [1]
    assert row_checks(new).first_unfit(rows["key"], pa.array([b"+" + stored]), expires=False) is None
    assert reads_all(new, known)
    assert not reads_all(known, new), "a feed that knows the old name stops"


def test_a_rename_may_be_repeated_and_taken_back():
    known = schema_of("a int", "x double")
    new = renamed("t", known, "a", "b")
    assert renamed("t", new, "a", "b") is None
    assert renamed("t", new, "b", "a") == known
    assert stored_names(renamed("t", new, "b", "c")) == {"c": "a"}
    assert known.schema_id != new.schema_id


def test_a_renamed_columns_first_name_is_reserved():
    new = renamed("t", schema_of("a int", "x double"), "a", "b")
    with pytest.raises(ConfigError, match=r"^table t, column a: renamed to b here, this call writes a: "):
        evolved("t", new, schema_of("a int", "x double"))
    with pytest.raises(ConfigError, match="name 'a' is in use by column b, whose rows have it"):
        renamed("t", new, "x", "a")
    assert evolved("t", new, schema_of("b bigint")).schema.value[0] == Column("b", "bigint", "a")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("k", "z", "column k: it is of the key, which is fixed for life"),
        ("a", "x", "the name 'x' is in use; choose another"),
        ("a", "k", "the name 'k' is in use"),
        ("a", "", "the name '' is in use"),
        ("aa", "z", "there is none of this name; the columns are a, x.*did you mean 'a'"),
    ],
)
def test_other_renames_are_refused(old, new, message):
    with pytest.raises(ConfigError, match=message):
        renamed("t", schema_of("a int", "x double"), old, new)


def test_bytes_have_no_names_to_change():
    with pytest.raises(ConfigError, match="bytes without names"):
        renamed("t", schema_of("v binary", value_format="bytes"), "v", "w")


@pytest.mark.parametrize(
    "value, value_format, fault",
    [
        ((Column("b", "int", "a"),), "json", "with 1 renamed columns"),
        ((Column("b", "int"),), "json_renamed", "with 0 renamed columns"),
        ((Column("b", "int", "a"), Column("a", "int")), "json_renamed", "stored as one of the fields a, a"),
    ],
)
def test_schemas_that_no_release_writes_are_refused(value, value_format, fault):
    with pytest.raises(ConfigError, match=fault):
        check_schema(TableSchema(KEY, value, value_format))
