"""Vectors of values: a schema, a stored value and a version's time, with the row that a reader shows."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import CorruptError, TidegateError
from tidegate.sinks.rules.layout import payload
from tidegate.testing.conformance.canonical import canonical_value
from tidegate.values.decode import values_of
from tidegate.wal.record import TableSchema

AT_US = 1_795_255_200_000_000
"""The time of the version at which the values are read: 2026-11-21T10:00:00Z."""

KEY = [{"name": "id", "type": "string"}]
BYTES = {"key": KEY, "value": [{"name": "note", "type": "binary"}], "value_format": "bytes"}


class Case(NamedTuple):
    """A stored value. ``twin``: another stored value that is shown as the same row."""

    name: str
    schema: dict[str, Any]
    stored: bytes
    at_us: int = AT_US
    twin: bytes | None = None


def decoded(schema: dict[str, Any], stored: bytes, at_us: int) -> Any:
    """Return the canonical value of a stored one; None: absent. Raises: CorruptError, ConfigError."""
    table = as_table(schema)
    values = values_of(table)
    content = payload(stored, at_us)
    return canonical_value(table, None if content is None else values.decode(content))


def as_table(schema: dict[str, Any]) -> TableSchema:
    """Return a schema's JSON object as the product reads it. Raises: CorruptError: it has no key."""
    table = json_decoder(TableSchema).decode(msgspec.json.encode(schema))
    if not table.key:  # a reader of a table refuses it, too; rows of functions have such schemas
        raise CorruptError("the schema has no key column")
    return table


def value_vectors() -> list[dict[str, Any]]:
    """Return stored values with their canonical values, None for absent rows, or with the error."""
    vectors = []
    for case in CASES:
        vector = {
            "name": case.name,
            "schema": case.schema,
            "stored": case.stored.hex(),
            "decided_at_us": case.at_us,
        }
        try:
            outcome = {"value": decoded(case.schema, case.twin or case.stored, case.at_us)}
        except TidegateError as error:
            outcome = {"error": type(error).__name__}
        vectors.append(vector | outcome)
    return vectors


# -- the cases ----------------------------------------------------------------------------------------


def _json(*columns: str, value_format: str = "json") -> dict[str, Any]:
    value = [dict(zip(("name", "type"), column.split(" ", 1), strict=True)) for column in columns]
    return {"key": KEY, "value": value, "value_format": value_format}


def _one(name: str, kind: str, *texts: str) -> list[Case]:
    """Return a case for each JSON text of one column."""
    schema = _json(f"c {kind}")
    return [
        Case(f"{name}, {place}" if place else name, schema, f'+{{"c":{text}}}'.encode())
        for place, text in enumerate(texts)
    ]


def _map(kind: str, as_value: str, as_number: str) -> list[Case]:
    """Return the cases of a map's key: in the form of a value of its type, and in the older form."""
    schema = _json(f"c map<{kind},int>")
    forms = [f'+{{"c":{{"{text}":1}}}}'.encode() for text in (as_value, as_number)]
    return [
        Case(f"a map's key, {kind}", schema, forms[0], twin=forms[1]),
        Case(f"a map's key, {kind}, in the older form", schema, forms[1]),
    ]


def _expiry(us: int) -> bytes:
    return struct.pack(">q", us)


N, ROW = _json("n int"), b'{"n":7}'
LARGE = "12345678901234567890123456789012345678"

