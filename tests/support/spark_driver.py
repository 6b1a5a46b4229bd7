"""What drivers have in common that tests of Spark start as processes: a session, and a query over files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEAD_EXECUTORS = {
    "spark.shuffle.io.maxRetries": 1,  # an executor that was killed does not answer later
    "spark.shuffle.io.retryWait": "100ms",
}
"""Settings for drivers whose executors are killed."""


def session(master: str, name: str, settings: Mapping[str, Any] | None = None) -> SparkSession:
    """Start Spark with small JVMs and few partitions; ``settings`` come last."""
    from pyspark.sql import SparkSession

    from tidegate.spark import configure

    builder = (
        configure(SparkSession.builder)
        .master(master)
        .appName(f"tidegate {name}")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.executor.extraJavaOptions", SHORT_LIVED)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", 2)
    )
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run_query(
    spark: SparkSession, folder: Path, each: Callable[[Any, int], None], *, all_at_once: bool = False
) -> None:
    """Run a query over FOLDER/input to its end: a file is a batch, or ``all_at_once`` the first batch."""
    source = spark.readStream.schema("k string, n bigint")
    if not all_at_once:
        source = source.option("maxFilesPerTrigger", 1)
    query = (
        source.json(str(folder / "input"))
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
