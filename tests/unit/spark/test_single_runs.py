"""Shuffles that Spark made again are noticed by the tracker of map outputs, and staged again."""

from __future__ import annotations

import itertools

import pytest
from py4j.protocol import Py4JError

from tidegate.errors import ConfigError, ConflictError
from tidegate.spark.session import single_runs
from tidegate.spark.session.runs import STAGINGS_MAX, PySparkException
from tidegate.spark.session.single_runs import SingleRuns


class Seq(list):
    """A sequence or an Option of Scala, and its iterator."""

    def isEmpty(self):  # noqa: N802
        return not self

    def get(self):
        return self[0]

    def iterator(self):
        return Iterator(list(self))

    def _1(self):
        return self


class Iterator:
    def __init__(self, left):
        self._left = left

    def hasNext(self):  # noqa: N802
        return bool(self._left)

    def next(self):
        return self._left.pop(0)


class Output:
    def __init__(self, checksum):
        self._checksum = checksum

    def checksumValue(self):  # noqa: N802
        return self._checksum


class Shuffle:
    """A shuffle of a plan, and its outputs in the tracker: two, of which the second may have been lost."""

    def __init__(self, number, parents=(), lost=None, now=None, mismatches=()):
        self.number, self.parents, self.mismatches = number, parents, mismatches
        self.lost, self.now = [None, lost], [Output(0 if now is None else 7), now or Output(0)]

    def shuffleId(self):  # noqa: N802
        return self.number

    def rdd(self):
        return self

    def mapStatuses(self):  # noqa: N802
        return self.now

    def mapStatusesDeleted(self):  # noqa: N802
        return self.lost

    def checksumMismatchIndices(self):  # noqa: N802
        return Seq(self.mismatches)


class Spark:
    """The parts of the JVM that are asked: the numbers of shuffles, their outputs, the origin of rows."""

    def __init__(self):
        self.numbers, self.shuffles = itertools.count(), {}
        self.scala = self.runtime = self.ScalaRunTime = self

    def newShuffleId(self):  # noqa: N802
        return next(self.numbers)

    def made(self, **how):
        shuffle = Shuffle(self.newShuffleId(), **how)
        self.shuffles[shuffle.number] = shuffle
        return shuffle

    def get(self, number):
        return Seq([self.shuffles[number]] if number in self.shuffles else [])

    def getShuffleDependenciesAndResourceProfiles(self, rdd):  # noqa: N802
        return Seq(rdd.parents)

    def stringOf(self, outputs):  # noqa: N802
        return f"Array({', '.join('null' if each is None else 'o.a.s.Compressed@1f' for each in outputs)})"


@pytest.fixture
def spark(monkeypatch):
    spark = Spark()
    for name in ("jvm_context", "jvm_view"):
        monkeypatch.setattr(single_runs, name, lambda _: spark)
    monkeypatch.setattr(single_runs, "_records_of", lambda _: (spark, spark))
    return spark


def staged(spark, *tries, before=()):
    """Stage with these shuffles, by try; return how often it was. ``before``: the function of the user."""
    runs, count = SingleRuns(None), 0
    for how in before:
        spark.made(**how)

    def stage():
        nonlocal count
        count += 1
        outcome = tries[count - 1]
        if isinstance(outcome, Exception):
            raise outcome
        runs.read(Shuffle(-1, [spark.made(**how) for how in outcome]))
        return count

    return runs.staged(stage)


LOST = {"lost": Output(0)}
SAME = {"lost": Output(5), "now": Output(5)}
OTHER = {"lost": Output(5), "now": Output(6), "mismatches": [1]}
ABORTED = PySparkException(
    "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and retried"
)


def test_a_version_is_staged_once_if_nothing_was_lost_or_checksums_prove_the_same_rows(spark):
    assert staged(spark, []) == 1
    assert staged(spark, [{}, {}]) == 1
    assert staged(spark, [SAME, {}]) == 1


@pytest.mark.parametrize(
    "first",
    [[LOST], [{}, OTHER], [SAME, LOST], ABORTED],
    ids=["no checksums", "other rows", "one of two", "Spark ends the job"],
)
def test_a_shuffle_that_was_made_again_is_staged_again_i1(spark, first):
    assert staged(spark, first, []) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[CAST_INVALID_INPUT] The value 'indeterminate' of the type STRING cannot be cast to INT",
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: the value 'indeterminate'",
        "[X] Job aborted due to stage failure: Task 12 in stage 3.0 failed: 'Job 1 cancelled indeterminate'",
    ],
)
def test_a_row_that_spark_quotes_stages_nothing_again(spark, text):
    with pytest.raises(PySparkException, match="indeterminate"):
        staged(spark, PySparkException(text), [])


def test_an_output_without_rows_has_no_checksum_and_another_of_its_shuffle_proves_that_there_are_some(spark):
    empty = {"lost": Output(0), "now": Output(0)}
    assert staged(spark, [empty], []) == 1


def test_a_shuffle_that_other_queries_have_between_is_not_held_against_the_next_staging(spark):
    assert staged(spark, [LOST], [LOST], [{}]) == STAGINGS_MAX


@pytest.mark.parametrize("each", [[LOST], ABORTED], ids=["no checksums", "Spark ends the job"])
def test_the_stagings_are_bounded(spark, each):
    with pytest.raises(ConflictError, match="in each of 3 stagings"):
        staged(spark, *[each] * STAGINGS_MAX)


def test_a_shuffle_of_the_users_function_is_refused_at_once(spark):
    """Its rows may be in a table that the function has collected."""
    with pytest.raises(ConflictError, match="before the version was staged"):
        staged(spark, [{}], before=[LOST])


def test_a_shuffle_of_an_earlier_batch_counts_if_the_rows_come_from_it_alone(spark):
    """The shuffle below a table that was persisted for all batches; any other one is of no concern."""
    old, foreign = spark.made(**LOST), spark.made(**LOST)
    assert staged(spark, [{}]) == 1
    with pytest.raises(ConflictError, match="unpersist it first"):
        staged(spark, [{"parents": [Shuffle(foreign.number + 1, [old])]}])


def test_any_other_error_is_raised_as_it_is(spark):
    with pytest.raises(PySparkException, match="no such table"):
        staged(spark, PySparkException("no such table"))


def test_a_release_without_the_tracker_is_refused_before_the_function_is_called(spark, monkeypatch):
    def unknown(_):
        raise Py4JError("NoSuchFieldException: mapOutputTracker\n\tat java")

    monkeypatch.setattr(single_runs, "_records_of", unknown)
    with pytest.raises(ConfigError, match=r"does not show which outputs .*NoSuchFieldException: map"):
        SingleRuns(None)
