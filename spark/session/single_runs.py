"""The proof that no task of a version has read the outputs of two runs of a stage (I1).

Spark makes the output of a map task again when it is lost, even after some tasks have read it. Where the rows
differ then (a key from a function that is not deterministic), a row may be in two tasks, or in none, while
each task's ack is valid. Spark's tracker of map outputs, by which it schedules, keeps of each output the run
that was lost. So the question is asked of the runs themselves. No option of the session proves anything, and
no shuffle manager is trusted: an output may have a checksum of its rows, or none.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from tidegate.errors import ConfigError, ConflictError
from tidegate.spark.errors import Py4JError
from tidegate.spark.session.jvm import jvm_context, jvm_view
from tidegate.spark.session.releases import SparkContext
from tidegate.spark.session.runs import Runs


class SingleRuns(Runs):
    """The shuffles that one version reads, from before the call of the user's function on.

    Each is known by its number. The numbers of an application increase, so those of a time are a range, with
    the shuffles of other queries among them: one of these that is made again costs another staging at most.
    """

    def __init__(self, context: SparkContext) -> None:
        """Begin with the next shuffle. Raises: ConfigError: this release of Spark has no such tracker."""
        self._jvm, self._spark = jvm_view(context), jvm_context(context)
        self._rows: Any = None
        self._earlier: range | None = None
        """The shuffles of the user's function."""
        try:
            self._outputs, self._scheduler = _records_of(context)
            self._first = self._next()
        except Py4JError as error:
            raise _unknown(error) from error

    def _next(self) -> int:
        """Take a number, so that all numbers after it are of later shuffles."""
        return int(self._spark.newShuffleId())

    def read(self, rows: Any) -> None:
        self._rows = rows

    def _begin(self) -> None:
        self._begun = self._next()
        if self._earlier is None:
            self._earlier = range(self._first + 1, self._begun)

    def _is_single(self, result: Any) -> bool:
        again = self.made_again(self._earlier, self._begun)
        if again and again[0] < self._begun:
            raise ConflictError(
                "Spark made a shuffle again that was made before the version was staged, and nothing"
                " proves that its rows are the same: nothing was decided. Restart the query, which"
                " makes them again; if a table was persisted for all batches, unpersist it first"
            )
        return not again

    def made_again(self, earlier: range | None, since: int) -> list[int]:
        """Return the shuffles that were made again, sorted: of ``earlier``, after ``since``, of the rows."""
        try:
            numbers = {*(earlier or ()), *range(since + 1, self._next())} | self._of_rows()
            return sorted(filter(self._may_differ, numbers))
        except Py4JError as error:
            raise _unknown(error) from error

    def _of_rows(self) -> set[int]:
        """Return all shuffles that the rows come from, however long ago they were made."""
        numbers: set[int] = set()
        todo = [] if self._rows is None else [self._rows]
        while todo:
            shuffles = self._scheduler.getShuffleDependenciesAndResourceProfiles(todo.pop())._1()  # noqa: SLF001
            if shuffles.isEmpty():
                continue
            each = shuffles.iterator()
            while each.hasNext():
                shuffle = each.next()
                if (number := int(shuffle.shuffleId())) not in numbers:
                    numbers.add(number)
                    todo.append(shuffle.rdd())
        return numbers

    def _may_differ(self, number: int) -> bool:
        """Whether an output was lost, and no checksums prove that its second run was the same."""
        output = self._outputs.get(number)
        if output.isEmpty():
            return False  # no task has run
        shuffle = output.get()
        lost = shuffle.mapStatusesDeleted()
        text = str(self._jvm.scala.runtime.ScalaRunTime.stringOf(lost))  # one call, however many outputs
        if not re.search(r"[(\s](?!null\b)\w", text):
            return _differs(shuffle)
        return _differs(shuffle) or not any(map(_has_checksum, [*lost, *shuffle.mapStatuses()]))


@functools.lru_cache(maxsize=1)
def _records_of(context: SparkContext) -> tuple[Any, Any]:
    """Return the outputs of a context's shuffles by number, and its scheduler."""
    scheduler = jvm_context(context).dagScheduler()
    # py4j lists all methods of an object's class first, for which SparkEnv needs classes that are not there
    tracker = scheduler.getClass().getDeclaredField("mapOutputTracker")
    tracker.setAccessible(True)
    return tracker.get(scheduler).shuffleStatuses(), scheduler


def _differs(shuffle: Any) -> bool:
    """Whether Spark has found that an output which was made again differs from the one before."""
    try:
        return not shuffle.checksumMismatchIndices().isEmpty()
    except Py4JError:
        return False  # a release before 4.1 has no checksums of rows, so they will not prove anything


def _has_checksum(output: Any) -> bool:
    """Whether an output has a checksum of its rows. One without rows has none, whatever the manager."""
    try:
        return output is not None and bool(output.checksumValue())
    except Py4JError:
        return False


def _unknown(error: Py4JError) -> ConfigError:
    why = str(error).partition("\n")[0]
    return ConfigError(
        "this release of Spark does not show which outputs of shuffles were made again: without that a lost"
        f" shuffle could mix two runs in one version (I1), so nothing was decided ({why}). Use another"
        " release, such as 3.5 to 4.3"
    )
