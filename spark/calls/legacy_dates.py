"""Refusal of days that ``spark.sql.legacy.timeParserPolicy=LEGACY`` would write as other days.

Its calendar has no 5 to 14 October 1582, and it writes years before the first, and beyond 9999,
without their sign: two days would be one key, and readers would get another day than was written.
It writes all other days correctly.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.errors import BadRecordError
from tidegate.spark.calls.columns import column
from tidegate.spark.calls.nested import Leaf, holds, may_hold
from tidegate.spark.errors import told_parts

POLICY, LEGACY = "spark.sql.legacy.timeParserPolicy", "LEGACY"


class Days(NamedTuple):
    """A type of days. Those before ``first``, in the gap and from ``end`` on are written as others."""

    first: str
    gap: str
    gap_end: str
    end: str
    unit: str
    since_1970: Callable[[Column], Column]


TYPES: dict[type[types.DataType], Days] = {
    types.DateType: Days(
        *("DATE'0001-01-01'", "DATE'1582-10-05'", "DATE'1582-10-15'", "DATE'+10000-01-01'"),
        "day",
        functions.unix_date,
    ),
    types.TimestampType: Days(
        *("TIMESTAMP_LTZ'0001-01-01T00:00:00Z'", "TIMESTAMP_LTZ'1582-10-05T00:00:00Z'"),
        *("TIMESTAMP_LTZ'1582-10-15T00:00:00Z'", "TIMESTAMP_LTZ'+10000-01-01T00:00:00Z'"),
        "microsecond",
        functions.unix_micros,
    ),
}


def written_as_they_are(
    table: str, rows: DataFrame, fields: Sequence[types.StructField] | None = None
) -> DataFrame:
    """Add checks to the rows: under the policy LEGACY, a day that would be written as another fails
    the batch.

    Raises, while staging: BadRecordError that names table and column, and the day where it is not
    inside an array, a map or a struct. A map's keys are written as numbers, whatever the calendar. ``fields``
    are the columns of the rows; without them the rows are analysed.
    """
    fields = rows.schema.fields if fields is None else fields
    dated = [field for field in fields if may_hold(field.dataType, OTHERWISE)]
    if not dated or str(rows.sparkSession.conf.get(POLICY)).upper() != LEGACY:
        return rows
    names = collections.Counter(field.name for field in fields)
    # No call stores two columns of one name: Spark cannot tell them apart.
    looked_at = {field.name: _refused(table, field) for field in dated if names[field.name] == 1}
    return rows.withColumns(looked_at) if looked_at else rows


def _refused(table: str, field: types.StructField) -> Column:
    days, of = TYPES.get(type(field.dataType)), column(field.name)
    what = functions.lit("a day or a time inside of it")
    if days is not None:
        what = functions.concat(
            functions.lit(f"{days.unit} "), days.since_1970(of), functions.lit(" since 1970")
        )
    which = f"table {table}, column {field.name}: "
    why = (
        f" is another one in the calendar of {POLICY}={LEGACY}; nothing was decided; set it to CORRECTED for"
        " this query\n"
    )
    words = map(functions.lit, (*told_parts(BadRecordError), which))
    error = functions.raise_error(functions.concat(*words, what, functions.lit(why)))
    return functions.when(holds(field.dataType, of, OTHERWISE), error).otherwise(of)


def _is_otherwise(kind: types.DataType, at: Column) -> Column:
    first, gap, gap_end, end, *_ = TYPES[type(kind)]
    in_gap = (at >= functions.expr(gap)) & (at < functions.expr(gap_end))
    return (at < functions.expr(first)) | (at >= functions.expr(end)) | in_gap


OTHERWISE = Leaf(lambda kind: type(kind) in TYPES, _is_otherwise, keys=False)
"""Days that are written as other days."""
