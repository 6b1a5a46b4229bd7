"""The columns of the cases: a type for each name, and the cells that its rows have."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

UTC = datetime.timezone.utc
PARIS = datetime.timezone(datetime.timedelta(hours=2))
D, day, moment = decimal.Decimal, datetime.date, datetime.datetime

KEYS: dict[str, tuple[str, list[Any]]] = {
    "ks": ("string", ["", "a", "b", "ä ", "c.d", "1:", None]),
    "kb": ("binary", [b"", b"\x00\xff", b"a", b"1:,", None]),
    "k1": ("tinyint", [-128, 0, 127]),
    "k2": ("smallint", [-(2**15), 7, None]),
    "k4": ("int", [-(2**31), 0, 12]),
    "k8": ("bigint", [2**63 - 1, -1, 0]),
    "kq": ("boolean", [True, False, None]),
    "kd": ("date", [day(1, 1, 1), day(1582, 10, 4), day(9999, 12, 31)]),
    "kt": ("timestamp_ltz", [moment(1, 1, 2, tzinfo=UTC), moment(2024, 3, 10, 7, 30, 0, 7, UTC), None]),
    "kw": ("timestamp_ntz", [moment(2024, 3, 10, 2, 30), moment(1582, 10, 4), moment(9999, 12, 31)]),
    "kn": ("decimal(20,10)", [D("0E-10"), D("-1E-7").quantize(D("1E-10")), D("12.5").quantize(D("1E-10"))]),
}
CELLS: dict[str, tuple[str, list[Any]]] = {
    "o": ("int", [0, 1, 2]),
    "z": ("string", ["", "a", "ä"]),
    "i": ("int", [None, -1, 0, 7]),
    "n": ("bigint", [None, 2**40, -5]),
    "t": ("tinyint", [None, -128, 127]),
    "d": ("double", [None, math.nan, -0.0, 0.0, -math.inf, math.inf, 1.5, 1e300]),
    "f": ("float", [None, math.nan, -0.0, 0.0, 0.25, -8.0]),
    "s": ("string", [None, "", "z", 'q"\\/', "ü\t\n\x1f\x7f", "😀\u2028", "\ufeff"]),
    "m": ("decimal(9,2)", [None, D("-1.50"), D("0.00"), D("-0.00"), D("20.00")]),
    "l": ("decimal(38,18)", [None, D("1E-18"), D("-7").quantize(D("1E-18")), D("0E-18")]),
    "at": ("timestamp_ltz", [None, moment(2024, 1, 1, 12, 0, 0, 1, UTC),
                             moment(2024, 1, 1, 14, 0, 0, 1, PARIS),
                             moment(1, 1, 2, tzinfo=UTC), moment(2024, 3, 10, 7, 30, tzinfo=UTC)]),
    "wall": ("timestamp_ntz", [None, moment(2024, 3, 10, 2, 30), moment(1582, 10, 4), moment(1, 1, 1)]),
    "y": ("date", [None, day(1, 1, 1), day(9999, 12, 31), day(1582, 10, 4)]),
    "b": ("binary", [None, b"", b"\x00\xff", b"a"]),
    "q": ("boolean", [None, False, True]),
    "a": ("array<int>", [None, [], [1, None], [1], [2]]),
    "u": ("struct<x:double,y:array<string>>",
          [None, {"x": -0.0, "y": ["", None]}, {"x": math.nan, "y": None}]),
    "h": ("map<string,timestamp_ltz>", [None, {}, {"a.b": moment(2024, 1, 1, tzinfo=UTC), 'q"': None}]),
    "v": ("map<bigint,decimal(5,3)>", [None, {-1: D("1.250"), 7: None}]),
    "w": ("array<struct<p:date,r:boolean>>", [None, [{"p": day(2000, 2, 29), "r": None}, None]]),
}  # fmt: skip
TYPES = {name: kind for columns in (KEYS, CELLS) for name, (kind, _) in columns.items()}
NESTED = ("a", "u", "h", "v", "w")
MAPS = ("h", "v")
ORDERS = [name for name in CELLS if name not in NESTED]
"""The columns that the driver can sort by, too."""
REDUCERS = {
    "i": ["sum", "min", "last", "count"],
    "n": ["count", "max", "first", "sum"],
    "d": ["min", "max", "first", "last"],
    "f": ["min", "max", "sum"],
    "at": ["min", "max"],
    "y": ["min", "last"],
    "s": ["min", "max", "first", "last"],
    "q": ["first", "last", "count", "min", "max"],
    "m": ["sum", "min", "max", "count"],
    "l": ["sum", "first", "last"],
    "b": ["min", "max", "first", "last"],
    "wall": ["min", "max", "last"],
    "h": ["count"],
}


def ddl(names: list[str]) -> str:
    """Return these columns as Spark's DDL."""
    return ", ".join(f"{name} {TYPES[name]}" for name in names)
