"""Rows that differ when Spark makes them again, after some staging tasks have read them (I1, I2)."""

from __future__ import annotations

import pytest

import tidegate
from tidegate.errors import ConfigError
from tidegate.spark.session import whole_retries
from tidegate.spark.staging import job

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file"), pytest.mark.timeout(400)]
CALLS = ["upsert", "load", "replace", "reduce", "apply_changes", "update"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text('{"x": 1}')
    return tmp_path


def stored(folder):
    """Return the rows' numbers, sorted; None: no version was decided."""
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        if not gate.version():
            return None
        with gate.snapshot() as snapshot:
            return sorted(int(key.rpartition("-")[2]) for key, _ in snapshot.table("t").scan())


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", [CALLS[0], *(pytest.param(call, marks=pytest.mark.slow) for call in CALLS[1:])]
)
def test_no_version_mixes_two_runs_whatever_the_session_has_switched_off_i1(folder, drive, call):
    code, output = drive("replay_driver.py", folder, "chance", call, "on")
    assert (folder / "lost").exists(), output
    assert code == 1, output
    assert "indeterminate" in (folder / "driver.log").read_text(), output
    assert stored(folder) is None


@pytest.mark.slow
def test_the_same_rows_are_made_again_without_an_error_i2(folder, drive):
    code, output = drive("replay_driver.py", folder, "same", "upsert", "on")
    assert (folder / "lost").exists(), output
    assert code == 0, output
    assert stored(folder) == list(range(400))


@pytest.mark.slow
def test_without_the_check_rows_are_lost(folder, drive):
    """So the two tests above have a fault to notice."""
    code, output = drive("replay_driver.py", folder, "chance", "upsert", "off")
    assert code == 0, output
    assert stored(folder) != list(range(400))


@pytest.mark.both_ways
def test_a_spark_without_the_check_is_refused_before_anything_is_staged(stream, monkeypatch, conf):
    missing = f"{whole_retries.PREFIX}.ofAnotherRelease"
    conf(missing, "true")  # Spark takes it, and does nothing
    monkeypatch.setattr(whole_retries, "OPTIONS", (*whole_retries.OPTIONS, missing))
    monkeypatch.setattr(job, "whole_retries", whole_retries.WholeRetries())
    flights = stream("k string")
    flights.add([{"k": "a"}])
    ran = flights.run(flights.sink(table="t", key="k"))
    assert isinstance(ran.error, ConfigError)
    assert f"has no option {missing}" in str(ran.error)
    assert (flights.decided(), flights.segments()) == (0, 0)
