"""``configure``: the settings that a Spark session needs for a sink."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tidegate.errors import ConfigError
from tidegate.spark.session.whole_retries import OPTIONS


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set what a session needs for a sink; return the builder. Call it before ``getOrCreate``.

    >>> spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()  # doctest: +SKIP

    - ``PYSPARK_PYTHON``, in the environment of this process: the workers run this Python, which has tidegate.
      A value that is set stays. On a cluster whose machines have Python at another path, set it to that path.
    - ``spark.sql.shuffle.orderIndependentChecksum.enabled`` and ``.enableFullRetryOnMismatch``, which are
      on by default from Spark 4.2: Spark compares the output of a map task that it runs again with the lost
      one, also for shuffles of your function before it calls the sink.

    A session that runs already keeps its Python. Repeatable.
    """
    if not hasattr(builder, "config"):
        raise ConfigError(
            f"configure takes a session's builder, and not {type(builder).__name__}: call"
            " configure(SparkSession.builder).getOrCreate()"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name in OPTIONS:
        builder = builder.config(name, "true")
    return builder
