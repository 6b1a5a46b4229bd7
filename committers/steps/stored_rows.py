"""A barrier of stored rows: one local task stages them as a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.base.clock import Clock
from tidegate.committers.barrier import NamedCall
from tidegate.wal.log import Log
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Ack, Origin, TableAt, TableSchema
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import StageSpec


def copied(
    tables: Mapping[str, TableAt],
    schemas: Mapping[str, TableSchema],
    strides: Mapping[str, int] | None = None,
) -> dict[str, TableChange]:
    """Return what a version does that gets rows of these tables; ``strides``: not theirs, but these."""
    return {
        name: TableChange(
            schema,
            expires=bool(tables[name].expires),
            stride=strides[name] if strides else tables[name].apart,
            follows=True,
        )
        for name, schema in sorted(schemas.items())
    }


@dataclasses.dataclass
class StoredRowsBarrier:
    """A barrier whose rows exist already, in the form in which they are stored.

    ``rows`` begins a stream of record batches of ``CHANGES``, sorted by key group, table and key; only the
    rows of one frame are in memory (I11). A row that does not fit is refused, and never quarantined.
    """

    log: Log
    origin: Origin
    tables: Mapping[str, TableChange]
    rows: Callable[[], Iterator[Any]]
    clock: Clock
    drops: frozenset[str] = frozenset()
    source_offsets: str = ""
    parallelism: int = 1
    needs_visible_base: bool = False
    state_calls: Mapping[str, str] = dataclasses.field(default_factory=dict)
    named_calls: Sequence[NamedCall] = ()

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Stage all rows. They do not depend on the state, so the base version is unused."""
        del base_version
        spec, task_attempt = msgspec.structs.replace(spec, stored=True), self.clock.new_id()
        return [stage_task(self.rows(), spec, self.log, task=0, task_attempt=task_attempt, host="local")]
