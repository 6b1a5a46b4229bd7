"""The schema of a batch is that of its rows, also where it was not read again."""

from __future__ import annotations

import importlib.util

import pytest
from pyspark.sql import types

from tidegate.spark.calls import column_cache
from tidegate.spark.calls.column_cache import use_cached_schema

pytestmark = pytest.mark.spark


@pytest.fixture
def read(monkeypatch):
    """How many schemas were read from the JVM."""
    counted = []
    plain = types._parse_datatype_json_string
    classic = "classic." if importlib.util.find_spec("pyspark.sql.classic") else ""  # from 4.0
    counting = f"pyspark.sql.{classic}dataframe._parse_datatype_json_string"
    monkeypatch.setattr(counting, lambda text: counted.append(1) or plain(text))
    column_cache._schemas.clear()
    return counted


def known(rows):
    use_cached_schema(rows)
    return rows.schema


def test_one_that_was_seen_before_is_not_read_again(spark, read):
    rows = spark.range(3).selectExpr("id", "string(id) as name")
    first, second = known(rows.filter("id > 0")), known(rows.filter("id > 1"))
    assert len(read) == 1
    assert first == second == rows.schema


OTHERS = [
    ["id", "string(id) as names"],
    ["id", "id as name"],
    ["string(id) as name", "id"],
    ["nullif(id, 1) as id", "string(id) as name"],
]
"""Another name, another type, another order; nulls may be."""


@pytest.mark.parametrize("columns", OTHERS)
def test_another_one_is_told_from_it(spark, read, columns):
    known(spark.range(3).selectExpr("id", "string(id) as name"))
    rows = spark.range(3).selectExpr(*columns)
    assert known(rows.filter("true")) == rows.schema
    assert len(read) == 3


def test_what_a_user_adds_to_a_schema_is_not_in_the_next_batch_s(spark, read):
    """StructType.add changes the one it is called on."""
    rows = spark.range(3)
    known(rows.filter("id > 0")).add("mine", "string")
    known(rows.filter("id > 1")).add("mine", "string")
    assert known(rows.filter("id > 2")).names == ["id"]
    assert len(read) == 1
