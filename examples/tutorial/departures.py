"""A week of real departures as versions: python departures.py [days]"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidegate.demo.data import write_days
from tidegate.spark import Transaction, VersionedSink, configure

days = int(sys.argv[1]) if len(sys.argv) > 1 else 7

# One CSV file a day, as if each came in the night after.
write_days(Path("month"))
Path("input").mkdir(exist_ok=True)
for file in sorted(Path("month").glob("*.csv"))[:days]:
    if not (Path("input") / file.name).exists():
        os.link(file, Path("input") / file.name)


def write(txn: Transaction, flights: DataFrame) -> None:
    flown = flights.where("dep_time IS NOT NULL")
    txn.upsert(  # where each aircraft went last
        "aircraft",
        flown.where("tailnum IS NOT NULL").select("tailnum", "origin", "dest", "time_hour", "sched_dep_time"),
        key="tailnum",
        order_by=["time_hour", "sched_dep_time"],
    )
    counted = flown.selectExpr("origin", "1 AS departures", "dep_delay", "time_hour AS latest")
    txn.reduce(  # how many left each airport so far
        "airports", counted, "origin", {"departures": "sum", "dep_delay": "max", "latest": "max"}
    )


settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = configure(SparkSession.builder.master("local[2]").config(map=settings)).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
sink = VersionedSink(
    namespace=os.environ["TIDEGATE_NAMESPACE"],
    wal=os.environ["TIDEGATE_WAL"],
    store=os.environ["TIDEGATE_STORE"],
    keep_versions=7,
    allow_unsafe=True,  # for one broker and one Redis, whose disks are all there is
)
flights = (
    spark.readStream.schema(
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,"
        " sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,"
        " dest string, air_time int, distance int, hour int, minute int, time_hour timestamp"
    )
    .option("header", "true")
    .option("nullValue", "NA")
    .option("maxFilesPerTrigger", 1)  # a day a batch
    .csv("input")
)
query = (
    flights.writeStream.foreachBatch(sink.each(write))
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
sink.close()
if sink.recovered:
    print("recovered:", *sink.recovered)
spark.stop()
