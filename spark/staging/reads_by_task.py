"""State reads of the first stages of functions, on their way to the driver: an accumulator by task.

The tasks' rows cannot have them: a second run of a task finds another cache, and Spark has to find its rows
equal to those of the first run. Otherwise the loss of an executor would end the batch.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from pyspark.accumulators import Accumulator, AccumulatorParam

from tidegate.base.decoders import msgpack_decoder
from tidegate.spark.batch import is_connect
from tidegate.wal.staging.acks import StateReads

ReadsByTask = dict[tuple[str, str], bytes]
"""The reads in MessagePack, by attempt and by task of a call. A task's second run replaces its first."""

_lock = threading.Lock()
_made: dict[str, Accumulator[ReadsByTask]] = {}


class _Latest(AccumulatorParam[ReadsByTask]):
    """Of two values for one task the later one counts."""

    def zero(self, value: ReadsByTask) -> ReadsByTask:
        return {}

    def addInPlace(self, value1: ReadsByTask, value2: ReadsByTask) -> ReadsByTask:  # noqa: N802 - Spark's name
        value1.update(value2)
        return value1


def accumulator_of(session: Any) -> Accumulator[ReadsByTask] | None:
    """Return the application's accumulator. Spark keeps each one until the end, so there is only one.

    None: Spark Connect has no accumulators, so these reads are not counted.
    """
    if is_connect(session):
        return None
    context = session.sparkContext
    with _lock:
        application = str(context.applicationId)
        if application not in _made:
            _made.clear()  # of a stopped context
            _made[application] = context.accumulator({}, _Latest())
        return _made[application]


def note(reads: Accumulator[ReadsByTask], attempt: str, task: str, of_task: StateReads) -> None:
    """Note a task's reads, in the task."""
    reads.add({(attempt, task): msgspec.msgpack.encode(of_task)})


def take(session: Any, attempt: str) -> list[StateReads]:
    """Remove and return the reads of an attempt's tasks, in the driver."""
    reads = accumulator_of(session)
    if reads is None:
        return []
    noted = reads.value
    encoded = [noted.pop(key) for key in list(noted) if key[0] == attempt]
    return [msgpack_decoder(StateReads).decode(one) for one in encoded]
