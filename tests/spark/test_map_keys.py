"""Dates and times that are keys of maps: the JVM writes them as Python does, in the form of values."""

import datetime

import pytest
from pyspark.sql import types

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
