"""The import of an export as one version of a namespace, in any kind of store, with any key groups."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from tidegate.base.names import UNLISTED
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.transfer.dealt_rows import BUCKET_BYTES, TableRows, buckets_for, deal, sorted_rows
from tidegate.committers.transfer.export_format import Manifest, batches_of, check_files, read_manifest
from tidegate.committers.transfer.stored_rows import StoredRowsBarrier
from tidegate.errors import ConfigError
from tidegate.values.decode import described
from tidegate.wal.fold import decided_for, once_key
from tidegate.wal.record import Folded, ImportOrigin, TableSchema
from tidegate.wal.staging import own_tables

logger = logging.getLogger("tidegate")


class HasStride(Protocol):
    """A table with a stride: of an export, or at a version."""

    @property
    def apart(self) -> int: ...


class Imported(NamedTuple):
    """The result of an import. ``version`` is None for an old import whose version the log no longer has."""

    version: int | None
    new: bool
    recovered: list[int]


def read_whole(folder: Path) -> tuple[Manifest, str]:
    """Read an export's manifest and digest, and compare every file.

    Raises: ConfigError, CorruptError: the export is incomplete or damaged.
    """
    manifest, digest = read_manifest(folder)
    if not manifest.tables:
        raise ConfigError(f"{folder} holds no table, so there is nothing to import")
    check_files(folder, manifest)
    return manifest, digest


def imported_before(state: Folded | None, token: str) -> Imported | None:
    """Return the earlier result of this import, or None."""
    origin = ImportOrigin(token)
    if state is None or once_key(origin) not in state.once:
        return None
    decided = decided_for(state, origin)
    return Imported(None if decided is None else decided.version, new=False, recovered=[])


def import_rows(
    coordinator: Coordinator, folder: Path, manifest: Manifest, token: str, bucket_bytes: int = BUCKET_BYTES
) -> Imported:
    """Make a version in which the exported tables hold exactly the exported rows; others stay as they are.

    The driver is not open yet; the namespace is created if it does not exist. Durable: on return the version
    is in the log, and visible in the primary. Repeatable: a second import with the same ``token`` writes
    nothing. Raises, with nothing staged: ConfigError: a table has another key than the namespace's, or the
    namespace has a local state that the export lacks. CorruptError: rows are not those of the manifest, or
    cannot be stored (see ``batches_of``). Otherwise as ``open_namespace`` and ``commit``.
    """
    recovered = open_namespace(coordinator, None, command="import")
    before = imported_before(coordinator.folded, token)
    if before is not None:
        return before._replace(recovered=recovered)
    _refuse_other_tables(coordinator, manifest)
    key_groups = coordinator.folded.key_groups
    strides = strides_of(coordinator.folded, manifest.key_groups, manifest.tables)
    tables = importable(manifest, KeyGroupsHere(key_groups, strides.__getitem__))
    strides = {name: strides[name] for name in tables}
    size = sum(file.bytes for name in tables for file in manifest.tables[name].files)
    buckets = buckets_for(size, key_groups, bucket_bytes)
    with tempfile.TemporaryDirectory(prefix="tidegate-import-") as beside:
        rows = _rows_of(folder, manifest, strides, key_groups)
        places = deal(rows, [strides[name] for name in tables], key_groups, Path(beside), buckets)
        barrier = StoredRowsBarrier(
            coordinator.log,
            ImportOrigin(token),
            tables,
            {name: manifest.tables[name].table_schema for name in tables},
            lambda: sorted_rows(places),
            coordinator.clock,
            starts=frozenset(tables),
            drops=own_tables.stale_timeouts(tables, coordinator.folded.tables),
            strides=strides,
            expiring=frozenset(name for name in tables if manifest.tables[name].expires),
        )
        return Imported(commit(coordinator, barrier).version, new=True, recovered=recovered)


class KeyGroupsHere(NamedTuple):
    """The key groups of the namespace that imports: their number, and the stride of each table."""

    number: int
    stride: Callable[[str], int]


def importable(manifest: Manifest, here: KeyGroupsHere) -> tuple[str, ...]:
    """Return the tables of an export that can be imported here, sorted.

    The due times of a state are by key group: where its key groups are others here they are left out, which
    is logged.
    """

    def fits(name: str) -> bool:
        table = name.partition(".")[2]
        strides = {manifest.tables[table].apart, here.stride(table)} if table in manifest.tables else {1}
        return not name.startswith(UNLISTED) or (here.number == manifest.key_groups and len(strides) == 1)

    every = tuple(sorted(manifest.tables))
    same = tuple(filter(fits, every))
    left_out = [name for name in every if name not in same]
    if left_out:
        logger.warning(
            "the export has %s key groups, this namespace %s: %s are left out, so the states of the export"
            " have no timeout here before their keys' next rows",
            manifest.key_groups,
            here.number if here.number != manifest.key_groups else "others for these tables",
            ", ".join(left_out),
        )
    return same


def strides_of(state: Folded, key_groups: int, tables: Mapping[str, HasStride]) -> dict[str, int]:
    """Return the stride of each table: its own here, or the one that keeps its number of key groups.

    ``key_groups`` and ``tables`` are those of the source: an export, or another namespace.
    """
    return {
        name: state.tables[name].apart
        if name in state.tables
        else kept_stride(table.apart, key_groups, state.key_groups)
        for name, table in tables.items()
    }


def kept_stride(stride: int, of_source: int, key_groups: int) -> int:
    """Return the stride that keeps a table's number of key groups among others of its namespace.

    ``stride`` is its own among ``of_source`` key groups. Where its number is no divisor of ``key_groups``, or
    it has no stride, it has as many as the namespace.

    >>> kept_stride(4, 128, 256), kept_stride(1, 128, 256), kept_stride(4, 128, 100)
    (8, 1, 1)
    """
    kept = of_source // stride if stride > 1 else key_groups
    return key_groups // kept if key_groups % kept == 0 else 1


def _refuse_other_tables(coordinator: Coordinator, manifest: Manifest) -> None:
    own_tables.check_local_states(manifest.tables, coordinator.folded.tables)
    schemas = coordinator.store.schemas()
    there = {
        name: found for name, at in coordinator.folded.tables.items() if (found := schemas.get(at.schema_id))
    }
    refuse_other_keys(there, {name: table.table_schema for name, table in manifest.tables.items()})


def refuse_other_keys(there: Mapping[str, TableSchema], given: Mapping[str, TableSchema]) -> None:
    """Refuse an export whose table has another key than the namespace's, or than its companion table.

    A companion is a table that tidegate itself writes for a table of the user. Raises: ConfigError.
    """
    for name, schema in sorted(given.items()):
        known = there.get(name)
        if known is not None and known.key != schema.key:
            has, brings = described(known.key), described(schema.key)
            raise ConfigError(
                f"table {name} has the key {has}, the export has {brings}: a table's key is fixed for life;"
                " import into a new namespace"
            )
        if own_tables.is_own(name) and (fault := own_tables.fault_of(name, schema, {**there, **given})):
            raise ConfigError(f"table {name}: {fault}; import into a new namespace")


def _rows_of(
    folder: Path, manifest: Manifest, strides: Mapping[str, int], key_groups: int
) -> Iterator[TableRows]:
    """Yield the exported rows of the tables with these strides; each table's index is its place there."""
    for index, name in enumerate(sorted(strides)):
        same = (key_groups, strides[name]) == (manifest.key_groups, manifest.tables[name].apart)
        for batch in batches_of(folder, name, manifest.tables[name], manifest.key_groups):
            groups = batch["key_group"] if same else None
            yield TableRows(index, batch["key"], batch["value"], groups)
