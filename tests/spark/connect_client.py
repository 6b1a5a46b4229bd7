"""A client of a Spark Connect server that it starts beside itself: a JSON line for each thing that it tries.

connect_client.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from tidegate.spark import VersionedSink, register
from tidegate.testing.example import write_flights


def chain(error: BaseException | None) -> list[str]:
    """The error and what it came from, as ``Type: text``."""
    said = []
    while error is not None:
        said.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return said


def tried(name: str, ask: Callable[[], Any]) -> None:
    try:
        told = {"gave": ask()}
    except Exception as error:  # noqa: BLE001 - told
        told = {"refused": chain(error)}
    print(json.dumps({"tried": name, **told}), flush=True)


def main(folder: str) -> None:
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    write_flights(wal, store, alias="live")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    given = {"namespace": "live", "store": store, "table": "aircraft"}

    def read() -> Any:
        return [list(row) for row in spark.read.format("tidegate").options(**given).load().collect()]

    def one_key() -> Any:
        rows = spark.read.format("tidegate").options(**given, versionAsOf="1").load()
        return [list(row) for row in rows.where("tailnum = 'N24211'").collect()]

    def stream() -> Any:
        options = {**given, "namespace": "flights", "wal": wal, "startingVersion": "earliest"}
        changes = spark.readStream.format("tidegate").options(**options).load()
        writer = changes.writeStream.format("memory").queryName("changes").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{folder}/read").start()
        query.awaitTermination(300)
        return [list(row) for row in spark.sql("SELECT * FROM changes ORDER BY _version").collect()]

    sink = VersionedSink(namespace="written", wal=wal, store=store, table="aircraft", key="tailnum")
    rows = spark.createDataFrame([("N1", "UA")], "tailnum string, carrier string")

    def written(function: Any) -> Any:
        source = spark.readStream.format("rate").load()
        return source.writeStream.foreachBatch(function).option("checkpointLocation", f"{folder}/w").start()

    tried("read", read)
    tried("one key", one_key)
    tried("stream", stream)
    tried("load", lambda: sink.load({"aircraft": rows}, token="t"))
    tried("import", lambda: sink.import_folder(spark, folder))
    tried("foreachBatch", lambda: written(sink))
    tried("each", lambda: written(sink.each(lambda txn, rows: None)))  # noqa: ARG005
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
