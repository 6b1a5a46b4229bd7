"""Values come back as what they were. The texts are what Spark 4's to_json wrote for these values."""

import contextlib
import datetime
import decimal
import json
import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError, CorruptError
from tidegate.sinks.rules.columns import batch_from
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.values import decode as values
from tidegate.values.decode import values_of
from tidegate.values.kinds import kind_of
from tidegate.wal.record import Column, TableSchema

D = decimal.Decimal
UTC = datetime.timezone.utc


def schema_of(*types, key=("id:string",), value_format="json"):
    columns = tuple(Column(f"c{i}", kind) for i, kind in enumerate(types))
    keys = tuple(Column(*part.split(":")) for part in key)
    return TableSchema(keys, columns, value_format)


def decode(kind, text):
    return values_of(schema_of(kind)).decode(b'{"c0":' + text.encode() + b"}")["c0"]


SPARK = [
    ("string", '"hé\\"\\\\x"', 'hé"\\x'),
    ("varchar(10)", '"x"', "x"),
    ("string collate UTF8_LCASE", '"x"', "x"),
    ("tinyint", "1", 1),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("double", '"Infinity"', math.inf),
    ("double", '"-Infinity"', -math.inf),
    ("double", "1.0E22", 1e22),
    ("double", "1.0E-300", 1e-300),
    ("float", "0.1", 0.1),
    ("decimal(20,10)", "1.000E-7", D("1.000E-7")),
    ("decimal(38,0)", "12345678901234567890123456789012345678", D("12345678901234567890123456789012345678")),
    ("decimal(10,2)", "-1.10", D("-1.10")),
    ("decimal(38,20)", "0E-20", D("0E-20")),
    ("date", '"0001-01-01"', datetime.date(1, 1, 1)),
    ("date", '"9999-12-31"', datetime.date(9999, 12, 31)),
    (
        "timestamp",
        '"2023-01-02T08:04:05.123456Z"',
        datetime.datetime(2023, 1, 2, 8, 4, 5, 123456, UTC),
    ),
    ("timestamp", '"9999-12-31T23:59:59.999999Z"', datetime.datetime.max.replace(tzinfo=UTC)),
    ("timestamp_ntz", '"2023-01-02T03:04:05.123456"', datetime.datetime(2023, 1, 2, 3, 4, 5, 123456)),  # noqa: DTZ001
    ("binary", '"YWJj"', b"abc"),
    ("binary", '""', b""),
    ("boolean", "true", True),
    ("int", "null", None),
    ("void", "null", None),
    ("struct<a:int,b:string>", '{"a":1,"b":null}', {"a": 1, "b": None}),
    ("array<int>", "[1,null,3]", [1, None, 3]),
    ("map<string,int>", '{"a":1,"b":null}', {"a": 1, "b": None}),
    ("map<int,string>", '{"1":"x"}', {1: "x"}),
    ("map<date,int>", '{"19358":1}', {datetime.date(2023, 1, 1): 1}),
    ("map<date,int>", '{"2023-01-01":1}', {datetime.date(2023, 1, 1): 1}),
    ("map<date,int>", '{"-1":1}', {datetime.date(1969, 12, 31): 1}),
    (
        "map<timestamp,int>",
        '{"2023-01-01T05:00:00.000000Z":1}',
        {datetime.datetime(2023, 1, 1, 5, tzinfo=UTC): 1},
    ),
    ("map<timestamp_ntz,int>", '{"2023-01-01T00:00:00.000000":1}', {datetime.datetime(2023, 1, 1): 1}),  # noqa: DTZ001
    ("map<timestamp,int>", '{"1672549200000000":1}', {datetime.datetime(2023, 1, 1, 5, tzinfo=UTC): 1}),
    ("map<timestamp_ntz,int>", '{"1672531200000000":1}', {datetime.datetime(2023, 1, 1): 1}),  # noqa: DTZ001
    ("map<decimal(10,2),int>", '{"1.50":1}', {D("1.50"): 1}),
    ("map<boolean,int>", '{"true":1}', {True: 1}),
    ("map<double,int>", '{"1.5":2}', {1.5: 2}),
    (
        "array<struct<x:map<string,array<date>>>>",
        '[{"x":{"k":["2023-01-01"]}}]',
        [{"x": {"k": [datetime.date(2023, 1, 1)]}}],
    ),
    ("interval day to second", "\"INTERVAL '1' DAY\"", "INTERVAL '1' DAY"),
]


