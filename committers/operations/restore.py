"""The restore of an older version as an ordinary new one; on request its undone batches may be replayed.

The new version contains the changes after which readers see the older one again. It is staged, decided,
applied and published as any other; no visible version is taken back. docs/decisions/0034.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tidegate.committers.background.pin import VersionPin
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.append import append_until_confirmed
from tidegate.committers.transfer.stored_rows import StoredRowsBarrier
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.reader.rules import offsets_at, offsets_stand_in
from tidegate.reader.table import no_schema
from tidegate.sinks.diff import changes_to, untouched
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.reads import GroupedRows, windows
from tidegate.sinks.store import Store
from tidegate.wal.fold import last_batch_within
from tidegate.wal.record import BatchOrigin, Folded, RestoreOrigin, Rewound, TableSchema
from tidegate.wal.staging.spec import CHANGES


class Restored(NamedTuple):
    """The result of a restore. ``made`` is None when an earlier run of it had made the version already.

    ``generation`` is the one in which undone batches may be replayed; None without ``reprocess``.
    ``kept`` is the last batch that the restored state contains: a checkpoint continues after it.
    ``undone`` are the versions of the batches that it does not contain, oldest first.
    ``lineage`` is the query that the namespace follows, which an adopt may have changed since ``kept``.
    """

    recovered: list[int]
    made: int | None
    visible: int
    generation: int | None
    kept: BatchOrigin | None
    undone: list[CatalogEntry]
    lineage: str | None


def restore(coordinator: Coordinator, version: int, *, reprocess: bool = False) -> Restored:
    """Make a new version with the contents of ``version``, in every table. The driver is not open yet.

    With ``reprocess`` a Rewound follows: the batches after the restored state may be replayed from a
    checkpoint that was set back. Durable: on return it is in the log, and visible in the primary.
    Repeatable: the steps of an earlier run are not done again. Raises: ConfigError: there is no such
    version, it is visible, or no query is followed. SnapshotExpiredError: it was retired. Both before
    anything is appended. Otherwise as ``open_namespace`` and ``commit``.
    """
    _refuse(coordinator, version, reprocess=reprocess)
    recovered = open_namespace(coordinator, None)
    made = None
    if not _is_restored(coordinator.folded, version):
        made = _commit(coordinator, version)
    generation = _rewind(coordinator.decisions, version) if reprocess else None
    visible = coordinator.folded.last_version
    kept = last_batch_within(coordinator.folded, visible)
    undone = batches_after(coordinator.store, version, visible)
    return Restored(recovered, made, visible, generation, kept, undone, coordinator.folded.lineage)


def batches_after(store: Store, version: int, visible: int) -> list[CatalogEntry]:
    """List the entries of the versions after ``version`` that batches of a query made, oldest first."""
    if version >= visible:
        return []
    entries = store.catalog(version + 1, visible)
    return [entry for entry in entries if isinstance(entry.origin, BatchOrigin)]


def _refuse(coordinator: Coordinator, version: int, *, reprocess: bool) -> None:
    state, pointer = coordinator.decisions.catch_up(), coordinator.store.pointer()
    name = coordinator.endpoints.namespace
    if state is None or version > pointer.visible or version < 1:
        raise ConfigError(
            f"there is no version {version} of namespace {name} to restore, the visible one is"
            f" {pointer.visible}: `tidegate history` lists those that can be read"
            if pointer.visible
            else f"namespace {name} has no visible version yet, so there is none to restore"
        )
    if reprocess and state.lineage is None:
        raise ConfigError(
            f"namespace {name} follows no query, so there is nothing to replay: leave --reprocess out"
        )
    if version < pointer.horizon:
        raise SnapshotExpiredError(
            f"version {version} of namespace {name} was retired, the oldest that can be restored is"
            f" {pointer.horizon}; keep_versions at the writer sets how many are kept"
        )
    if version == state.last_version or (not reprocess and _is_restored(state, version)):
        raise ConfigError(f"namespace {name} shows version {version} already: nothing was written")


def _schema(store: Store, schemas: Mapping[str, TableSchema], table: str, entry: CatalogEntry) -> TableSchema:
    schema_id = entry.tables[table].schema_id
    if schema_id not in schemas:
        raise no_schema(store.where, entry.version, table, schema_id)
    return schemas[schema_id]


def _is_restored(state: Folded, version: int) -> bool:
    return bool(state.recent) and state.recent[-1].origin == RestoreOrigin(version)


def _commit(coordinator: Coordinator, version: int) -> int:
    """Commit the restored contents; return the new version. The old one is pinned until then."""
    store = coordinator.store
    held = VersionPin(store, version, coordinator.clock, "restore")
    try:
        last = coordinator.folded.last_version
        (wanted,), (now,) = store.catalog(version, version), store.catalog(last, last)
        schemas = store.schemas()
        tables, replaced = _tables(coordinator, wanted, now), _replaced(schemas, wanted, now)
        kept = {name: at for name, at in now.tables.items() if name not in replaced}
        compared = msgspec.structs.replace(now, tables=kept)
        barrier = StoredRowsBarrier(
            coordinator.log,
            RestoreOrigin(version),
            tables,
            {name: _schema(store, schemas, name, _source(name, wanted, now)) for name in tables},
            lambda: _rows(coordinator, held, tables, wanted, compared),
            coordinator.clock,
            starts=replaced,
            expiring=frozenset(name for name, at in wanted.tables.items() if at.expires),
            source_offsets=offsets_at(store.catalog(*offsets_stand_in(version))),
        )
        return commit(coordinator, barrier).version
    finally:
        held.give_back()


def _tables(coordinator: Coordinator, wanted: CatalogEntry, now: CatalogEntry) -> tuple[str, ...]:
    """List the tables that may differ, in rows or in their columns."""
    same = {
        name for name in untouched(coordinator.store, wanted, now) if wanted.tables[name] == now.tables[name]
    }
    return tuple(sorted({*now.tables, *wanted.tables} - same))


def _replaced(schemas: Mapping[str, TableSchema], wanted: CatalogEntry, now: CatalogEntry) -> frozenset[str]:
    """List the tables that were dropped and made again with another key: nothing of theirs is compared."""

    def key(entry: CatalogEntry, table: str) -> object:
        schema = schemas.get(entry.tables[table].schema_id)
        return schema and schema.key

    both = wanted.tables.keys() & now.tables.keys()
    return frozenset(name for name in both if key(wanted, name) != key(now, name))


def _source(table: str, wanted: CatalogEntry, now: CatalogEntry) -> CatalogEntry:
    """Return the entry whose columns the table gets: a table that was created later stays, without rows."""
    return wanted if table in wanted.tables else now


def _rows(
    coordinator: Coordinator,
    held: VersionPin,
    tables: tuple[str, ...],
    wanted: CatalogEntry,
    now: CatalogEntry,
) -> Iterator[Any]:
    for step in windows(range(coordinator.folded.key_groups), len(tables)):
        held.keep()
        changes = [GroupedRows(changes_to(coordinator.store, table, step, now, wanted)) for table in tables]
        for group, (index, rows) in itertools.product(step, enumerate(changes)):
            for batch in rows.take(group):
                held.keep()
                places = [pa.repeat(pa.scalar(at, pa.int32()), batch.num_rows) for at in (group, index)]
                yield pa.record_batch([*places, batch["key"], batch["value"]], schema=CHANGES)


def _rewind(decisions: DecisionLog, version: int) -> int:
    """Append Rewound, unless batches may be replayed already; return the generation in which they may."""
    state = decisions.folded
    if state.last_batch is None or state.last_batch[0] < state.generation or state.lineage is None:
        return state.generation
    generation = state.generation + 1
    append_until_confirmed(
        decisions,
        Rewound(**decisions.header(), lineage=state.lineage, generation=generation),
        lambda state: state.generation >= generation,
        f"the batches that version {version} of namespace {decisions.namespace} lacks may be replayed",
        f"tidegate restore --to {version} --reprocess",
    )
    return generation
