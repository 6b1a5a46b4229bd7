"""Days that ``spark.sql.legacy.timeParserPolicy=LEGACY`` would write as other ones are refused.

Its calendar has no 5 to 14 October 1582, and it writes years before the first, and beyond 9999, without their
sign: two days would be one key, and readers get another day than there was. All others it writes as they are.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.encoding import column
from tidegate.spark.nested import quoted, somewhere

POLICY, LEGACY = "spark.sql.legacy.timeParserPolicy", "LEGACY"


class Days(NamedTuple):
    """A type of days: the predicate for those that are written otherwise, and how one is told of."""

    otherwise: str
    unit: str
    since_1970: str


TYPES: dict[type[types.DataType], Days] = {
    types.DateType: Days(
        "{0} < DATE'0001-01-01' OR {0} > DATE'9999-12-31'"
        " OR {0} BETWEEN DATE'1582-10-05' AND DATE'1582-10-14'",
        "day",
        "unix_date",
    ),
    types.TimestampType: Days(
        "{0} < TIMESTAMP'0001-01-01T00:00:00Z' OR {0} > TIMESTAMP'9999-12-31T23:59:59.999999Z'"
        " OR ({0} >= TIMESTAMP'1582-10-05T00:00:00Z' AND {0} < TIMESTAMP'1582-10-15T00:00:00Z')",
        "microsecond",
        "unix_micros",
    ),
}


def written_as_they_are(table: str, rows: DataFrame) -> DataFrame:
    """The rows; where the session's policy is LEGACY, one of another day there fails the batch.

    While staging: BadRecordError names table and column, and the day where it is not inside of an array, a
    map or a struct. A map's keys are written as numbers, whatever the calendar.
    """
    dated = [field for field in rows.schema.fields if _otherwise(field.dataType, "")]
    if not dated or str(rows.sparkSession.conf.get(POLICY)).upper() != LEGACY:
        return rows
    names = collections.Counter(field.name for field in rows.schema.fields)
    # Two of one name are stored by no call: Spark cannot tell them apart.
    looked_at = {field.name: _refused(table, field) for field in dated if names[field.name] == 1}
    return rows.withColumns(looked_at) if looked_at else rows


def _refused(table: str, field: types.StructField) -> Column:
    name = quoted(field.name)
    days = TYPES.get(type(field.dataType))
    what = functions.lit("a day or a time inside of it")
    if days is not None:
        count = functions.expr(f"{days.since_1970}({name})")
        what = functions.concat(functions.lit(f"{days.unit} "), count, functions.lit(" since 1970"))
    which = f"tidegate.errors.BadRecordError: table {table}, column {field.name}: "
    why = (
        f" is another one in the calendar of {POLICY}={LEGACY}; nothing was decided; set it to CORRECTED for"
        " this query\n"
    )
    error = functions.raise_error(functions.concat(functions.lit(which), what, functions.lit(why)))
    return functions.when(functions.expr(_otherwise(field.dataType, name)), error).otherwise(
        column(field.name)
    )


def _otherwise(kind: types.DataType, at: str) -> str:
    """The predicate for what holds a day that is written otherwise; none for a type that has no days."""
    return somewhere(kind, at, _day, keys=False)


def _day(kind: types.DataType, at: str) -> str:
    days = TYPES.get(type(kind))
    return "" if days is None else days.otherwise.format(at)