@pytest.mark.parametrize("kind,text,expected", SPARK)
def test_what_spark_writes_is_read_back(kind, text, expected):
    found = decode(kind, text)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, D):
        assert found.as_tuple() == expected.as_tuple()


def test_not_a_number_comes_back_wherever_it_stands():
    assert math.isnan(decode("double", '"NaN"'))
    assert math.isnan(decode("array<double>", '["NaN",1.0]')[0])
    assert math.isnan(decode("struct<a:map<string,float>>", '{"a":{"k":"NaN"}}')["a"]["k"])


# -- schemas that change, and values that do not fit --------------------------------------------


def test_columns_that_came_later_are_none_and_columns_that_went_are_left_out():
    decoder = values_of(schema_of("int", "struct<a:int,b:double>", "string"))
    assert decoder.decode(b'{"c1":{"a":1},"gone":[{}]}') == {
        "c0": None,
        "c1": {"a": 1, "b": None},
        "c2": None,
    }


def test_bytes_are_given_as_they_are():
    values = values_of(schema_of("string", value_format="bytes"))
    assert values.decode(b"\xff{") == b"\xff{"
    assert values.to_arrow([("a", b"\xff")]).to_pylist() == [{"id": "a", "c0": b"\xff"}]


def test_a_table_without_value_columns():
    values = values_of(schema_of())
    assert values.decode(b"{}") == {}
    assert values.to_arrow([("a", {}), ("b", {})]).to_pylist() == [{"id": "a"}, {"id": "b"}]


def test_keys_of_several_columns_and_a_key_column_among_the_values():
    key = (Column("origin", "string"), Column("day", "date"))
    values = values_of(TableSchema(key, (Column("origin", "string"), Column("n", "int"))))
    assert values.decode_key(b"3:EWR,10:2023-01-02,") == ("EWR", datetime.date(2023, 1, 2))
    table = values.to_arrow([(("EWR", datetime.date(2023, 1, 2)), {"origin": "EWR", "n": 7})])
    assert table.to_pylist() == [{"origin": "EWR", "day": datetime.date(2023, 1, 2), "n": 7}]
    assert values.to_arrow([]).schema == table.schema


@pytest.mark.parametrize(
    "kind,text",
    [
        ("int", '"x"'),
        ("int", "1.5"),
        ("int", ""),
        ("date", '"+10000-01-01"'),
        ("binary", '"?"'),
        ("double", '"text"'),
        ("map<int,int>", '{"x":1}'),
        ("map<date,int>", '{"999999999999":1}'),
        ("map<date,int>", '{"2023-02-30":1}'),
        ("map<date,int>", '{"x":1}'),
        ("map<timestamp,int>", '{"2023-01-01T05:00:00.000000":1}'),
        ("map<timestamp_ntz,int>", '{"2023-01-01T05:00:00.000000Z":1}'),
        ("map<decimal(4,2),int>", '{"x":1}'),
        ("timestamp", '"2023-01-02T08:04:05.123456"'),
        ("string", '"\\ud800"'),
        ("int", "1}" + "}" * 10),
        ("struct<a:int>", '{"deep":' + "[" * 100_000 + "}"),
    ],
)
def test_a_value_that_does_not_fit_says_so(kind, text):
    with pytest.raises(CorruptError, match="does not fit"):
        decode(kind, text)


@given(st.binary(max_size=80))
def test_hostile_bytes_never_do_more_than_raise(content):
    decoder = values_of(schema_of("int", "array<double>", "map<date,decimal(4,2)>", "struct<a:binary>"))
    with contextlib.suppress(CorruptError):
        decoder.decode(content)
    with contextlib.suppress(CorruptError):
        values_of(schema_of("int", key=("a:decimal(4,2)", "b:date", "c:int"))).decode_key(content)


def test_values_out_of_arrows_range_say_so():
    values = values_of(schema_of("tinyint"))
    with pytest.raises(CorruptError, match="c0 tinyint"):
        values.to_arrow([("a", values.decode(b'{"c0":1000}'))])


