"""A failed batch: the last line of console and log, ``sink.last_error``, ``cause`` for a supervisor."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions

from tidegate.errors import BadRecordError, ConfigError, CorruptError, FencedError, StoreUnavailableError
from tidegate.spark import cause, configure
from tidegate.spark.session import failures
from tidegate.spark.session.workers_python import _fit
from tidegate.spark.source.data_source import register
from tidegate.testing.example import write_flights

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
SCHEMA = "k string, n int"
GOOD, BAD = [{"k": "a", "n": 1}], [{"k": None, "n": 2}]
LINE = "batch 0 of flights failed: BadRecordError: "


@pytest.fixture
def flights(stream):
    return stream(SCHEMA)


@pytest.fixture
def lines(caplog, poll):
    """The lines at ERROR, once there are as many; a thread logs them after the query's end."""

    def read(count):
        poll(lambda: len(found()) >= count, "the line is logged")
        return found()

    def found():
        return [record for record in caplog.records if record.name == "tidegate"]

    with caplog.at_level(logging.ERROR, "tidegate"):
        yield read


def test_a_failed_batch_is_one_line_and_the_sinks_last_error_until_one_succeeds(flights, lines):
    sink = flights.sink(table="t", key="k")
    assert sink.last_error is None
    flights.add(BAD)
    ran = flights.run(sink)
    assert sink.last_error is ran.error
    assert isinstance(sink.last_error, BadRecordError)
    (record,) = lines(1)
    said = record.getMessage()
    assert said.startswith(LINE)
    assert str(ran.error) in said
    assert "next step" not in said  # the message has its own
    assert (record.namespace, record.batch) == ("flights", 0)

    found = cause(ran.exception)
    assert type(found) is BadRecordError
    assert str(found) == str(ran.error), "all of it came through Spark"

    flights.commit(lambda rows, batch: sink(rows.where("k IS NOT NULL"), batch), GOOD)
    assert sink.last_error is None
    assert len(lines(1)) == 1


WORDS = {
    "an error": "a\n    b\ntidegate.errors.StoreLostError: by a row",
    "a stop": "org.apache.spark.SparkException: Job 1 cancelled part of cancelled job group x",
    "a lost shuffle": "Job aborted due to stage failure: indeterminate",
    "a module": "a\nModuleNotFoundError: No module named 'tidegate'",
}


@pytest.mark.parametrize("rows_max", [0, 1_000], ids=["job", "driver"])
@pytest.mark.parametrize("words", WORDS)
def test_a_row_that_spark_quotes_is_no_error_of_tidegate(flights, words, rows_max):
    """A row chose the class: the sink opened the store again, or a supervisor restarted without end."""
    sink = flights.sink(table="t", key="k", driver_stage_max_rows=rows_max)
    flights.commit(sink, GOOD)
    flights.add([{"k": WORDS[words], "n": 2}])
    ran = flights.run(lambda rows, batch: sink(rows.selectExpr("k", "cast(k AS int) AS n"), batch))
    assert isinstance(sink.last_error, PySparkException)
    assert "CAST_INVALID_INPUT" in str(sink.last_error)
    assert sink.last_error is ran.error


def test_a_row_that_a_function_of_the_program_quotes_is_none_either(flights):
    """The text of Python's exceptions may have any row, which may look like a traceback."""
    text = "x\nTraceback (most recent call last):\n  File row\ntidegate.errors.FencedError: by a row"

    def parsed(value):
        raise ValueError(f"row: {value}")

    sink = flights.sink(table="t", key="k")
    flights.add([{"k": text, "n": 1}])
    as_number = functions.udf(parsed, "int")
    ran = flights.run(lambda rows, batch: sink(rows.withColumn("n", as_number("k")), batch))
    assert isinstance(sink.last_error, PySparkException)
    assert cause(ran.exception) is None


