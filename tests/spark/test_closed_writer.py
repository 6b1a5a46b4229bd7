"""A query that ends closes its writer, in a process of its own; one that is killed does not (I6, I10)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import done, refused
from tidegate.errors import LineageError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCHEMA = "k string, n int"
DEADLINE_S = 120


@pytest.fixture
def flights(stream):
    flights = stream(SCHEMA)
    flights.add([{"k": "a", "n": 1}])
    return flights


@pytest.fixture
def driver(flights):
    program = Path(__file__).with_name("waiting_driver.py")
    words = [sys.executable, program, flights.folder, json.dumps(flights.log.keywords)]
    with subprocess.Popen(
        [str(word) for word in words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def options(flights):
    return ["--store", flights.store, "--namespace", "flights", *map(str, flights.log.words)]


def second(flights):
    """A second query on the namespace, on a checkpoint of its own."""
    ran = flights.run(flights.sink(table="t", key="k"))
    shutil.rmtree(flights.checkpoint)
    assert isinstance(ran.error, LineageError)
    return str(ran.error)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sigterm", pytest.param("end", marks=pytest.mark.slow)])
def test_a_second_query_gets_the_living_writer_and_its_own_cause_after_that(flights, driver, way):
    message = second(flights)
    assert "has a living writer, and this query is a second one" in message
    assert f", process {driver.pid}, open since 20" in message
    assert "seems to be running" in refused(2, "recover", *options(flights))
    if way == "sigterm":
        driver.terminate()
        assert driver.wait(DEADLINE_S) == -signal.SIGTERM
    else:
        driver.communicate("\n", DEADLINE_S)
        assert driver.returncode == 0
    assert "closed" in done("status", *options(flights))
    done("recover", *options(flights))
    message = second(flights)
    assert "its checkpoint was deleted or replaced" in message
    assert "living writer" not in message


@pytest.mark.slow
def test_a_killed_driver_counts_as_running(flights, driver):
    driver.send_signal(signal.SIGKILL)
    driver.wait(DEADLINE_S)
    assert "A killed one counts as running for 30 s" in refused(2, "recover", *options(flights))
    (flights.folder / "first").rename(flights.checkpoint)
    flights.commit(flights.sink(table="t", key="k"), [{"k": "b", "n": 2}])  # the query itself starts at once
    assert flights.rows("t") == {"a": {"n": 1}, "b": {"n": 2}}
