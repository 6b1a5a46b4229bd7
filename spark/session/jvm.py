"""The one module that accesses the JVM behind PySpark.

Each call there is a round trip, and so is the release of each object from there. A small batch makes few of
both.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame

from tidegate.spark.errors import Py4JError
from tidegate.spark.session.releases import SparkContext, load_from_socket


def jvm_context(context: SparkContext) -> Any:
    """Return the SparkContext of the JVM."""
    return context._jsc.sc()  # noqa: SLF001 - PySpark has no other way


def jvm_view(context: SparkContext) -> Any:
    """Return the JVM's classes."""
    return context._jvm  # noqa: SLF001


def jvm_ints(context: SparkContext, numbers: list[int]) -> Any:
    """Build an ``int[]`` of the JVM."""
    array = context._gateway.new_array(context._jvm.int, len(numbers))  # type: ignore[union-attr] # noqa: SLF001
    for index, number in enumerate(numbers):
        array[index] = number
    return array


def java_rows(rows: DataFrame) -> Any:
    """Return the rows as a JavaRDD; with adaptive execution Spark runs all stages but the last one here."""
    return rows._jdf.toJavaRDD()  # noqa: SLF001


def internal_rows(rows: DataFrame) -> Any:
    """Return a JavaRDD of Spark's internal rows, each valid until the next one; else as ``java_rows``."""
    return rows._jdf.queryExecution().toRdd().toJavaRDD()  # noqa: SLF001


def reads_persisted(rows: DataFrame) -> bool:
    """Whether Spark would read a part of these rows from a persisted table, if they were read now.

    False with Spark Connect, which does not show that.
    """
    session = getattr(rows.sparkSession, "_jsparkSession", None)
    if session is None or session.sharedState().cacheManager().isEmpty():
        return False
    plan = rows.select("*")._jdf.queryExecution().withCachedData()  # noqa: SLF001 - that of rows would be kept
    return "InMemoryRelation" in plan.toString()


def executed(rows: DataFrame) -> Any:
    """Return the RDD of rows that a job has read, in the JVM."""
    return rows._jdf.queryExecution().toRdd()  # noqa: SLF001


def of_internal_rows(like: DataFrame, rows: Any) -> DataFrame:
    """Build a DataFrame of Spark's internal rows (an RDD), with the columns of ``like``."""
    session = like.sparkSession
    frame = session._jsparkSession.internalCreateDataFrame(rows, like._jdf.schema(), False)  # noqa: FBT003, SLF001
    return DataFrame(frame, session)


def column_seq(*columns: Column) -> Any:
    """Build the JVM's sequence of columns."""
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    return jvm.PythonUtils.toSeq([each._jc for each in columns])  # noqa: SLF001


def filtered(rows: DataFrame, condition: Column, columns: Any) -> DataFrame:
    """Build ``rows.filter(condition).select(...)``; a ``column_seq`` takes a call for each column."""
    frame = rows._jdf.filter(condition._jc).select(columns)  # noqa: SLF001
    return DataFrame(frame, rows.sparkSession)


LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"
"""The option by which Arrow batches have 64-bit lengths of texts."""


class NoArrowBatchesError(Exception):
    """This release of Spark has no such method, or the session's batches have 64-bit lengths."""


def _arrow_batches(rows: DataFrame, *arguments: object) -> Any:
    try:
        return rows._jdf.toArrowBatchRdd(*arguments)  # noqa: SLF001
    except Py4JError as error:
        if "toArrowBatchRdd" in str(error) and "does not exist" in str(error):
            raise NoArrowBatchesError from None
        raise


class ArrowBatches:
    """Rows as Arrow record batches of at most ``rows_max``, or of the session's size before Spark 4.2.

    With adaptive execution Spark runs all stages but the last one here. Raises: NoArrowBatchesError.
    """

    def __init__(self, rows: DataFrame, rows_max: int) -> None:
        try:
            self._batches = _arrow_batches(rows, rows_max, "UTC", True, False)  # noqa: FBT003
        except NoArrowBatchesError:
            if rows.sparkSession.conf.get(LARGE_TYPES, "false") != "false":
                raise
            # The batches of a time zone differ in their schema alone, which is not read.
            self._batches = _arrow_batches(rows)
        self.partitions = int(self._batches.getNumPartitions())

    @property
    def rdd(self) -> Any:
        """The RDD of the batches, in the JVM."""
        return self._batches

    def collect(self) -> list[bytes]:
        """Run it; return the batches of all partitions, in their order.

        They arrive through a socket: a call's result of more than 8 KiB would wait 40 ms (Nagle's algorithm
        against a delayed ACK). PySpark's ``RDD.collect`` does the same with more round trips and an
        inspection of the Python stack. It also treats an early end of the socket as the end of the rows;
        here the server confirms that all were sent.
        """
        collect_and_serve, soon = _serving(SparkContext._jvm)  # noqa: SLF001
        served = collect_and_serve(self._batches)
        loaded: Any = load_from_socket(served, NoOpSerializer())
        # Older releases of PySpark return the stream itself.
        with loaded if hasattr(loaded, "__enter__") else contextlib.nullcontext(loaded) as stream:
            batches = list(stream)
        served[SERVER].getResult(soon)
        return batches


SERVER, SERVED_S = 2, 60
"""The index of the server after port and secret; the seconds that it may take to end after its last byte."""


@functools.lru_cache(maxsize=1)
def _serving(jvm: Any) -> tuple[Any, Any]:
    """Return a JVM's function that runs an RDD and serves its results, and SERVED_S as its argument."""
    soon = jvm.scala.concurrent.duration.Duration.apply(f"{SERVED_S} s")
    return jvm.PythonRDD.collectAndServe, soon
