"""Reads, loads and imports in a classic session or through Spark Connect: a JSON line for each.

    python connect_client.py FOLDER MASTER

MASTER: ``local[2]``, or the URL of a Spark Connect server. FOLDER has a namespace, and an export of it.
Nothing is registered before the reads: Spark finds the data source by the name of its module.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.spark_driver import session
from tidegate.spark import VersionedSink, configure, register

LOGIN = "s3cr3t"
LOGIN_OPTIONS = json.dumps({"timeout_s": 0.1, "password": LOGIN, "username": 'with "quotes"'})


def told(name: str, made: Callable[[], Any]) -> None:
    print(json.dumps({"name": name, "made": made()}), flush=True)


def main(folder: str, master: str) -> None:
    if master.startswith("sc:"):
        spark = configure(SparkSession.builder.remote(master)).getOrCreate()
    else:
        spark = session(master, "connect client")
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    given = {"namespace": "live", "store": store, "table": "aircraft"}

    def read() -> Any:
        return [list(row) for row in spark.read.format("tidegate").options(**given).load().collect()]

    def one_key() -> Any:
        rows = spark.read.format("tidegate").options(**given, versionAsOf="1").load()
        return [list(row) for row in rows.where("tailnum = 'N24211'").collect()]

    def registered() -> Any:
        register(spark)
        return read()

    def refused() -> Any:
        """A URL with a login: its request is in the event log of the server, and the login is not (T48)."""
        secret = {**given, "store": f"redis://default:{LOGIN}@127.0.0.1:1", "storeOptions": LOGIN_OPTIONS}
        changes = spark.readStream.format("tidegate").options(**secret, wal=f"kafka://u:{LOGIN}@127.0.0.1:1")
        with contextlib.suppress(PySparkException):  # a request that runs is logged, unlike one for a schema
            spark.read.format("tidegate").options(**secret).load().collect()
        with contextlib.suppress(PySparkException):
            writer = changes.load().writeStream.format("noop")
            writer.option("checkpointLocation", f"{folder}/refused").start()
        return True

    def stream() -> Any:
        options = {**given, "namespace": "flights", "wal": wal, "startingVersion": "earliest"}
        changes = spark.readStream.format("tidegate").options(**options).load()
        writer = changes.writeStream.format("memory").queryName("changes").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{folder}/read").start()
        query.awaitTermination(300)
        return [list(row) for row in spark.sql("SELECT * FROM changes ORDER BY _version").collect()]

    written = VersionedSink(namespace="written", wal=wal, store=store, parallelism=2)
    columns = "tailnum string, carrier string, seats int"
    rows = spark.createDataFrame([("N1", "UA", 1), ("N2", "AA", 2)], columns)

    def load() -> Any:
        return [written.load({"aircraft": rows}, token="t", key="tailnum") for _ in "12"]

    def renamed() -> Any:
        return written.rename_column("aircraft", "seats", "places")

    imported = VersionedSink(namespace="imported", wal=wal, store=store)
    told("read", read)
    told("one key", one_key)
    told("registered", registered)
    told("refused", refused)
    told("stream", stream)
    told("load", load)
    told("rename", renamed)
    told("import", lambda: [imported.import_folder(spark, f"{folder}/export") for _ in "12"])
    for sink in (written, imported):
        sink.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
