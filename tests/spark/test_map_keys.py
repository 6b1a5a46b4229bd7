"""Dates and times that are keys of maps: the JVM writes them as Python does, in the form of values."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types

from tidegate.errors import BadRecordError
from tidegate.spark.calls.columns import json_value, schema_column
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.record import Column, TableSchema

TYPES = {
    "day": "map<date,int>",
    "at": "map<timestamp,int>",
    "wall": "map<timestamp_ntz,int>",
    "deep": "array<struct<x:int,m:map<timestamp,map<date,string>>>>",
    "plain": "map<string,struct<m:map<timestamp_ntz,date>>>",
}
ROWS = [
    (
        "map(DATE'0001-01-01', 1, DATE'1969-12-31', 2, DATE'9999-12-31', null)",
        # the hour that New York has twice, a time before 1970, the first and the last microsecond
        (
            "map(TIMESTAMP'2024-11-03T05:30:00.000001Z', 1, TIMESTAMP'2024-11-03T06:30:00Z', 2,"
            " TIMESTAMP'1969-12-31T23:59:59.999999Z', 3, TIMESTAMP'0001-01-01T00:00:00Z', 4,"
            " TIMESTAMP'9999-12-31T23:59:59.999999Z', 5)"
        ),
        # the hour that New York does not have
        "map(TIMESTAMP_NTZ'2024-03-10T02:30:00', 1, TIMESTAMP_NTZ'1883-01-01T00:00:00.5', null)",
        (
            "array(named_struct('x', 1, 'm', map(TIMESTAMP'2024-01-01T00:00:00Z', map(DATE'2024-02-29', 'y'))"
            "), null, named_struct('x', null, 'm', null))"
        ),
        (
            "map('2024', named_struct('m', map(TIMESTAMP_NTZ'2024-01-01T00:00:00', DATE'2024-01-01')),"
            " 'n', null)"
        ),
    ),
    ("map()", "null", "map()", "array()", "null"),
]


def selected(row):
    cells = zip(row, TYPES.items(), strict=True)
    return f"SELECT {', '.join(f'CAST({cell} AS {kind}) AS {name}' for cell, (name, kind) in cells)}"


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_the_jvm_writes_the_keys_of_maps_as_python_does(spark, zone):
    previous = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = [
            ", ".join(
                f"CAST({cell} AS {kind}) AS {name}"
                for cell, (name, kind) in zip(row, TYPES.items(), strict=True)
            )
            for row in ROWS
        ]
        frame = spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows))
        stored = [bytes(row[0]) for row in frame.select(json_value(frame.schema.fields)).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", previous)
    columns = tuple(schema_column(field) for field in frame.schema.fields)
    schema = TableSchema((Column("k", "int"),), columns)
    assert stored[0].startswith(b'+{"day":{"0001-01-01":1,"1969-12-31":2,"9999-12-31":null}')
    assert b'"2024-11-03T05:30:00.000001Z":1,"2024-11-03T06:30:00.000000Z":2' in stored[0]
    assert b'"2024-03-10T02:30:00.000000":1' in stored[0]
    for each in stored:
        value = values_of(schema).decode(each[1:])
        assert encoder_of(schema).encode(value) == each[1:]
    assert datetime.date(1969, 12, 31) in values_of(schema).decode(stored[0][1:])["day"]


def test_a_struct_that_is_null_stays_null(spark):
    frame = spark.sql("SELECT CAST(null AS struct<m:map<date,int>>) AS s")
    assert isinstance(frame.schema["s"].dataType, types.StructType)
    (row,) = frame.select(json_value(frame.schema.fields)).collect()
    assert bytes(row[0]) == b'+{"s":null}'


# -- keys that are there twice ---------------------------------------------------------------------------

KINDS = {
    "day": (pa.date32(), datetime.date(2024, 2, 29)),
    "at": (pa.timestamp("us", "UTC"), datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.timezone.utc)),
    "wall": (pa.timestamp("us"), datetime.datetime(2024, 2, 29, 1)),  # noqa: DTZ001 - it has no zone
}


@pytest.fixture
def twice(spark, tmp_path):
    """Rows of a Parquet file: in each but the first a map has a key twice, which Spark reads as it is."""
    columns = {"k": ["good", *KINDS, "deep"]}
    for name, (kind, key) in KINDS.items():
        maps = [[(key, 1), (key, 2)] if row == name else [(key, 1)] for row in columns["k"]]
        columns[name] = pa.array(maps, pa.map_(kind, pa.int32()))
    kind, key = KINDS["at"]
    deep = [[{"m": [(key, 1)] * (1 + (row == "deep"))}] for row in columns["k"]]
    columns["deep"] = pa.array(deep, pa.list_(pa.struct({"m": pa.map_(kind, pa.int32())})))
    pq.write_table(pa.table(columns), tmp_path / "twice.parquet")
    return spark.read.parquet(str(tmp_path / "twice.parquet"))


def test_a_map_with_a_key_twice_is_a_bad_row_that_names_its_column(stream, twice):
    """It ended the query with an error of Spark's that named neither table nor row."""
    flights = stream("k string")
    sink = flights.sink(on_bad_record="quarantine")
    flights.commit(sink.each(lambda txn, _: txn.upsert("t", twice, key="k")), [{"k": "-"}])
    assert list(flights.rows("t")) == ["good"]
    aside = {row["key"].decode(): row for row in flights.rows("_quarantine").values()}
    assert {key: row["cause"] for key, row in aside.items()} == {
        name: f"a map in column {name} of its value has a key twice" for name in (*KINDS, "deep")
    }
    assert b'{"19782":1,"19782":2}' in aside["day"]["value"]


@pytest.mark.slow  # three kinds of calls
def test_without_a_quarantine_a_map_with_a_key_twice_fails_its_batch(stream, twice):
    flights = stream("k string")
    flights.add([{"k": "-"}])
    sink, bad = flights.sink(), twice.where("k = 'at'").select("k", "at")

    def update(txn, _):
        txn.update("t", bad, "k", lambda *_: {"n": 1}, schema="n int")

    def local(txn, _):
        txn.local_state("s", bad, lambda _, rows, *__: [b"" for _ in rows])

    def check(rows, batch_id):
        for write in (lambda txn, _: txn.patch("t", bad, key="k"), update):
            with pytest.raises(
                BadRecordError, match=r"table t, key 'at': a map in column at .*has a key twice; .*keep one"
            ):
                sink.each(write)(rows, batch_id)
        with pytest.raises(
            BadRecordError, match=r"local state s.*: a row cannot be used: a map in column at"
        ):
            sink.each(local)(rows, batch_id)
        assert flights.decided() == 0
        sink.each(lambda txn, rows: txn.upsert("t", rows, key="k"))(rows, batch_id)

    flights.in_batch(check)


def test_the_first_and_the_last_microsecond_of_spark_are_bad_rows_too(stream):
    flights = stream("us bigint")
    sink = flights.sink(on_bad_record="quarantine")

    def write(txn, rows):
        txn.upsert("t", rows.selectExpr("us", "map(timestamp_micros(us), 1) AS at"), key="us")

    flights.commit(sink.each(write), [{"us": us} for us in (0, -(2**63), 2**63 - 1)])
    assert list(flights.rows("t")) == [0]
    assert len(flights.rows("_quarantine")) == 2
