"""Apply on the executors: one Spark task per range of key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from pyspark import SparkContext

from tidegate.committers import apply
from tidegate.committers.apply import ApplyWork
from tidegate.options import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.spark.errors import typed
from tidegate.wal.open_log import shared_log

_encoder = msgspec.msgpack.Encoder()


def apply_on_executors(
    context: Callable[[], SparkContext], endpoints: Endpoints
) -> Callable[[Sequence[ApplyWork]], None]:
    """What a driver calls for a large version. ``context`` gives the SparkContext in use.

    Spark retries a failed task on another executor: any task can apply any change-log, it
    reads it from the log. A work's error is raised as itself.
    """

    def run(works: Sequence[ApplyWork]) -> None:
        parts = [_encoder.encode(work) for work in works]
        with typed():
            context().parallelize(parts, len(parts)).mapPartitions(_tasks(endpoints)).collect()

    return run


def _tasks(endpoints: Endpoints) -> Callable[[Iterable[bytes]], Iterable[int]]:
    def run(parts: Iterable[bytes]) -> Iterator[int]:
        log = shared_log(endpoints.wal, endpoints.namespace, endpoints.wal_options)
        store = shared_store(endpoints.store, endpoints.namespace, endpoints.store_options)
        for part in parts:
            work = msgspec.msgpack.decode(part, type=ApplyWork)
            apply.do(work, log, store)
            yield work.first_group

    return run
