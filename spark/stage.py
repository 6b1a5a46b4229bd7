"""Stage: one Spark job turns a transaction's rows into frames in the log, and acks.

Rows become (key group, table, key, call, order, value), go to the task that owns their key
group, are sorted there by Spark (which spills by itself), and stream through Arrow batches
into frames. ``stage_task`` is the same code that a driver without Spark runs.
"""

from __future__ import annotations

import dataclasses
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions

from tidegate.options import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.spark.encoding import key_group, task_of
from tidegate.spark.errors import typed
from tidegate.spark.keyed_state import ReducedTable, merge_with
from tidegate.spark.transaction import Call
from tidegate.wal import quarantine
from tidegate.wal.bad_rows import StageSpec
from tidegate.wal.changelog import stage_task
from tidegate.wal.open_log import shared_log
from tidegate.wal.record import Ack, Origin, TableAt, TableSchema, decode_ack, encode_ack


@dataclasses.dataclass(frozen=True)
class SparkBarrier:
    """One micro-batch's transaction, ready to be staged. See ``committers.barrier.Barrier``.

    ``table_ats`` are the tables as they stand at the base version, for reading state.
    """

    calls: Sequence[Call]
    schemas: dict[str, TableSchema]
    origin: Origin
    source_offsets: str
    endpoints: Endpoints
    key_groups: int
    parallelism: int
    table_ats: dict[str, TableAt]
    starts: frozenset[str] = frozenset()

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables in index order; the quarantine, if any, is last: its rows end their key group."""
        return tuple(sorted(self.schemas, key=lambda name: (name == quarantine.TABLE, name)))

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Run the job; the acks Spark returns, one per task (only those count).

        A batch that Spark proves empty runs no task: its acks are empty too.
        """
        if not self.calls:
            return self._empty(spec)
        reduced = [
            ReducedTable(self.tables.index(call.table), call.table, self._start(call.table), call.reduced)
            for call in self.calls
            if call.kind == "reduce"
        ]
        task = _task(self.endpoints, spec, reduced, base_version)
        with typed():
            rows = self._rows().mapInArrow(task, "ack binary").collect()
        return [decode_ack(bytes(row[0])) for row in rows] or self._empty(spec)

    def _start(self, table: str) -> int:
        return self.table_ats[table].start if table in self.table_ats else 0

    def _empty(self, spec: StageSpec) -> list[Ack]:
        return [Ack(spec.attempt, task, "", "", (), 0) for task in range(self.parallelism)]

    def _rows(self) -> DataFrame:
        """All changes as (g, t, k, v), in the task that owns them, sorted."""
        parts = [self._part(number, call) for number, call in enumerate(self.calls)]
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        order = [name for name in rows.columns if name.startswith("o")]
        owner = task_of(functions.col("g"), self.parallelism, self.key_groups)
        return (
            rows.repartitionById(self.parallelism, owner)
            .sortWithinPartitions("g", "t", "k", "c", *order, "v")
            .select("g", "t", "k", "v")
        )

    def _part(self, number: int, call: Call) -> DataFrame:
        """One call's rows. Calls have order columns of their own: types may differ."""
        keyed = call.rows.select(
            call.key.alias("k"),
            functions.lit(self.tables.index(call.table)).alias("t"),
            functions.lit(number).alias("c"),
            *(column.alias(f"o{number}_{place}") for place, column in enumerate(call.order)),
            call.value.alias("v"),
        )
        return keyed.withColumn("g", key_group(functions.col("k"), self.key_groups))


def _task(
    endpoints: Endpoints, spec: StageSpec, reduced: Sequence[ReducedTable], base_version: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            msg = "a staging task runs inside a Spark task only"
            raise RuntimeError(msg)
        log = shared_log(endpoints.wal, endpoints.namespace, endpoints.wal_options)
        merge = None
        if reduced:
            store = shared_store(endpoints.store, endpoints.namespace, endpoints.store_options)
            merge = merge_with(store, reduced, base_version)
        ack = stage_task(
            batches,
            spec,
            log,
            task=context.partitionId(),
            task_attempt=f"{context.attemptNumber()}-{secrets.token_hex(4)}",
            host=socket.gethostname(),
            merge=merge,
        )
        yield pa.record_batch({"ack": pa.array([encode_ack(ack)], pa.binary())})

    return run
