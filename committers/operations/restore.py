"""The restore of an older version as an ordinary new one; on request its undone batches may be replayed.

The new version contains the changes after which readers see the older one again. It is staged, decided,
applied and published as any other; no visible version is taken back. docs/decisions/0034.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from tidegate.base.names import LOCAL
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.barrier import catalog_entry, value_bytes_max
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.restore_plan import RestorePlan
from tidegate.committers.repair.companions import add_queues
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.steps.append import append_rewound
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, stored_changes
from tidegate.errors import ConfigError, WalGapError
from tidegate.sinks.diff import changes_to, untouched
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.reads import GroupedRows, windows
from tidegate.sinks.rules.visible import no_schema
from tidegate.sinks.store import Store
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import RestoreOrigin, TableSchema
from tidegate.wal.staging.derived_guard import bases, with_derived
from tidegate.wal.staging.own_tables import owner_of, queues_of


class Restored(NamedTuple):
    """The result of a restore. ``made`` is None when an earlier run of it had made the version already.

    ``generation`` is the one in which undone batches may be replayed; None without ``reprocess``.
    ``lineage`` is the query that the namespace follows, which an adopt may have changed since the last batch
    that the restored state contains.
    """

    recovered: list[int]
    made: int | None
    visible: int
    generation: int | None
    lineage: str | None


def restore(coordinator: Coordinator, plan: RestorePlan) -> Restored:
    """Make a new version with the contents of the plan's, in every table. The driver is not open yet.

    With ``reprocess`` a Rewound follows: the batches after the restored state may be replayed from a
    checkpoint that was set back. Durable: on return it is in the log, and visible in the primary.
    Repeatable: the steps of an earlier run are not done again, by a plan that was made since. Raises:
    WalGapError: the log was trimmed since the plan was made; nothing was appended. ConfigError: a version was
    decided since. Otherwise as ``open_namespace`` and ``commit``.
    """
    version = plan.target.version
    with contextlib.ExitStack() as closing:
        rows = None
        if plan.first:  # before the open: if the log has a gap, nothing is appended
            rows = closing.enter_context(contextlib.closing(_read(coordinator, plan)))
        recovered = open_namespace(coordinator, None, command="restore")
        if coordinator.folded.last_version != plan.last:
            raise ConfigError(
                f"namespace {coordinator.endpoints.namespace} has version {coordinator.folded.last_version}"
                f" now, it was {plan.last} before: nothing was restored; run `tidegate restore --to"
                f" {version}` again, which shows the batches that would be undone"
            )
        made = _commit(coordinator, plan, rows) if plan.made is None else None
    command = f"tidegate restore --to {version} --reprocess"
    generation = append_rewound(coordinator.decisions, version, command) if plan.reprocess else None
    return Restored(recovered, made, coordinator.folded.last_version, generation, coordinator.folded.lineage)


def _read(coordinator: Coordinator, plan: RestorePlan) -> LogState:
    """Compute the rows of the plan's version from the log, in a temporary file."""
    versions = decided_versions(coordinator.log, coordinator.folded, plan.first)
    upto = itertools.takewhile(lambda decided: decided.version <= plan.target.version, versions)
    rows = LogState(coordinator.log.where)
    try:
        for table, batch in plan.base.rows() if plan.base else ():
            rows.put(table, [batch])
        rows.read(coordinator.log, upto)
    except WalGapError as error:
        raise WalGapError(
            f"{error}: the log was trimmed, so version {plan.target.version} cannot be restored any more."
            " Nothing was written"
        ) from error
    return rows


def _schema(store: Store, schemas: Mapping[str, TableSchema], table: str, entry: CatalogEntry) -> TableSchema:
    schema_id = entry.tables[table].schema_id
    if schema_id not in schemas:
        raise no_schema(store.where, entry.version, table, schema_id)
    return schemas[schema_id]


