"""The rows of the conformance program's namespaces: every type of value and of key. Pure."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

from tidegate.base.names import DUE, LOCAL, QUEUE
from tidegate.wal.record import JSON_RENAMED, Column, TableSchema

D = decimal.Decimal
UTC = datetime.timezone.utc
FIRST, LAST = (
    datetime.datetime(1, 1, 1, tzinfo=UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
)
DAY, LAST_DAY = datetime.date(2013, 1, 1), datetime.date(9999, 12, 31)
INSTANT = datetime.datetime(2013, 1, 1, 10, 0, 0, 7, UTC)
WALL_CLOCK, FIRST_WALL, LAST_WALL = (moment.replace(tzinfo=None) for moment in (INSTANT, FIRST, LAST))
LARGE = 12345678901234567890123456789012345678


def schema_of(key: str, *value: str, value_format: str = "json") -> TableSchema:
    """Build a schema of columns ``name type``, the key's with commas.

    >>> schema_of("id string", "n int").key
    (Column(name='id', type='string', stored=UNSET),)
    """
    keys = [column.strip() for column in key.split(";")]
    return TableSchema(tuple(map(_column, keys)), tuple(map(_column, value)), value_format)


def _column(text: str) -> Column:
    name, _, kind = text.partition(" ")
    return Column(name, kind)


TYPES: dict[str, tuple[Any, Any]] = {
    "string": ('h\u00e9 "\\\t \U0001f6eb', ""),
    "varchar(10)": ("x", "0123456789"),
    "binary": (b"\x00\x01\xff", b""),
    "boolean": (True, False),
    "tinyint": (127, -128),
    "smallint": (32767, -32768),
    "int": (2**31 - 1, -(2**31)),
    "bigint": (2**63 - 1, 2**53 + 1),
    "float": (0.10000000149011612, math.inf),
    "double": (0.1, math.nan),
    "decimal(10,2)": (D("-1.10"), D("0.00")),
    "decimal(38,0)": (D(LARGE), D(-LARGE)),
    "decimal(38,38)": (D("1E-38"), D("0.12345678901234567890123456789012345678")),
    "date": (DAY, LAST_DAY),
    "timestamp": (INSTANT, FIRST),
    "timestamp_ntz": (WALL_CLOCK, LAST_WALL),
    "interval day to second": ("INTERVAL '1 02:03:04' DAY TO SECOND", "INTERVAL '0 00:00:00' DAY TO SECOND"),
    "array<bigint>": ([1, None, 2**63 - 1], []),
    "array<struct<x:map<string,array<date>>>>": ([{"x": {"k": [DAY, None]}}, None], [{"x": None}]),
    "struct<a:int,b:struct<c:decimal(10,2),d:binary>>": (
        {"a": 1, "b": {"c": D("1.50"), "d": b"\x01"}},
        {"a": None, "b": None},
    ),
    "map<string,double>": ({"a": 1.5, "": None}, {}),
    "map<bigint,int>": ({2**53 + 1: 1, -1: None}, {0: 0}),
    "map<boolean,string>": ({True: "t"}, {False: "f", True: "t"}),
    "map<decimal(10,2),int>": ({D("1.50"): 1}, {D("-0.05"): 1}),
    "map<date,int>": ({DAY: 1}, {LAST_DAY: 1}),
    "map<timestamp,int>": ({INSTANT: 1}, {datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC): 1}),
    "map<timestamp_ntz,int>": ({WALL_CLOCK: 1}, {FIRST_WALL: 1}),
}
"""Each type of a value column, with two values."""

KEYS: dict[str, tuple[Any, ...]] = {
    "string": ("N14228", "", "h\u00e9 \u65e5\u672c", "3:EWR,"),
    "binary": (b"\x00\x01\xff", b""),
    "tinyint": (-128, 127),
    "smallint": (-32768, 7),
    "int": (-7, 2**31 - 1),
    "bigint": (2**53 + 1, -(2**63)),
    "boolean": (True, False),
    "date": (DAY, LAST_DAY, datetime.date.min),
    "timestamp": (INSTANT, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
    "timestamp_ntz": (WALL_CLOCK, FIRST_WALL),
    "decimal(10,2)": (D("1.50"), D("-0.05"), D("0.00")),
    "decimal(38,0)": (D(LARGE),),
}
"""Each type of a key column, with keys."""

PAIRS = (("EWR", 7), ("", -1), ("3:x,", 0))
"""Keys of two columns."""

TABLES: dict[str, TableSchema] = {
    "types": schema_of("id string", *(f"c{place} {kind}" for place, kind in enumerate(TYPES))),
    **{f"key{place}": schema_of(f"id {kind}", "n int") for place, kind in enumerate(KEYS)},
    "Pairs.of-keys": schema_of("origin string;flight int", "dest string"),
    "notes": schema_of("id binary", "note binary", value_format="bytes"),
    "marker": schema_of("id string", "n bigint"),
    "few": schema_of("id string", "n int"),
    "large": schema_of("id string", "n int", "text string"),
    "sessions": schema_of("id string", "n int"),
    "emptied": schema_of("id string", "n int"),
    "dropped": schema_of("id string", "n int"),
    "evolved": schema_of("id string", "n int", "carrier string"),
}
"""The tables of the namespace ``history``."""
HIDDEN = (f"{DUE}.marker", f"{QUEUE}.marker")
"""Tables that are in no list."""
OWN_TABLES = dict.fromkeys((*HIDDEN, LOCAL, f"{LOCAL}.marker", "_quarantine"), TABLES["marker"])
"""Tables of tidegate's own in the namespace ``live``."""
EVOLVED = TableSchema(
    (Column("id", "string"),),
    (Column("n", "bigint"), Column("airline", "string", "carrier"), Column("since", "date")),
    JSON_RENAMED,
)
"""The schema of ``evolved`` from a later version on: a wider column, a renamed one, a new one."""
DROPPED_AGAIN = schema_of("id string", "m string")
"""The schema of ``dropped`` when it is made again."""

