"""The one place that reaches behind PySpark, into the JVM.

Each call there is a round trip, and so is the end of each object that came from there: a small batch is
made of few of both.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame
from pyspark.util import _load_from_socket


def jvm_context(context: SparkContext) -> Any:
    """The SparkContext of the JVM."""
    return context._jsc.sc()  # noqa: SLF001 - PySpark has no other way


def jvm_view(context: SparkContext) -> Any:
    """The JVM's classes."""
    return context._jvm  # noqa: SLF001


def jvm_ints(context: SparkContext, numbers: list[int]) -> Any:
    """An ``int[]`` of the JVM."""
    array = context._gateway.new_array(context._jvm.int, len(numbers))  # type: ignore[union-attr] # noqa: SLF001
    for at, number in enumerate(numbers):
        array[at] = number
    return array


def java_rows(rows: DataFrame) -> Any:
    """The rows as a JavaRDD; with adaptive execution Spark runs all but the last stage here."""
    return rows._jdf.toJavaRDD()  # noqa: SLF001


def internal_rows(rows: DataFrame) -> Any:
    """The rows as a JavaRDD of Spark's own, which are valid until the next one; else as ``java_rows``."""
    return rows._jdf.queryExecution().toRdd().toJavaRDD()  # noqa: SLF001


def of_internal_rows(like: DataFrame, rows: Any) -> DataFrame:
    """Spark's own rows (an RDD) as a DataFrame again, with the columns of ``like``."""
    session = like.sparkSession
    made = session._jsparkSession.internalCreateDataFrame(rows, like._jdf.schema(), False)  # noqa: FBT003, SLF001
    return DataFrame(made, session)


def column_seq(*columns: Column) -> Any:
    """Columns as the JVM takes several."""
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    return jvm.PythonUtils.toSeq([each._jc for each in columns])  # noqa: SLF001


def filtered(rows: DataFrame, condition: Column, columns: Any) -> DataFrame:
    """``rows.filter(condition).select(...)``; making a ``column_seq`` takes a call for each column."""
    made = rows._jdf.filter(condition._jc).select(columns)  # noqa: SLF001
    return DataFrame(made, rows.sparkSession)


class NoArrowBatchesError(Exception):
    """This release of Spark (4.1) does not give rows as Arrow batches of a chosen size and time zone."""


class ArrowBatches:
    """The rows as Arrow record batches, each with so many at most; with adaptive execution Spark runs all
    stages but the last one here. NoArrowBatchesError: not with this Spark.
    """

    def __init__(self, rows: DataFrame, rows_max: int) -> None:
        try:
            self._batches = rows._jdf.toArrowBatchRdd(rows_max, "UTC", True, False)  # noqa: FBT003, SLF001
        except Py4JError as error:
            if "toArrowBatchRdd" in str(error) and "does not exist" in str(error):
                raise NoArrowBatchesError from None
            raise
        self.partitions = int(self._batches.getNumPartitions())

    def collect(self) -> list[bytes]:
        """Run it; the batches of all partitions, in their order. They come through a socket: what a call
        brings waits 40 ms if it is longer than 8 KiB (Nagle's algorithm against a delayed ACK).

        As PySpark's ``RDD.collect``, which takes more round trips and a look at the Python stack, and takes
        an early end of the socket for the end of the rows: here who served them is asked whether all went.
        """
        collect_and_serve, soon = _serving(SparkContext._jvm)  # noqa: SLF001
        served = collect_and_serve(self._batches)
        found: Any = _load_from_socket(served, NoOpSerializer())
        # Older releases of PySpark give the stream itself.
        with found if hasattr(found, "__enter__") else contextlib.nullcontext(found) as stream:
            batches = list(stream)
        served[SERVER].getResult(soon)
        return batches


SERVER, SERVED_S = 2, 60
"""Where the server stands beside its port and secret; how long it may take to end behind its last byte."""


@functools.lru_cache(maxsize=1)
def _serving(jvm: Any) -> tuple[Any, Any]:
    """Of a JVM: the function that runs an RDD and serves what comes, and SERVED_S as it takes it."""
    soon = jvm.scala.concurrent.duration.Duration.apply(f"{SERVED_S} s")
    return jvm.PythonRDD.collectAndServe, soon
