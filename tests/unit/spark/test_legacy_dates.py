"""Which columns are looked at where ``spark.sql.legacy.timeParserPolicy`` is LEGACY; no session."""

from __future__ import annotations

from unittest import mock

from tidegate.spark.calls import legacy_dates
from tidegate.spark.loads import DataFrame


def test_a_name_that_stands_twice_is_none_to_look_at():
    """``delete`` takes rows with such columns beside the key; Spark refuses to name one of them."""
    types = legacy_dates.types
    date = types.DateType()
    schema = types.StructType().add("k", types.IntegerType()).add("day", date).add("day", date)
    rows = mock.Mock(spec=DataFrame, schema=schema)
    rows.sparkSession.conf.get.return_value = "LEGACY"
    assert legacy_dates.written_as_they_are("t", rows) is rows
