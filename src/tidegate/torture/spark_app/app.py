"""A process with one Spark application, which runs one plan after another until a fault ends it.

A start of Spark takes longer than a cell. So an application serves the next cells too, while it lives.
"""

from __future__ import annotations

import os
import re
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pyspark
from pyspark.sql import SparkSession

from tidegate.base.decoders import json_decoder
from tidegate.torture.driver.driver import Plan
from tidegate.torture.history.files import Recorder
from tidegate.torture.history.repairs import mending_noted
from tidegate.torture.spark_app.job import HOME, LOCAL, Job, Ready
from tidegate.torture.spark_app.query import SparkTorture
from tidegate.torture.spark_app.strikes import DAEMON

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than a batch
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.shuffle.io.maxRetries": "1",  # an executor that was killed does not answer later
    "spark.shuffle.io.retryWait": "100ms",
    "spark.python.daemon.module": DAEMON,
}
"""The settings of the application: small JVMs, few partitions, and the daemon that does faults in tasks."""
TRIES = 4
"""How often a task is tried, as on a cluster: ``local[N]`` alone gives it one try."""


def main(connection: Connection, master: str, folder: str) -> int:
    """Start Spark, then run each job of the connection, and answer with its exit code, until it is closed."""
    spark = _session(master, Path(folder))
    spark.sparkContext.setLogLevel("ERROR")
    context: Any = spark.sparkContext
    ready = Ready(jvm=context._gateway.proc.pid, name=context.applicationId)  # noqa: SLF001
    connection.send_bytes(msgspec.json.encode(ready))
    own_output = os.dup(1)
    while True:
        try:
            job = json_decoder(Job).decode(connection.recv_bytes())
        except EOFError:
            break
        _print_to(os.open(job.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
        code = _run(spark, job.plan)
        _print_to(os.dup(own_output))
        connection.send_bytes(str(code).encode())
    spark.stop()
    return 0


def _session(master: str, folder: Path) -> SparkSession:
    """Start the application. Its files are in ``folder``, as far as they are on this machine."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    retried = re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{TRIES}]", master)
    builder = SparkSession.builder.master(retried).appName("tidegate torture")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if master.startswith("local"):
        os.environ["SPARK_HOME"] = str(_home(folder))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.local.dir", str(folder / LOCAL))
        if "PYTHONPATH" in os.environ:
            builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    return builder.getOrCreate()


def _home(folder: Path) -> Path:
    """Make a Spark home of links to the real one, in which local-cluster's executors have their files."""
    home = folder / HOME
    home.mkdir(parents=True)
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return home


def _print_to(file: int) -> None:
    sys.stdout.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _run(spark: SparkSession, plan: Plan) -> int:
    with (
        Recorder(Path(plan.folder), plan.name, role="driver") as recorder,
        mending_noted(recorder, plan.where.namespace) as mending,
    ):
        return SparkTorture(spark, plan, recorder, mending).run()
