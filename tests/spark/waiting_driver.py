"""The driver of test_closed_writer.py: a query over files that runs until the process ends.

    python waiting_driver.py FOLDER LOG

LOG: the sink's keywords of the log, as JSON. It prints ``open`` after the first batch. A line on standard
input stops the query and ends the process normally, without a call of ``sink.close()``.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from support.spark_driver import session
from tidegate.spark import VersionedSink


def main(folder: Path, log: dict) -> None:
    spark = session("local[1]", "waiting driver")
    sink = VersionedSink(namespace="flights", store=f"sqlite://{folder}/store", table="t", key="k", **log)

    def each(rows, batch_id):
        sink(rows, batch_id)
        print("open", flush=True)

    query = (
        spark.readStream.schema("k string, n int")
        .parquet(str(folder / "input"))
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(folder / "first"))
        .start()
    )

    def stop():
        if sys.stdin.readline():
            query.stop()

    threading.Thread(target=stop, daemon=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