def test_an_error_of_a_table_that_the_batch_reads_is_typed(flights, tmp_path, spark):
    """A task of the data source raises it, and a supervisor restarts by its class."""
    place = f"sqlite://{tmp_path}/other"
    write_flights(f"file://{tmp_path}/other-wal", place)
    for shard in (tmp_path / "other" / "flights").glob("shard-*.sqlite"):
        with contextlib.closing(sqlite3.connect(shard)) as connection:
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE 't_%'"
            ).fetchall():
                connection.execute(f"UPDATE {table} SET value = x'3f'")
            connection.commit()
    register(spark)

    def write(txn, rows):
        other = (
            spark.read.format("tidegate").options(store=place, namespace="flights", table="airports").load()
        )
        txn.upsert("t", rows.crossJoin(other.select("departures")), key="k")

    sink = flights.sink()
    flights.add(GOOD)
    ran = flights.run(sink.each(write))
    assert isinstance(sink.last_error, CorruptError), sink.last_error
    assert type(cause(ran.exception)) is CorruptError
    assert not str(sink.last_error).startswith("[")


def test_a_foreign_error_is_a_line_too_and_has_no_cause(flights, lines):
    sink = flights.sink()

    def write(txn, rows):
        raise KeyError("mine")

    flights.add(GOOD)
    ran = flights.run(sink.each(write))
    assert isinstance(sink.last_error, KeyError)
    assert cause(ran.exception) is None
    assert lines(1)[0].getMessage().startswith("batch 0 of flights failed: KeyError: 'mine'; next step: mend")


def test_an_error_that_the_function_swallowed_is_a_line_after_a_while(flights, lines, monkeypatch):
    monkeypatch.setattr(failures, "QUERY_ENDS_S", 0.1)
    sink = flights.sink(table="t", key="k")

    def function(rows, batch):
        with pytest.raises(ConfigError):
            sink(rows.withColumnRenamed("k", "other"), batch)
        assert lines(1)[0].getMessage().startswith("batch 0 of flights failed: ConfigError: ")
        sink(rows, batch)

    flights.commit(function, GOOD)
    assert sink.last_error is None


def test_the_supervisor_of_the_page_starts_again_what_a_restart_can_mend(flights):
    """It has no sink at hand, only Spark's exception."""
    section = OPERATIONS.read_text().partition("## A supervisor")[2]
    names = {}
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], names)
    errors = [StoreUnavailableError("the store does not answer"), FencedError("driver 7 was fenced")]

    def start():
        sink = flights.sink()

        def write(txn, rows):
            raise errors.pop(0)

        return flights.start(sink.each(write))[0]

    flights.add(GOOD)
    with pytest.raises(StreamingQueryException) as ended:
        names["supervise"](start, pause_s=0.0)
    assert type(cause(ended.value)) is FencedError
    assert errors == []


@pytest.mark.slow  # it starts a JVM of its own
@pytest.mark.only_log("file")
def test_the_console_ends_with_the_line(flights):
    """A program of its own, that dies of the query's exception: the traceback is above."""
    flights.add(BAD)
    program = f"""
        from pyspark.sql import SparkSession
        from tidegate.spark import VersionedSink, configure
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        spark = configure(builder).getOrCreate()
        sink = VersionedSink(
            namespace="flights", wal="file://{flights.folder}/wal", store="{flights.store}",
            table="t", key="k",
        )
        rows = spark.readStream.schema("{SCHEMA}").parquet("{flights.input}").writeStream
        query = rows.foreachBatch(sink).option("checkpointLocation", "{flights.checkpoint}").start()
        query.awaitTermination()
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        cwd=flights.folder,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    said = done.stderr.splitlines()
    assert done.returncode == 1
    assert said[-1].startswith(f"tidegate: {LINE}batch 0, table t, "), done.stderr[-3000:]
    assert said[-1] == f"tidegate: {next(line for line in said if line.startswith(LINE))}", "as in the log"
    assert sum(LINE in line for line in said) == 2


def test_a_python_of_the_workers_without_tidegate_is_refused_before_the_query(flights, spark, monkeypatch):
    bare = flights.folder / "python3"
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare))
    with pytest.raises(ConfigError, match=f"would run {bare}.* has no module tidegate: call"):
        flights.sink(table="t", key="k")
    assert str(bare) not in _fit
    assert not (flights.folder / "store").exists()


def test_configure_leaves_a_python_that_is_set_and_sets_a_missing_one(spark, monkeypatch):
    builder = type(spark).Builder()
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert configure(builder) is builder
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    configure(builder)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert [value for name, value in builder._options.items() if "orderIndependentChecksum" in name] == [
        "true",
        "true",
    ]