TYPES = (
    *_one("string", "string", '"h\u00e9 \\"\\\\ \\u0009 \\ud83d\\udeeb"', '""', "null"),
    *_one("varchar", "varchar(10)", '"x"'),
    *_one("char", "char(3)", '"x  "'),
    *_one("collated string", "string collate UTF8_LCASE", '"x"'),
    *_one("boolean", "boolean", "true", "false"),
    *_one("tinyint", "tinyint", "-128", "127"),
    *_one("smallint", "smallint", "-32768", "32767"),
    *_one("int", "int", "-2147483648", "2147483647"),
    *_one("bigint", "bigint", "9007199254740993", "9223372036854775807", "-9223372036854775808"),
    *_one("float", "float", "0.1", "3.4028235E38", "1.0E-45", "16777216", '"NaN"'),
    *_one(
        "double", "double", "0.1", "1.0E22", "4.9E-324", "1e+20", "-0.0", '"NaN"', '"Infinity"', '"-Infinity"'
    ),
    *_one("decimal", "decimal(10,2)", "-1.10", "0.00", "1.5E2", "7"),
    *_one("decimal of 38 digits", "decimal(38,0)", LARGE, f"-{LARGE}"),
    *_one("decimal, small", "decimal(38,38)", "1E-38", "0E-38", "0.12345678901234567890123456789012345678"),
    *_one("decimal with an exponent", "decimal(20,10)", "1.000E-7", "0E-10"),
    *_one("date", "date", '"2013-01-01"', '"0001-01-01"', '"9999-12-31"'),
    *_one("timestamp", "timestamp", '"2013-01-01T10:00:00.000000Z"', '"1969-12-31T23:59:59.999999Z"'),
    *_one("timestamp, far", "timestamp", '"0001-01-01T00:00:00.000000Z"', '"9999-12-31T23:59:59.999999Z"'),
    *_one("timestamp_ntz", "timestamp_ntz", '"2013-01-01T10:00:00.000000"', '"1969-12-31T23:59:59.000001"'),
    *_one("binary", "binary", '"AAH/"', '""', '"YWI="'),
    *_one("interval", "interval day to second", "\"INTERVAL '1 02:03:04' DAY TO SECOND\""),
    *_one("interval of months", "interval year to month", "\"INTERVAL '1-2' YEAR TO MONTH\""),
    *_one("void", "void", "null"),
)
NESTED = (
    *_one("array", "array<int>", "[1,null,3]", "[]", "null"),
    *_one("array of decimals", "array<decimal(38,10)>", "[1.5,-99999999999999999999999999.9999999999,1E-10]"),
    *_one("array of doubles", "array<double>", '["NaN",1.0,"-Infinity"]'),
    *_one("struct", "struct<a:int,b:string>", '{"a":1,"b":null}'),
    *_one(
        "struct with absent fields", "struct<a:int,b:struct<c:date,d:bigint>>", '{"b":{"d":9007199254740993}}'
    ),
    *_one("struct with a field that the schema lacks", "struct<a:int>", '{"a":1,"z":[{"y":2}]}'),
    *_one(
        "struct with other names",
        "struct<x y:int,UPPER:string,k\u00e9:int>",
        '{"x y":1,"UPPER":"u","k\u00e9":2}',
    ),
    *_one(
        "array of structs",
        "array<struct<x:map<string,array<date>>>>",
        '[{"x":{"k":["2013-01-01",null]}},null]',
    ),
    *_one(
        "struct of bytes and times",
        "struct<b:binary,t:timestamp>",
        '{"b":"AAH/","t":"2013-01-01T10:00:00.000000Z"}',
    ),
    *_one("map", "map<string,int>", '{"a":1,"b":null,"":3}'),
    *_one("map of maps", "map<int,map<boolean,double>>", '{"-1":{"true":"NaN"},"2":{"false":1.5}}'),
    *_one("a map's key, bigint", "map<bigint,int>", '{"9007199254740993":1}'),
    *_one("a map's key, double", "map<double,int>", '{"1.5":1,"NaN":2,"-Infinity":3}'),
    *_one("a map's key, decimal", "map<decimal(10,2),int>", '{"1.50":1,"-0.05":2}'),
    *_one("a map's key, decimal with an exponent", "map<decimal(20,10),int>", '{"1.000E-7":1}'),
    *_map("date", "2013-01-01", "15706"),
    *_map("timestamp", "2013-01-01T10:00:00.000000Z", "1357034400000000"),
    *_map("timestamp_ntz", "1969-12-31T23:59:59.999999", "-1"),
    *(
        Case(
            f"a map's key, date {day}, in the older form",
            _json("c map<date,int>"),
            f'+{{"c":{{"{days}":1}}}}'.encode(),
        )
        for day, days in (("1969-12-31", -1), ("0001-01-01", -719162), ("9999-12-31", 2932896))
    ),
)
FLAGS = (
    Case("+", N, b"+" + ROW),
    Case("-", N, b"-"),
    Case("e, one microsecond after the version", N, b"e" + _expiry(AT_US + 1) + ROW),
    Case("e, at the version", N, b"e" + _expiry(AT_US) + ROW),
    Case("e, before the version", N, b"e" + _expiry(AT_US - 1) + ROW),
    Case("e, before 1970", N, b"e" + _expiry(-1) + ROW),
    Case("e, at a version before it", N, b"e" + _expiry(1) + ROW, 0),
    Case("e, far in the future", N, b"e" + _expiry(2**62) + ROW),
    Case("s", N, b"s\x03abc" + ROW),
    Case("s, with an empty sequence", N, b"s\x00" + ROW),
    Case("s, with a sequence of 255 bytes", N, b"s\xff" + b"{" * 255 + ROW),
    Case("x, after the version", N, b"x" + _expiry(AT_US + 1) + b"\x02{}" + ROW),
    Case("x, at the version", N, b"x" + _expiry(AT_US) + b"\x02{}" + ROW),
    Case("d", N, b"d\x03abc"),
    Case("bytes", BYTES, b"+\x00\x01-\xff"),
    Case("no bytes", BYTES, b"+"),
    Case("bytes that expire", BYTES, b"e" + _expiry(AT_US + 1) + b"\x00\x01"),
    Case("bytes with a sequence", BYTES, b"s\x01s\x00\x01"),
)
SCHEMAS = (
    Case("a column that the value lacks", _json("n int", "s string", "a array<int>"), b"+" + ROW),
    Case("all columns absent", N, b"+{}"),
    Case("a table without value columns", _json(), b"+{}"),
    Case("a field that the schema lacks", N, b'+{"old":{"n":1},"n":7}'),
    Case("a null", N, b'+{"n":null}'),
    Case("an int as bigint", _json("n bigint"), b"+" + ROW),
    Case("an int as double", _json("n double"), b'+{"n":3}'),
    Case("a float as double", _json("n double"), b'+{"n":0.1}'),
    Case("an int as decimal", _json("n decimal(12,2)"), b'+{"n":3}'),
    Case("a decimal as a wider one", _json("n decimal(20,4)"), b'+{"n":1.50}'),
    Case("numbers widened in an array", _json("n array<decimal(20,4)>"), b'+{"n":[3,1.50]}'),
    Case(
        "a renamed column",
        {
            **_json(value_format="json_renamed"),
            "value": [
                {"name": "airline", "type": "string", "stored": "carrier"},
                {"name": "n", "type": "int"},
            ],
        },
        b'+{"carrier":"UA","airline":"wrong","n":7}',
    ),
    Case(
        "two columns that changed their names",
        {
            **_json(value_format="json_renamed"),
            "value": [
                {"name": "a", "type": "int", "stored": "b"},
                {"name": "b", "type": "int", "stored": "c"},
            ],
        },
        b'+{"a":1,"b":2,"c":3}',
    ),
    Case("a table with a stride", _json("n int", value_format="grouped_json"), b"+" + ROW),
    Case("bytes of a table with a stride", {**BYTES, "value_format": "grouped_bytes"}, b"+\x00"),
)
STATES = {
    "key": KEY,
    "value": [
        {"name": "n", "type": "string", "stored": "n@3"},
        {"name": "at", "type": "date", "stored": "at@3"},
    ],
    "value_format": "json_states",
    "state_version": 3,
    "older": [
        {"version": 1, "value": [{"name": "n", "type": "int"}, {"name": "m", "type": "int"}]},
        {"version": 2, "value": [{"name": "n", "type": "bigint", "stored": "n@2"}]},
    ],
}
STATE_VERSIONS = (
    Case("a state of the newest version", STATES, b'+{"n@3":"7","at@3":"2013-01-01"}'),
    Case("a state of the version before", STATES, b'+{"n@2":9007199254740993}'),
    Case("a state of the first version", STATES, b'+{"n":7}'),
    Case("a state of two versions", STATES, b'+{"n@2":7,"n@3":"7"}'),
    Case(
        "a state of one version",
        {**_json("n int"), "state_version": 2},
        b"+" + ROW,
    ),
)
TREE = {"type": "array", "elementType": "long", "containsNull": True}
WITH_TREES = (
    Case(
        "a column with its tree",
        {**_json(), "value": [{"name": "c", "type": "array<bigint>", "tree": TREE}]},
        b'+{"c":[9007199254740993]}',
    ),
)
CORRUPT = (
    Case("no byte", N, b""),
    Case("an unknown flag", N, b"?" + ROW),
    Case("no flag", N, ROW),
    Case("an expiry that is cut", N, b"e" + _expiry(AT_US + 1)[:7]),
    Case("a sequence that is cut", N, b"s\x09abc"),
    Case("bytes with a sequence that is cut", BYTES, b"s\x09abc"),
    Case("a delete with a sequence that is cut", N, b"d\x09abc"),
    Case("a sequence without its length", N, b"s"),
    Case("a delete marker with a value", N, b"-" + ROW),
    Case("a delete with its sequence, and a value", N, b"d\x03abc" + ROW),
    Case("no JSON", N, b"+"),
    Case("JSON that is cut", N, b'+{"n":7'),
    Case("bytes after the JSON", N, b"+" + ROW + b"}"),
    Case("an array", N, b"+[7]"),
    Case("a text for a number", N, b'+{"n":"7"}'),
    Case("a number for a text", _json("s string"), b'+{"s":7}'),
    Case("an int beyond its bits", N, b'+{"n":2147483648}'),
    Case("a bigint beyond its bits", _json("n bigint"), b'+{"n":9223372036854775808}'),
    Case("a fraction for an int", N, b'+{"n":1.5}'),
    Case("a decimal with more digits than its scale", _json("n decimal(4,2)"), b'+{"n":1.234}'),
    Case("a decimal beyond its precision", _json("n decimal(4,2)"), b'+{"n":123.45}'),
    Case("a day that does not exist", _json("d date"), b'+{"d":"2013-02-30"}'),
    Case("a year beyond 9999", _json("d date"), b'+{"d":"+10000-01-01"}'),
    Case("a time without its zone", _json("t timestamp"), b'+{"t":"2013-01-01T10:00:00.000000"}'),
    Case("a wall clock with a zone", _json("t timestamp_ntz"), b'+{"t":"2013-01-01T10:00:00.000000Z"}'),
    Case("no base64", _json("b binary"), b'+{"b":"*"}'),
    Case("a map's key that is no number", _json("m map<int,int>"), b'+{"m":{"x":1}}'),
    Case("a map's key that is no date", _json("m map<date,int>"), b'+{"m":{"2013-02-30":1}}'),
    Case("an unknown value format", {**N, "value_format": "json2"}, b"+" + ROW),
    Case("an unknown type", _json("n uint"), b"+" + ROW),
)


