"""A barrier made of plain rows, staged without Spark by the same code that runs in Spark tasks.

It is for tests, simulations and crash tests: a driver process starts in tenths of a second.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.base.clock import Clock
from tidegate.committers.barrier import NamedCall
from tidegate.keys.groups import groups_of, key_group
from tidegate.wal.log import Log
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import BatchOrigin, Column, Origin, TableSchema
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.value_flags import DELETE, VALUE

BYTES_SCHEMA = TableSchema((Column("key", "binary"),), (Column("value", "binary"),), "bytes")

KINDS = tuple(CHANGES.types)

Rows = Mapping[str, Mapping[bytes, bytes | None]]
"""By table, values by key; None deletes."""


@dataclasses.dataclass
class ArrowBarrier:
    """One batch of plain rows: ``rows`` by table, None for a delete.

    ``parallelism`` tasks stage it one after the other, in this process, into ``log``.
    """

    log: Log
    rows: Rows
    origin: Origin
    key_groups: int
    parallelism: int = 2
    source_offsets: str = ""
    starts: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    expiring: frozenset[str] = frozenset()
    strides: Mapping[str, int] = dataclasses.field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    batch_rows: int = 1000
    needs_visible_base: bool = False
    state_calls: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named_calls: Sequence[NamedCall] = ()
    clock: Clock = dataclasses.field(default_factory=Clock)

    @property
    def tables(self) -> dict[str, TableChange]:
        schemas = self.schemas
        return {
            name: TableChange(
                schemas[name],
                name in self.starts,
                name in self.expiring,
                self.strides.get(name, 0),
                name in self.derived,
            )
            for name in sorted(self.rows)
        }

    @property
    def schemas(self) -> dict[str, TableSchema]:
        return dict.fromkeys(self.rows, BYTES_SCHEMA)

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Stage all tasks in turn. ``base_version`` is not needed: plain rows read no state."""
        del base_version
        self.strides = dict(zip(spec.tables, spec.strides, strict=True))
        return [
            stage_task(
                self.batches(task),
                spec,
                self.log,
                task=task,
                task_attempt=self.clock.new_id(),
                host="local",
            )
            for task in range(self.parallelism)
        ]

    def batches(self, task: int) -> list[Any]:
        """Return one task's sorted changes, as Spark would hand them to it: record batches."""
        mine = self.changes(task)
        if not mine:
            return []
        columns = [
            pa.array(column, kind) for column, kind in zip(zip(*mine, strict=True), KINDS, strict=True)
        ]
        rows = pa.record_batch(columns, schema=CHANGES)
        return [rows.slice(first, self.batch_rows) for first in range(0, len(mine), self.batch_rows)]

    def changes(self, task: int) -> list[tuple[int, int, bytes, bytes]]:
        """Return the same as plain rows: key group, number of the table, key, stored value."""
        groups = groups_of(task, self.parallelism, self.key_groups)
        return [change for change in self._sorted_changes if change[0] in groups]

    @functools.cached_property
    def _sorted_changes(self) -> list[tuple[int, int, bytes, bytes]]:
        return sorted(
            (
                key_group(key, self.key_groups, self.strides.get(table, 1)),
                index,
                key,
                DELETE if value is None else VALUE + value,
            )
            for index, table in enumerate(self.tables)
            for key, value in self.rows[table].items()
        )


def batch(lineage: str, batch_id: int, fingerprint: str = "", generation: int = 0) -> BatchOrigin:
    """Return the origin of a micro-batch; its fingerprint is derived from its id unless given."""
    return BatchOrigin(lineage, generation, batch_id, fingerprint or f"offsets-{batch_id}")
