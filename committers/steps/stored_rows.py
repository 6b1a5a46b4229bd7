"""A barrier of stored rows: one local task stages them as a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.base.clock import Clock
from tidegate.committers.barrier import NamedCall
from tidegate.wal.log import Log
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Origin, TableAt, TableSchema
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import CHANGES, StageSpec

ROWS_AT_ONCE = 10_000


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


def stored_changes(group: int, index: int, rows: Any) -> Any:
    """Return stored rows of a key group, of the table of this index, as a record batch of ``CHANGES``."""
    places = [pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows) for number in (group, index)]
    return pa.record_batch([*places, rows["key"], rows["value"]], schema=CHANGES)


def changes_of_one_table(rows: Sequence[tuple[int, bytes, bytes]]) -> Iterator[Any]:
    """Yield rows of one table (key group, key, stored value) as record batches of ``CHANGES``."""
    for first in range(0, len(rows), ROWS_AT_ONCE):
        groups, keys, values = zip(*rows[first : first + ROWS_AT_ONCE], strict=True)
        columns = (groups, [0] * len(keys), keys, values)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGES, strict=True)]
        yield pa.record_batch(arrays, schema=CHANGES)


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
