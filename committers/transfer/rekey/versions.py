"""The versions of a copy: its first one from the source's store, each later one from the source's log."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.names import QUEUE
from tidegate.committers.apply.apply import chunks_of, plan, read_manifest
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.dealt_rows import TableRows, buckets_for, deal, sorted_rows
from tidegate.committers.exports.import_rows import strides_of
from tidegate.committers.opening.rekeyed import COPY, Source
from tidegate.committers.steps.append import append_adopted
from tidegate.committers.steps.fill_groups import live_rows
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, copied
from tidegate.committers.transfer.rekey.begin import last_batch, makes_again, state_at
from tidegate.errors import ConfigError, WalGapError
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.sinks.store import Store
from tidegate.wal.manifest import Manifest, TableChange
from tidegate.wal.record import BatchOrigin, DecidedVersion, Origin, RestoreOrigin, TableSchema

BUCKETS_OF_COPY = 256
"""The buckets of a copy: the size of its rows is not known before they are read."""


def is_queue(table: str) -> bool:
    """Whether a table is a queue of timeouts. Its rows name key groups, so they are made again in the end."""
    return table.startswith(f"{QUEUE}.")


@contextlib.contextmanager
def dealt(
    new: Coordinator,
    origin: Origin,
    tables: Mapping[str, TableChange],
    rows: Callable[[tuple[str, ...]], Iterable[TableRows]],
    buckets: int,
) -> Iterator[StoredRowsBarrier]:
    """Give a barrier of rows in any order, which are dealt into temporary files until it is committed.

    ``tables`` are sorted. ``rows`` yields them, by the index of their table in the list that it is given.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-rekey-") as beside:
        each = [table.stride for table in tables.values()]
        places = deal(rows(tuple(tables)), each, new.folded.key_groups, Path(beside), buckets)
        yield StoredRowsBarrier(
            new.log,
            origin,
            tables,
            lambda: sorted_rows(places),
            new.clock,
        )


def without_queues(entry: CatalogEntry) -> CatalogEntry:
    """Return the entry without the queues of timeouts, which the version that makes a copy whole brings."""
    shown = {table: table_at for table, table_at in entry.tables.items() if not is_queue(table)}
    return msgspec.structs.replace(entry, tables=shown)


def schemas_of(store: Store, entry: CatalogEntry) -> dict[str, TableSchema]:
    """Return the schema of each table of a version but the queues. Raises: ConfigError: one is missing."""
    shown = {table: table_at for table, table_at in entry.tables.items() if not is_queue(table)}
    return schemas_by_table(store.where, entry.version, shown, store.schemas())


def copy_rows(old: Coordinator, new: Coordinator, source: Source, pin: VersionPin) -> None:
    """Make the first version of the copy. The new driver is open, and has no version.

    Durable: on return it is in the log, and visible in the primary. Raises: as ``commit``.
    """
    batch = last_batch(state_at(old.log, source.version))
    entry = without_queues(*old.store.catalog(source.version, source.version))
    schemas, key_groups = schemas_of(old.store, entry), old.folded.key_groups
    strides = strides_of(new.folded, key_groups, entry.tables)
    tables = copied(entry.tables, schemas, strides)

    def rows(_: tuple[str, ...]) -> Iterator[TableRows]:
        for _group, index, live in live_rows(old.store, entry, key_groups, entry.decided_at_us, pin.keep):
            yield TableRows(index, live["key"], live["value"])

    buckets = min(BUCKETS_OF_COPY, new.folded.key_groups)
    with dealt(new, batch.origin if batch else source.first, tables, rows, buckets) as barrier:
        with contextlib.suppress(WalGapError):  # it was trimmed: readers find no source offsets, then
            manifest = None if batch is None else read_manifest(old.log, batch, rows=False)
            if manifest is not None:
                barrier.source_offsets, barrier.state_calls = manifest.source_offsets, _state_calls(manifest)
        _commit_unfinished(new, barrier)


def follow_version(old: Coordinator, new: Coordinator, decided: DecidedVersion) -> None:
    """Make the next version of the copy, of the changes of the source's next version. The driver is open.

    Durable: on return it is in the log, and visible in the primary. Raises: ConfigError: it is a restore, or
    a batch after one. WalGapError: the log no longer has its changes. Otherwise as ``commit``.
    """
    _take_lineage(old, new, decided)
    manifest = read_manifest(old.log, decided)
    written = {name: manifest.table_schemas[name] for name in manifest.tables if not is_queue(name)}
    schemas = {name: manifest.schemas[table_at.schema_id] for name, table_at in written.items()}
    tables = {
        name: table._replace(starts=written[name].start == decided.version)
        for name, table in copied(
            written, schemas, strides_of(new.folded, manifest.key_groups, written)
        ).items()
    }

    def rows(names: tuple[str, ...]) -> Iterator[TableRows]:
        for work in plan(manifest, decided, 1):
            for chunk in chunks_of(work, old.log):
                for run in chunk.runs:
                    if run.table in tables:
                        yield TableRows(names.index(run.table), run.keys, run.values)

    size = sum(frame.bytes for frame in manifest.frames())
    buckets = buckets_for(size, new.folded.key_groups)
    with dealt(new, decided.origin, tables, rows, buckets) as barrier:
        barrier.drops = frozenset(manifest.dropped or ()) & new.folded.tables.keys()
        barrier.source_offsets, barrier.state_calls = manifest.source_offsets, _state_calls(manifest)
        new.begun_us = max(new.begun_us, decided.decided_at_us - 1)  # no earlier, or expired rows come back
        _commit_unfinished(new, barrier)


class _CopyIds(Clock):
    """The clock of a driver whose attempts are those of an unfinished copy."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def new_id(self) -> str:
        return f"{COPY}{self._clock.new_id()}"


def _commit_unfinished(new: Coordinator, barrier: StoredRowsBarrier) -> None:
    """Commit a version of which the store alone shows that versions of the source are missing after it."""
    clock, new.clock = new.clock, _CopyIds(new.clock)
    try:
        commit(new, barrier)
    finally:
        new.clock = clock


def _state_calls(manifest: Manifest) -> dict[str, str]:
    return dict(manifest.state_calls or {})


def _take_lineage(old: Coordinator, new: Coordinator, decided: DecidedVersion) -> None:
    """Follow the checkpoint of the version's batch, if another one took over."""
    origin = decided.origin
    undone = isinstance(origin, BatchOrigin) and origin.generation != new.folded.generation
    if isinstance(origin, RestoreOrigin) or undone:
        raise ConfigError(
            f"the source was restored: its version {decided.version} cannot be followed;"
            f" {makes_again(old, new)}"
        )
    if isinstance(origin, BatchOrigin) and origin.lineage != new.folded.lineage:
        append_adopted(new.decisions, origin.lineage, "tidegate rekey")
