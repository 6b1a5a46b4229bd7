"""The migration of all rows of a state to one version: each task reads key groups and writes them again.

The rows of the table replace the older ones, so afterwards no row has another state version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import BadRecordError, FunctionError
from tidegate.keys.groups import groups_of
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.store import Store
from tidegate.spark.errors import told
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.output_rows import OutputRows, refused_value
from tidegate.spark.state.udf_runner import Migrate, UdfRunner, check_size, migrated
from tidegate.values.decode import OlderState, values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.spec import StageSpec

ROWS_DDL = "key binary, value binary"


@dataclasses.dataclass(frozen=True)
class MigrationWork:
    """The parameters of a migration's tasks. Plain data that travels to tasks.

    ``start``, ``version`` and ``at_us`` are the table's start, the version that is read, and its time;
    ``before`` and ``after`` the schemas of its rows and of the new ones.
    """

    endpoints: Endpoints
    spec: StageSpec
    table: str
    start: int
    version: int
    at_us: int
    before: TableSchema
    after: TableSchema
    deadline_s: float
    parallelism: int


def migrated_rows(session: SparkSession, work: MigrationWork, migrate: Migrate) -> DataFrame:
    """Return all rows of the table in their new form, as they will be stored."""
    tasks = session.range(0, work.parallelism, 1, work.parallelism)
    return tasks.mapInArrow(told(_task(work, migrate)), ROWS_DDL)


def _task(work: MigrationWork, migrate: Migrate) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        where = work.endpoints
        store = shared_store(where.store, where.namespace, work.spec.namespace, where.store_options)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from migrate_groups(
                    work, migrate, store, groups_of(task, work.parallelism, work.spec.key_groups)
                )

    return run


def migrate_groups(work: MigrationWork, migrate: Migrate, store: Store, groups: range) -> Iterator[Any]:
    """Yield the rows of these key groups in their new form; each keeps its flags and its expiry.

    A state that the function refuses is one row with the refusal, at the end. Raises: errors of the store.
    """
    with Deadline(work.deadline_s) as deadline:
        calls = UdfRunner(work.spec, {}, OutputRows(0), deadline, lambda: None)
        scanned = store.scan_groups_stored(ReadAt(work.table, work.version, work.start), groups)
        for _, batch in scanned:
            try:
                yield _migrated(work, migrate, calls, batch)
            except (FunctionError, BadRecordError) as error:
                yield pa.record_batch({"key": [b""], "value": [refused_value(error)]})
                return


def _migrated(work: MigrationWork, migrate: Migrate, calls: UdfRunner, batch: Any) -> Any:
    old, encoder = values_of(work.before), encoder_of(work.after)
    keys: list[bytes] = []
    values: list[bytes] = []
    contents = payloads(batch["value"], work.at_us)
    for key, stored, content in zip(
        batch["key"].to_pylist(), batch["value"].to_pylist(), contents.to_pylist(), strict=True
    ):
        if content is None:  # deleted, or expired
            continue
        state = old.decode(content)
        version = state.state_version if isinstance(state, OlderState) else work.before.version
        if version != work.after.version:
            state = migrated(calls, partial(_where, work, key), migrate, state, version, work.after)
        if state is not None:
            new = encoder.encode(state)
            # Never quarantined: a state that is there would be lost to the function.
            check_size(partial(_where, work, key), "state", "value", new, work.spec)
            keys.append(key)
            values.append(stored[: len(stored) - len(content)] + new)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _where(work: MigrationWork, key: bytes) -> str:
    return f"table {work.table}, key {values_of(work.before).decode_key(key)!r}, migrate_state"