@pytest.mark.parametrize(
    "name",
    [
        *("", "foo", "variant", "decimal", "decimal(3)", "decimal(99,2)", "decimal(x,1)", "array<int"),
        *("array<int>>", "struct<a>", "struct<a:int", "struct<a:int b>", "int,int", "array<>"),
        *("map<int>", "map<binary,int>", "map<struct<a:int>,int>", "map<array<int>,int>"),
    ],
)
def test_a_type_that_is_not_known_is_refused_with_those_that_are(name):
    with pytest.raises(ConfigError, match="timestamp_ntz"):
        kind_of(name)


@pytest.mark.parametrize("of", ["array<", "struct<a:", "map<string,"])
def test_a_type_that_is_nested_too_deeply_is_refused_in_words(of):
    """300 levels ended in a RecursionError, where msgspec makes a decoder of them."""
    nested = kind_of(of * 100 + "int" + ">" * 100)
    assert values_of(schema_of(of * 100 + "int" + ">" * 100)).decode(b"{}") == {"c0": None}
    assert nested.arrow is not None
    for levels in (101, 300, 100_000):
        with pytest.raises(ConfigError, match="nested more than 100 levels deep"):
            kind_of(of * levels + "int" + ">" * levels)


def test_a_value_format_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="avro"):
        values_of(schema_of("int", value_format="avro"))


@pytest.mark.parametrize("name", ["\u00e9", "ann\u00e9e", "\u65e5\u672c", "\U0001f6eb", "a\u2028b", "\x7f"])
def test_columns_are_found_by_names_beyond_ascii(name):
    """They were read as None, until something had encoded that very text (I10)."""

    def fresh():
        return "".join(list(name))

    struct = f"struct<{fresh()}:double,b:int>"
    columns = (Column(fresh(), "bigint"), Column("in", struct), Column("all", f"array<{struct}>"))
    found = values_of(TableSchema((Column("id", "string"),), columns))
    inside = {name: "NaN", "b": 2}
    for ascii_only in (False, True):
        content = json.dumps({name: 1, "in": inside, "all": [inside]}, ensure_ascii=ascii_only).encode()
        for row in (found.decode(content), *found.decode_all(pa.array([content]))):
            assert row[name] == 1
            assert row["in"]["b"] == row["all"][0]["b"] == 2
            assert math.isnan(row["in"][name])
            assert math.isnan(row["all"][0][name])


def test_a_name_that_is_not_found_is_told_of(monkeypatch):
    monkeypatch.setattr(values.msgspec.json, "encode", lambda _: b"{}")
    with pytest.raises(ConfigError, match="cannot read columns named"):
        kind_of("struct<a:int>")


@pytest.mark.parametrize(
    "kind,contents",
    [
        ("array<string>", [b'{"c0":["a"', b'"b"]}', b'{"c0":["c"]},{"c0":["d"]}']),
        ("array<string>", [b'{"c0":["a"]},{"c0":["b"]}', b""]),
    ],
)
def test_values_that_cannot_be_read_do_not_become_rows_of_each_other(kind, contents):
    """They were joined before they were parsed, and gave as many rows as there were values."""
    values = values_of(schema_of(kind))
    with pytest.raises(msgspec.MsgspecError):
        values.decode_all(pa.array(contents))
    keys = pa.array([b"a", b"b", b"c"][: len(contents)])
    batch = batch_from(keys, pa.array(contents))
    with pytest.raises(CorruptError, match="table t, key b'a'"):
        columns_of(batch, values, "table t")


@pytest.mark.parametrize("text", ["1e-999999999", "1e400000000", "123.45", "1.234"])
def test_a_decimal_that_its_type_has_not_is_no_value(text):
    """At 1e-999999999 Arrow ends the process, in whoever reads the table."""
    for kind, value in (
        ("decimal(4,2)", text),
        ("array<decimal(4,2)>", f"[{text}]"),
        ("map<decimal(4,2),int>", f'{{"{text}":1}}'),
        ("map<int,decimal(4,2)>", f'{{"1":{text}}}'),
    ):
        with pytest.raises(CorruptError, match="not exactly one of decimal"):
            values_of(schema_of(kind)).decode(f'{{"c0":{value}}}'.encode())


def test_zero_has_the_digits_of_its_type():
    """At 0e-999999999 Arrow ends the process, too: it is refused."""
    decimals = values_of(schema_of("decimal(4,2)"))
    with pytest.raises(CorruptError, match="not exactly one of decimal"):
        decimals.decode(b'{"c0":0e-999999999}')
    assert str(decimals.decode(b'{"c0":0e-999}')["c0"]) == "0.00"
