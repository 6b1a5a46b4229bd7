"""What Spark had is what a reader gets, for every type that a value may have (T43)."""

from __future__ import annotations

import datetime
import decimal
import math

import pyarrow as pa
import pytest
from pyspark.sql import types

from tidegate.errors import ConfigError

pytestmark = pytest.mark.spark

D, UTC = decimal.Decimal, datetime.timezone.utc


def naive(*parts):
    return datetime.datetime(*parts, tzinfo=UTC).replace(tzinfo=None)


SCHEMA = """
    k int, s string, b binary, o boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f4 float, f8 double,
    d2 decimal(10,2), d18 decimal(38,18), d0 decimal(38,0), da date, ts timestamp, nt timestamp_ntz,
    ai array<int>, ab array<binary>, at array<struct<a:timestamp,b:decimal(5,3)>>,
    ms map<string,double>, mi map<bigint,date>, st struct<x:decimal(5,3),y:struct<z:binary,w:array<float>>>
"""
FULL = {
    "k": 1, "s": 'ü"\\/\n\u2028😀', "b": b"\x00\xff+-", "o": True, "i1": -128, "i2": 2**15 - 1,
    "i4": -(2**31), "i8": 2**63 - 1, "f4": 0.5, "f8": 1.7976931348623157e308,
    "d2": D("-99999999.99"), "d18": D("0.000000000000000001"), "d0": D("9" * 38),
    "da": datetime.date(1582, 10, 15), "ts": datetime.datetime(2013, 3, 31, 1, 59, 59, 999_999, UTC),
    "nt": naive(2013, 3, 31, 2, 30, 0, 1),
    "ai": [1, None, -1], "ab": [b"", None, b"\xff"],
    "at": [{"a": datetime.datetime(1969, 12, 31, 23, 59, 59, 1, UTC), "b": D("1.250")}, None],
    "ms": {"": 1.5, "a.b": None}, "mi": {-1: datetime.date(2000, 2, 29), 2**40: None},
    "st": {"x": D("-0.001"), "y": {"z": b"\x01", "w": [0.25, None]}},
}  # fmt: skip
SPECIAL = {"f4": math.inf, "f8": math.nan, "ms": {"n": -math.inf}, "s": "", "b": b"", "ai": [], "mi": {}}
ROWS = [
    FULL,
    {**dict.fromkeys(FULL), "k": 2},
    {**dict.fromkeys(FULL), **SPECIAL, "k": 3},
    {**FULL, "k": 4, "ts": datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
     "da": datetime.date(1, 1, 1), "nt": naive(1, 1, 1)},
]  # fmt: skip


def plain(value):
    """NaN equals NaN; maps as Arrow gives them (pairs) equal maps."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.skipif(pa.__version__.startswith("19."), reason="Arrow 19 gives no maps as Python's")
@pytest.mark.parametrize("zone,ansi", [("UTC", "true"), ("Asia/Kathmandu", "false")])
def test_every_type_comes_back_as_spark_had_it_whatever_the_session_says_t43(stream, conf, zone, ansi):
    conf("spark.sql.session.timeZone", zone)
    conf("spark.sql.ansi.enabled", ansi)
    conf("spark.sql.jsonGenerator.ignoreNullFields", "true")
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="wide", key="k"), ROWS)
    expected = {row["k"]: {n: v for n, v in row.items() if n != "k"} for row in ROWS}
    assert plain(flights.rows("wide")) == plain(expected)
    with flights.gate() as gate:
        arrow = gate.table("wide").scan().to_arrow()
    by_key = {row.pop("k"): row for row in arrow.to_pylist(maps_as_pydicts="strict")}
    assert plain(by_key) == plain(expected)


@pytest.mark.parametrize(
    "kind",
    [
        *("map<binary,int>", "map<array<int>,int>", "struct<a:map<struct<b:int>,int>>"),
        *(["variant"] if hasattr(types, "VariantType") else []),
    ],
)
def test_a_type_that_no_reader_could_read_is_refused_by_the_writer_t43(stream, kind):
    flights = stream("k int")
    flights.add([{"k": 1}])
    sink = flights.sink()

    def check(rows, batch_id):
        odd = rows.selectExpr("k", f"CAST(NULL AS {kind}) AS odd")
        with pytest.raises(ConfigError, match=r"table wide: column odd: .*cast"):
            sink.each(lambda txn, _: txn.upsert("wide", odd, key="k"))(rows, batch_id)
        assert flights.decided() == 0
        sink.each(lambda txn, _: txn.upsert("wide", rows, key="k"))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("wide") == {1: {}}