LARGE_ROWS = 1_600
"""The rows of ``large``, all in one key group: more than one page of any reader's scan."""
KEY_GROUPS = 8
TABLE_KEY_GROUPS = {"few": 2, "large": 1}
TTL_S = 3_600


def typed_rows() -> dict[str, Any]:
    """Return the rows of ``types``: two of values, one of nulls, one without any column."""
    rows: dict[str, Any] = {
        f"r{row}": {f"c{place}": values[row] for place, values in enumerate(TYPES.values())}
        for row in range(2)
    }
    return {**rows, "nulls": {f"c{place}": None for place in range(len(TYPES))}}


def key_rows() -> dict[str, dict[Any, Any]]:
    """Return the rows of the tables of every type of key."""
    return {
        f"key{place}": {key: {"n": number} for number, key in enumerate(keys)}
        for place, keys in enumerate(KEYS.values())
    }


def large_row(number: int, batch: int) -> dict[str, Any]:
    """Return a row of ``large``."""
    return {"n": number, "text": f"{batch} " + "x" * (number % 120)}


def large_key(number: int) -> str:
    """Return a key of ``large``."""
    return f"k{number:05}"


def history() -> list[dict[str, Any]]:
    """Return the batches of the namespace ``history``, in order.

    Each has ``rows``, and optionally ``starts``, ``drops``, ``schemas`` and ``later_s``, the time that passes
    before it.
    """
    large = range(LARGE_ROWS)
    ids = [f"id{number}" for number in range(40)]
    first = {
        "types": typed_rows(),
        **key_rows(),
        "Pairs.of-keys": {pair: {"dest": "IAH"} for pair in PAIRS},
        "notes": {b"\x00\x01": b"plain \xff", b"": b"", b"gone": b"1"},
        "marker": {one: {"n": 1} for one in ids},
        "few": {one: {"n": 1} for one in ids},
        "large": {large_key(number): large_row(number, 1) for number in large},
        "sessions": {one: {"n": 1} for one in ids},
        "emptied": {one: {"n": 1} for one in ids},
        "dropped": {one: {"n": 1} for one in ids},
        "evolved": {one: {"n": 2**31 - 1, "carrier": "UA"} for one in ids[:3]},
    }
    return [
        {"rows": first},
        {
            "rows": {
                "marker": {one: {"n": 2} for one in ids} | {ids[0]: None, "new": {"n": 2}},
                "notes": {b"gone": None},
                "large": {
                    large_key(number): None if number % 7 == 0 else large_row(number, 2)
                    for number in large
                    if number % 3 == 0
                },
                "few": {one: None if place % 2 else {"n": 2} for place, one in enumerate(ids)},
            }
        },
        {
            "rows": {
                "emptied": {one: {"n": 3} for one in ids[:2]},
                "large": {
                    large_key(number): large_row(number, 3) for number in range(LARGE_ROWS, LARGE_ROWS + 400)
                },
                "marker": {ids[0]: {"n": 3}},
            },
            "starts": {"emptied"},
        },
        {
            "rows": {"evolved": {"id1": {"n": 2**53 + 1, "carrier": "AA", "since": DAY}, "id9": {"n": 1}}},
            "drops": {"dropped"},
            "schemas": {"evolved": EVOLVED},
        },
        {
            "rows": {
                "dropped": {one: {"m": "again"} for one in ids[5:7]},
                "sessions": {"late": {"n": 5}, ids[0]: {"n": 5}},
                "marker": {one: {"n": 5} for one in ids[10:20]} | {ids[1]: None},
            },
            "schemas": {"dropped": DROPPED_AGAIN},
            "later_s": 2 * TTL_S,
        },
        {
            "rows": {
                "large": {
                    large_key(number): None if number % 5 == 0 else large_row(number, 6)
                    for number in range(0, LARGE_ROWS + 400, 2)
                },
                "few": {one: {"n": 6} for one in ids[::3]},
                "marker": {"new": None},
                "emptied": {ids[0]: None},
            }
        },
    ]


VERSIONS_KEPT = 3
"""The versions of ``history`` that stay readable once the older ones are retired, into the base."""
