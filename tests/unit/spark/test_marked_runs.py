"""Runs of a shuffle are compared by the marks in the acks; sessions without Spark's checksums are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from tidegate.errors import ConfigError, ConflictError, FunctionError
from tidegate.spark.session.marked_runs import MarkedRuns
from tidegate.spark.session.whole_retries import OPTIONS
from tidegate.spark.state.output_rows import SEVERAL, RunMark, mark_value, refused_value, strip_marks
from tidegate.wal.staging.acks import Ack

ON = dict.fromkeys(OPTIONS, "true")


def session(version="4.3.0", **settings):
    given = {**ON, **{name.replace("__", "."): value for name, value in settings.items()}}

    def get(name, *default):
        return given.get(name, *default)

    return SimpleNamespace(version=version, conf=SimpleNamespace(get=get))


@pytest.mark.parametrize(
    "wrong, words",
    [
        (session("4.0.5"), "needs Spark 4.1 or newer on the server, and this is 4.0.5"),
        (
            session(spark__shuffle__manager="org.example.Remote"),
            "this server has spark.shuffle.manager=org.ex",
        ),
        (session(spark__shuffle__push__enabled="true"), "this server has spark.shuffle.push.enabled=true"),
        (session(**{OPTIONS[0]: "false"}), f"{OPTIONS[0]} is off"),
        (session(**{OPTIONS[1]: "false"}), f"{OPTIONS[1]} is off"),
    ],
)
def test_a_session_in_which_spark_may_compare_nothing_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=f"{words}.*Nothing was written"):
        MarkedRuns(wrong)


def acks(*runs):
    return [Ack("a", task, "", "", (), 0, runs=each) for task, each in enumerate(runs)], len(runs)


SAME = acks({"m": "1"}, {"m": "1"})


@pytest.mark.parametrize(
    "first",
    [acks({"m": "1"}, {"m": "2"}), acks({"m": "1"}, {}), acks({"m": SEVERAL}, {"m": SEVERAL})],
    ids=["two tasks read two runs", "one read none", "one read both"],
)
def test_a_version_that_mixes_two_runs_is_staged_again_i1(first):
    tries = [first, SAME]
    assert MarkedRuns(session("4.1.0")).staged(lambda: tries.pop(0)) is SAME
    with pytest.raises(ConflictError, match="in each of 3 stagings"):
        MarkedRuns(session()).staged(lambda: first)


@pytest.mark.parametrize("value", ["v", "r"])
def test_marks_are_taken_out_of_the_rows_and_two_runs_of_one_task_are_noticed(value):
    marks = {}
    rows = [b"+1", mark_value(RunMark("m/0", "1")), None, mark_value(RunMark("m/1", "2")), b"{}"]
    (left,) = strip_marks([pa.record_batch({value: pa.array(rows, pa.binary())})], marks, value)
    assert left[value].to_pylist() == [b"+1", None, b"{}"]
    assert {mark.task: mark.digest for mark in marks.values()} == {"m/0": "1", "m/1": "2"}
    again = pa.record_batch({value: pa.array([mark_value(RunMark("m/0", "3"))], pa.binary())})
    assert [batch.num_rows for batch in strip_marks([again], marks, value)] == [0]
    assert marks["m/0"].digest == SEVERAL


def test_a_refusal_keeps_its_class_and_words_whatever_the_function_said():
    """Red before: half a surrogate pair in a user's message became an error of no class, without the key."""
    mark = refused_value(FunctionError("table t, key 1: f raised ValueError: cut at \ud83d"))
    with pytest.raises(FunctionError, match=r"key 1: f raised ValueError: cut at \\ud83d"):
        list(strip_marks([pa.record_batch({"v": pa.array([mark], pa.binary())})], {}))
