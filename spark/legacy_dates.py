"""Days that ``spark.sql.legacy.timeParserPolicy=LEGACY`` would write as other ones are refused.

Its calendar has no 5 to 14 October 1582, and it writes years before the first, and beyond 9999, without their
sign: two days would be one key, and readers get another day than there was. All others it writes as they are.
"""

from __future__ import annotations

import collections
import functools
import logging
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.encoding import column

logger = logging.getLogger("tidegate")

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

    While staging: BadRecordError names table, column and day. Days inside of arrays, maps and structs are not
    looked at: a warning says so.
    """
    dated = [field for field in rows.schema.fields if _holds_days(field.dataType)]
    if not dated or str(rows.sparkSession.conf.get(POLICY)).upper() != LEGACY:
        return rows
    names = collections.Counter(field.name for field in rows.schema.fields)
    looked_at = {}
    for field in dated:
        if type(field.dataType) not in TYPES:
            _warn(table, field.name)
        elif names[field.name] == 1:  # two of one name are stored by no call: Spark cannot tell them apart
            looked_at[field.name] = _refused(table, field)
    return rows.withColumns(looked_at) if looked_at else rows


def _refused(table: str, field: types.StructField) -> Column:
    days, name = TYPES[type(field.dataType)], "`" + field.name.replace("`", "``") + "`"
    which = f"tidegate.errors.BadRecordError: table {table}, column {field.name}: {days.unit} "
    why = (
        f" since 1970 is another one in the calendar of {POLICY}={LEGACY}; nothing was decided; set it to"
        " CORRECTED for this query\n"
    )
    count = functions.expr(f"{days.since_1970}({name})")
    error = functions.raise_error(functions.concat(functions.lit(which), count, functions.lit(why)))
    return functions.when(functions.expr(days.otherwise.format(name)), error).otherwise(column(field.name))


def _holds_days(kind: types.DataType) -> bool:
    match kind:
        case types.StructType():
            return any(_holds_days(field.dataType) for field in kind.fields)
        case types.ArrayType():
            return _holds_days(kind.elementType)
        case types.MapType():
            return _holds_days(kind.keyType) or _holds_days(kind.valueType)
        case _:
            return type(kind) in TYPES


@functools.lru_cache(maxsize=1_000)
def _warn(table: str, name: str) -> None:
    logger.warning(
        "table %s, column %s: with %s=%s days before the year 1, beyond 9999, and of 5 to 14 October 1582 are"
        " written as other ones, and inside of this column nobody looks for them: set it to CORRECTED",
        table,
        name,
        POLICY,
        LEGACY,
    )