def _commit(coordinator: Coordinator, plan: RestorePlan, rows: LogState | None) -> int:
    """Commit the restored contents; return the new version.

    The versions that are read from the store are pinned until then: from the log come ``rows``.
    """
    store, version = coordinator.store, plan.target.version
    last = coordinator.folded.last_version
    with contextlib.ExitStack() as closing:
        pin = VersionPin(store, version if rows is None else last, coordinator.clock, "restore")
        closing.callback(pin.give_back)
        (now,) = store.catalog(last, last)
        old, schemas = _wanted(coordinator, plan, rows)
        queues, made = queues_of(old.tables).keys() - old.tables.keys(), rows
        if queues:  # of a copy, before the version that made it whole
            made = made or closing.enter_context(contextlib.closing(LogState(store.where)))
            of = rows or store, old, coordinator.folded.key_groups, value_bytes_max(coordinator)
            old, schemas = add_queues(made, *of), schemas | made.schemas
        # A local state begins without a table.
        drops = frozenset(name for name in now.tables if owner_of(name) == LOCAL) - old.tables.keys()
        # A derived table without rows beside a base with rows would be wrong: the next batch builds it.
        drops |= bases(now.tables).keys() - old.tables.keys()
        tables, replaced = _tables(coordinator, old, now, drops, queues), _replaced(schemas, old, now)
        comparable = {name: table_at for name, table_at in now.tables.items() if name not in replaced}
        compared = msgspec.structs.replace(now, tables=comparable)
        sources = {name: made if name in queues else rows for name in tables}

        def change(name: str, source: CatalogEntry) -> TableChange:
            expires = name in old.tables and bool(old.tables[name].expires)
            schema, stride = _schema(store, schemas, name, source), source.tables[name].apart
            return TableChange(schema, name in replaced, expires, stride, follows=True)

        barrier = StoredRowsBarrier(
            coordinator.log,
            RestoreOrigin(version),
            {name: change(name, _source(name, old, now)) for name in tables},
            lambda: _rows(coordinator, pin, sources, old, compared),
            coordinator.clock,
            drops=drops,
            source_offsets=(plan.kept.source_offsets if plan.kept else "") or old.source_offsets,
        )
        return commit(coordinator, barrier).version


def _wanted(
    coordinator: Coordinator, plan: RestorePlan, rows: LogState | None
) -> tuple[CatalogEntry, dict[str, TableSchema]]:
    """Return the entry of the version to restore, and the known schemas by their id."""
    store, schemas = coordinator.store, dict(coordinator.store.schemas())
    if rows is None or plan.manifest is None:
        (old,) = store.catalog(plan.target.version, plan.target.version)
        return old, schemas
    exported = [table.table_schema for table in plan.base.manifest.tables.values()] if plan.base else ()
    schemas |= {schema.schema_id: schema for schema in exported} | rows.schemas
    return catalog_entry(plan.target, plan.manifest), schemas


def _tables(
    coordinator: Coordinator,
    old: CatalogEntry,
    now: CatalogEntry,
    drops: AbstractSet[str],
    made: AbstractSet[str],
) -> tuple[str, ...]:
    """List the tables that are ``made``, or may differ in rows or in columns, and are not dropped."""
    same = {name for name in untouched(coordinator.store, old, now) if old.tables[name] == now.tables[name]}
    may_differ = {*now.tables, *old.tables} - (same - made)
    return tuple(sorted(with_derived(may_differ, {**now.tables, **old.tables}) - drops))


def _replaced(schemas: Mapping[str, TableSchema], old: CatalogEntry, now: CatalogEntry) -> frozenset[str]:
    """List the tables that were dropped and made again with another key: nothing of theirs is compared."""

    def key(entry: CatalogEntry, table: str) -> object:
        schema = schemas.get(entry.tables[table].schema_id)
        return schema and schema.key

    both = old.tables.keys() & now.tables.keys()
    return frozenset(name for name in both if key(old, name) != key(now, name))


def _source(table: str, old: CatalogEntry, now: CatalogEntry) -> CatalogEntry:
    """Return the entry whose columns the table gets: a table that was created later stays, without rows."""
    return old if table in old.tables else now


def _rows(
    coordinator: Coordinator,
    pin: VersionPin,
    sources: Mapping[str, LogState | None],
    old: CatalogEntry,
    now: CatalogEntry,
) -> Iterator[Any]:
    for step in windows(range(coordinator.folded.key_groups), len(sources)):
        pin.keep()
        changes = [
            GroupedRows(changes_to(coordinator.store, table, step, now, old, source))
            for table, source in sources.items()
        ]
        for group, (index, rows) in itertools.product(step, enumerate(changes)):
            for batch in rows.take(group):
                pin.keep()
                yield stored_changes(group, index, batch)
