"""Writes a folder's rows by spark-redis, once for each line on its input; prints the seconds each took.

Run by bench_redis_batch.py with the Python of an environment that has Spark 3.5, which spark-redis is
built for: PYTHON spark_redis_writer.py JARS REDIS_HOST REDIS_PORT; each input line is a path of Parquet.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable


def main() -> None:
    from pyspark.sql import SparkSession

    jars, host, port = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(str(jar) for jar in sorted(Path(jars).glob("*.jar"))))
        .config("spark.redis.host", host)
        .config("spark.redis.port", port)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    for line in sys.stdin:
        rows = spark.read.parquet(line.strip())
        started = time.perf_counter()
        (
            rows.write.format("org.apache.spark.sql.redis")
            .option("table", "c")
            .option("key.column", "key")
            .option("max.pipeline.size", 5_000)
            .mode("append")
            .save()
        )
        print(time.perf_counter() - started, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