def _spelled(kind: str, *texts: str) -> list[Case]:
    """Return a case for each JSON text of one column, named after the text."""
    schema = _json(f"c {kind}")
    return [Case(f"{kind}: {text[:40]}", schema, f'+{{"c":{text}}}'.encode()) for text in texts]


def _keyed(kind: str, *keys: str) -> list[Case]:
    return _spelled(f"map<{kind},int>", *(f'{{"{key}":1}}' for key in keys))


def _raw(name: str, kind: str, content: bytes) -> Case:
    return Case(name, _json(f"c {kind}"), b"+" + content)


ARABIC = "\u0661\u0662"
STRICT = (
    *_keyed("boolean", "true", "TRUE", "1", "0", "x", "", " true"),
    *_keyed("tinyint", "-128", "127", "128", "10958", "-129"),
    *_keyed("smallint", "32768"),
    *_keyed(
        "int", "-0", "0", "2147483648", "01", "00", "-01", "+1", "1_0", " 1", "1 ", "1.0", "1e2", "-", ARABIC
    ),
    *_keyed("bigint", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 25),
    *_keyed(
        "float",
        "3.4028235E38",
        "3.5e38",
        "-1e40",
        "1e-60",
        "NaN",
        "Infinity",
        "nan",
        "-inf",
        "+1.5",
        "1.",
        ".5",
    ),
    *_keyed(
        "double", "1.5", "1E+2", "-0.0", "1e400", "1e-400", "nan", "NAN", "inf", "+Infinity", "01.5", "1_0.5"
    ),
    *_keyed("double", "1.", ".5", "0x1p3", "1.5d", "", " 1.5", ARABIC),
    *_keyed(
        "decimal(4,2)",
        "1.5",
        "-0.00",
        "150e-2",
        "1.234",
        "123.45",
        "01.5",
        "+1.5",
        "1_0",
        "NaN",
        "",
        ".5",
        "5.",
    ),
    *_keyed(
        "date",
        "2013-1-1",
        "20130101",
        "2013-01-01 ",
        "2932897",
        "-719163",
        "9" * 25,
        "+15706",
        "015706",
        "1_5",
    ),
    *_keyed("date", "2013-01-01T00:00:00", "0000-12-31", ARABIC),
    *_keyed(
        "timestamp", "2013-01-01T10:00:00.000000", "2013-01-01 10:00:00.000000Z", "253402300800000000", "+7"
    ),
    *_keyed("timestamp_ntz", "2013-01-01T10:00:00.000000Z", "-62135596800000001", "-62135596800000000", "07"),
    *_spelled("boolean", '"true"', "1", "0", "[]"),
    *_spelled("tinyint", "128", "-129", "-0", "7.0", "7e0", "true"),
    *_spelled("bigint", "-9223372036854775809", "1e3", "9007199254740993.0"),
    *_spelled(
        "float", "3.5e38", "-1e40", "3.4028235E38", "1e-60", '"1.5"', '"nan"', '"inf"', '"+Infinity"', "true"
    ),
    *_spelled("double", "1e400", "-1e400", "1e-400", "0e99999", '"1.5"', '"INF"', "3", "1" + "0" * 30),
    *_spelled(
        "decimal(4,2)", '"7"', '"1.50"', "-0.0", "-0", "0e999", "0E-999", "0e1000", "0e99999", "0E-99999"
    ),
    *_spelled("decimal(4,2)", "1500e-3", "15e-1", "0.15e1", "1.500000", "1e2", "99.995", "true", '"NaN"'),
    *_spelled(
        "date", '"2013-1-1"', '"20130101"', '"0000-01-01"', '"2013-01-01T00:00:00"', "15706", '" 2013-01-01"'
    ),
    *_spelled("date", '"2013-W01-1"', '"2012-02-29"', '"1900-02-29"'),
    *(
        case
        for kind, zone in (("timestamp", "Z"), ("timestamp_ntz", ""))
        for case in _spelled(
            kind,
            *(
                f'"{text}{zone}"'
                for text in (
                    "2013-01-01T10:00:00",
                    "2013-01-01T10:00:00.5",
                    "2013-01-01T10:00:00.000",
                    "2013-01-01T10:00:00.0000007",
                    "2013-01-01T10:00:00,500000",
                    "2013-01-01T10:00:00.",
                    "2013-01-01 10:00:00.000000",
                    "2013-01-01t10:00:00.000000",
                    "2013-01-01T10:00",
                    "2013-01-01T24:00:00.000000",
                    "2013-01-01T23:59:60.000000",
                    "2013-W01-1T10:00:00.000000",
                    "0000-12-31T23:59:59.000000",
                    "2013-01-01",
                )
            ),
        )
    ),
    *_spelled(
        "timestamp",
        *(
            f'"2013-01-01T10:00:00.000000{zone}"'
            for zone in ("+00:00", "-00:00", "z", "+0000", "+01:00", " Z")
        ),
        "1357034400000000",
    ),
    *_spelled(
        "binary",
        '"AA=="',
        '"AB=="',
        '"AAE="',
        '"AAF="',
        '"AA"',
        '"A"',
        '"AAH_"',
        '"AA==AA=="',
        '"===="',
        '"AA= ="',
    ),
    *_spelled("binary", r'"AA\n=="', r'"AAH/\r\n"', '"AAH/\u00e9"', "[0]"),
    *_spelled(
        "string",
        r'"\ud83d"',
        r'"\udc00"',
        r'"\ud83d\u0041"',
        r'"\ud83d\ud83d\udeeb"',
        r'"\ud83d\n"',
        r'"\\ud83d"',
    ),
    *_spelled("string", r'"\x41"', r'"\u00g0"', r'"\/"', r'"\u0000"', "NaN", "'x'"),
    *_spelled("map<string,int>", r'{"\ud83d":1}', r'{"\u0061":1}', '{"a":1,"a":2}', "[]", "[1]", '{"a":1.0}'),
    *_spelled("map<date,int>", '{"2013-01-01":1,"15706":2}', '{"15706":1,"2013-01-01":2}'),
    *_spelled("map<decimal(4,2),int>", '{"1.5":1,"1.50":2}', '{"1.50":1,"15e-1":2}'),
    *_spelled("map<double,int>", '{"1.0":1,"1":2}', '{"0.0":1,"-0.0":2}', '{"NaN":1,"NaN":2}'),
    *_spelled("struct<a:int>", '{"a":1,"a":2}', "[1]", '"{}"', "{}"),
    *_spelled("array<int>", "{}", '"[]"', "[1,]", "[,1]", "[1 2]"),
    *_spelled("int", "07", "+7", "7.", "0x7", "- 7", "", "7,", "Infinity", "null"),
    _raw("a name twice", "int", b'{"c":1,"c":2}'),
    _raw("a name in escapes", "int", rb'{"\u0063":7}'),
    _raw("a name with a lone surrogate", "int", rb'{"c":7,"\ud83d":1}'),
    _raw("an ignored field with a lone surrogate", "int", rb'{"z":"\ud83d","c":7}'),
    _raw("an ignored field that is no UTF-8", "int", b'{"z":"\xff","c":7}'),
    _raw("an ignored field with an encoded surrogate", "int", b'{"z":"\xed\xa0\xbd","c":7}'),
    _raw("an ignored field with a control character", "int", b'{"z":"\n","c":7}'),
    _raw("an ignored field with a number that is none", "int", b'{"z":01,"c":7}'),
    _raw("an ignored field without a value", "int", b'{"z":,"c":7}'),
    _raw("a name that is no UTF-8", "int", b'{"\xff":1,"c":7}'),
    _raw("a text that is no UTF-8", "string", b'{"c":"\xc3\x28"}'),
    _raw("a text of too many bytes for its character", "string", b'{"c":"\xc0\xaf"}'),
    _raw("a control character in a text", "string", b'{"c":"\t"}'),
    _raw("a comma at the end", "int", b'{"c":7,}'),
    _raw("a comment", "int", b'{"c":7/**/}'),
    _raw("a name without quotes", "int", b"{c:7}"),
    _raw("a mark of the byte order", "int", b'\xef\xbb\xbf{"c":7}'),
    _raw("JSON in UTF-16", "int", '{"c":7}'.encode("utf-16-le")),
    _raw("spaces around the JSON", "int", b' \t\r\n{ "c" : 7 }\n'),
    _raw("a space that JSON does not know", "int", b'{"c":\x0b7}'),
    _raw("a byte zero after the JSON", "int", b'{"c":7}\x00'),
    _raw("two objects", "int", b'{"c":7}{"c":7}'),
    _raw("null", "int", b"null"),
)
"""Spellings at the edges of each type: what is refused here no release writes."""
CASES = (*TYPES, *NESTED, *FLAGS, *SCHEMAS, *STATE_VERSIONS, *WITH_TREES, *CORRUPT, *STRICT)
