"""The recount of derived tables: from all rows of their base, to build them and to verify them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tidegate.base.names import DERIVE_TOKEN, own_token
from tidegate.committers.barrier import stride_here
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.steps.epoch import claim_epoch
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, changes_of_one_table
from tidegate.errors import CorruptError
from tidegate.keys.groups import key_group
from tidegate.sinks.records import CatalogEntry, Finding
from tidegate.sinks.rules.reads import windows
from tidegate.sinks.store import Store
from tidegate.values.decode import values_of
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Definition, LoadOrigin, TableSchema
from tidegate.wal.staging.derived import DerivedTable, Part, derived_table, in_units, scale_of
from tidegate.wal.staging.derived_guard import bases
from tidegate.wal.staging.derived_order import entry_of
from tidegate.wal.staging.validate import shown_key


def derived_at(
    entry: CatalogEntry, schemas: Mapping[str, TableSchema], name: str
) -> tuple[DerivedTable, TableSchema]:
    """Return a derived table of a version, and the schema of its base."""
    schema = schemas[entry.tables[name].schema_id]
    assert schema.derived, f"table {name} is derived"
    base = schemas[entry.tables[schema.derived.of].schema_id]
    return derived_table(name, schema.derived, base), base


def recount(table: DerivedTable, base: TableSchema, batches: Iterable[Any]) -> dict[bytes, Part]:
    """Return the totals of each group, from all rows of the base table, one by one.

    ``batches`` have the columns ``key`` and ``value``, as readers get them. In memory: the groups. Raises:
    CorruptError: a row cannot be read; errors of the batches.
    """
    groups: dict[bytes, Part] = {}
    for row in _rows(table, base, batches):
        values = [row[name] for name in table.definition.key]
        if None in values or (table.definition.where and row[table.definition.where] is not True):
            continue
        key, part = table.key_of(values), _part(table, row)
        groups[key] = groups[key].add(part) if key in groups else part
    return groups


def _part(table: DerivedTable, row: Mapping[str, Any]) -> Part:
    pairs, orders = [], []
    for name, is_summed in zip(table.definition.values, table.summed, strict=True):
        value = row[name]
        is_added = value is not None and is_summed
        number = in_units(value, scale_of(table.types[name])) if is_added else 0
        pairs.append((int(value is not None), number))
    for columns in table.definition.orders:
        cells = [row[name] for name in columns]
        orders.append({} if cells[0] is None else {entry_of(cells): 1})
    return Part(1, tuple(pairs), tuple(orders))


def _rows(table: DerivedTable, schema: TableSchema, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    values = values_of(schema)
    names = [column.name for column in schema.key]
    for batch in batches:
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            decoded = values.decode_key(key)
            of_key = decoded if len(names) > 1 else (decoded,)
            try:
                yield dict(zip(names, of_key, strict=True)) | values.decode(value)
            except CorruptError as error:
                raise CorruptError(
                    f"table {table.definition.of}, key {shown_key(key, schema.key_types)}: {error}; derived"
                    f" table {table.name} cannot be made of it: with a sink whose derived= leaves it out"
                    " delete that row, or write it again; then declare it again"
                ) from None


def _rows_at(store: Store, entry: CatalogEntry, table: str, key_groups: int) -> Iterator[Any]:
    """Yield the rows of a table at a version. Raises: SnapshotExpiredError."""
    for groups in windows(range(key_groups)):
        for _, batch in store.scan_groups(entry.read_at(table), groups):
            yield batch


def build_barrier(
    coordinator: Coordinator, schemas: Mapping[str, TableSchema], name: str, definition: Definition
) -> StoredRowsBarrier:
    """Return the barrier of the version that builds a derived table from all rows of its base.

    The last version is visible, and ``schemas`` are those of its tables. In memory: the groups. Raises:
    ConfigError: the definition does not fit. BadRecordError: a value of a group does not. FencedError: a
    newer driver runs, which may have retired that version.
    """
    claim_epoch(coordinator)
    store, state = coordinator.store, coordinator.folded
    base = schemas[definition.of]
    table = derived_table(name, definition, base)
    (entry,) = store.catalog(state.last_version, state.last_version)
    stride = stride_here(coordinator, name)
    groups = recount(table, base, _rows_at(store, entry, definition.of, state.key_groups))
    rows = sorted(
        (key_group(key, state.key_groups, stride), key, table.changed(key, None, part))
        for key, part in groups.items()
    )
    change = TableChange(table.schema, starts=True, follows=True)
    return _barrier(coordinator, name, {name: change}, lambda: changes_of_one_table(rows))


def drop_barrier(coordinator: Coordinator, name: str) -> StoredRowsBarrier:
    """Return the barrier of the version that drops a derived table."""
    return _barrier(coordinator, name, {}, lambda: iter(()))


def _barrier(
    coordinator: Coordinator,
    name: str,
    tables: Mapping[str, TableChange],
    rows: Callable[[], Iterator[Any]],
) -> StoredRowsBarrier:
    state = coordinator.folded
    return StoredRowsBarrier(
        coordinator.log,
        LoadOrigin(own_token(DERIVE_TOKEN, state.namespace, state.last_version, name)),
        tables,
        rows,
        coordinator.clock,
        drops=frozenset({name}) - {*tables},
    )


def differences(
    store: Store, entry: CatalogEntry, schemas: Mapping[str, TableSchema], key_groups: int
) -> Iterator[Finding]:
    """Compare each derived table of a readable version with the recount of its base."""
    for name in sorted(bases(entry.tables)):
        where = f"{store.where}, version {entry.version}, table {name}"
        table, base = derived_at(entry, schemas, name)
        groups = recount(table, base, _rows_at(store, entry, table.definition.of, key_groups))
        expected = {key: table.changed(key, None, part)[1:] for key, part in groups.items()}
        for batch in _rows_at(store, entry, name, key_groups):
            for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                recounted = expected.pop(key, None)
                if recounted != value:
                    shown = "no such group" if recounted is None else recounted.decode()
                    yield Finding(f"{where}, key {key!r}", shown, value.decode(errors="replace"))
        for key, recounted in expected.items():
            yield Finding(f"{where}, key {key!r}", recounted.decode(), "no row")
