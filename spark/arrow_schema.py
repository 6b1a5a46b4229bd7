"""The Arrow schema of Spark rows, times in UTC, whichever PySpark is there."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

# That of 4.1 has no time zone to choose: times are UTC.
UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema_of(schema: StructType) -> Any:
    """The schema as Arrow has it."""
    return to_arrow_schema(schema, **UTC)  # type: ignore[arg-type]
