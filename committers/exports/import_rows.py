"""The import of an export as one version of a namespace, in any kind of store, with any key groups."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidegate.base.names import QUEUE
from tidegate.committers.barrier import value_bytes_max
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.dealt_rows import BUCKET_BYTES, TableRows, buckets_for, deal, sorted_rows
from tidegate.committers.exports.export_format import Manifest, batches_of, check_files, read_manifest
from tidegate.committers.exports.export_rows import NEXT_STEP, check_stored_bytes, stored_bytes_max
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.rekeyed import undone_words
from tidegate.committers.repair.companions import queue_of_rows
from tidegate.committers.repair.derive import recount
from tidegate.committers.steps.stored_rows import ROWS_AT_ONCE, StoredRowsBarrier
from tidegate.errors import ConfigError, CorruptError
from tidegate.sinks.rules.layout import payloads
from tidegate.values.decode import described
from tidegate.wal.fold import decided_for, once_key
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Definition, Folded, ImportOrigin, TableSchema
from tidegate.wal.staging import own_tables
from tidegate.wal.staging.derived import DerivedTable, derived_table


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
    """Return the earlier result of this import, or None. Raises: ConfigError: a restore has undone it."""
    origin = ImportOrigin(token)
    if state is None or once_key(origin) not in state.once:
        return None
    if undone := undone_words(state, origin):
        raise ConfigError(
            f"it was imported as {undone}: nothing was written. To import it again, give another --token TEXT"
        )
    decided = decided_for(state, origin)
    return Imported(None if decided is None else decided.version, new=False, recovered=[])


def stored_bytes(folder: Path, manifest: Manifest, bytes_max: int | None) -> int:
    """Read and check all rows; return their bytes, decompressed. Nothing is written.

    Raises: CorruptError: rows are not those of the manifest, cannot be stored (see ``batches_of``), or take
    more than ``bytes_max``, by default some hundred times the bytes of their files.
    """
    files = sum(file.bytes for table in manifest.tables.values() for file in table.files)
    most, stored = stored_bytes_max(files) if bytes_max is None else bytes_max, 0
    for name, table in manifest.tables.items():
        for batch in batches_of(folder, name, table, manifest.key_groups):
            stored += batch["key"].nbytes + batch["value"].nbytes
            check_stored_bytes(folder, stored, most)
    return stored


def import_rows(
    coordinator: Coordinator,
    folder: Path,
    manifest: Manifest,
    token: str,
    bucket_bytes: int = BUCKET_BYTES,
    bytes_max: int | None = None,
) -> Imported:
    """Make a version in which the exported tables hold exactly the exported rows; others stay as they are.

    The driver is not open yet; the namespace is created if it does not exist. Durable: on return the version
    is in the log, and visible in the primary. Repeatable: a second import with the same ``token`` writes
    nothing. Raises, with nothing staged: ConfigError: a table has another key than the namespace's, or the
    namespace has a local state that the export lacks. CorruptError: rows are not those of the manifest, or
    cannot be stored, or take more than ``bytes_max`` (see ``stored_bytes``): then not even the namespace was
    created. Otherwise as ``open_namespace`` and ``commit``.
    """
    size, derived = stored_bytes(folder, manifest, bytes_max), _derived(folder, manifest)
    recovered = open_namespace(coordinator, None, command="import")
    before = imported_before(coordinator.folded, token)
    if before is not None:
        return before._replace(recovered=recovered)
    _refuse_other_tables(coordinator, manifest)
    key_groups = coordinator.folded.key_groups
    strides = imported_strides(coordinator.folded, manifest)
    tables, queues = {}, own_tables.queues_of(strides)
    for name, stride in sorted(strides.items()):
        schema = own_tables.QUEUE_SCHEMA if name in queues else manifest.tables[name].table_schema
        expires = name in manifest.tables and manifest.tables[name].expires
        tables[name] = TableChange(
            schema, starts=True, expires=expires, stride=stride, follows=name in derived
        )
    buckets = buckets_for(size, key_groups, bucket_bytes)
    with tempfile.TemporaryDirectory(prefix="tidegate-import-") as beside:
        dealt = {}
        for queue, dues in queues.items():
            rows = _rows_of(folder, manifest, dues, 0, (key_groups, strides[dues]))
            (apart := Path(beside) / queue).mkdir()
            dealt[queue] = deal(rows, [strides[dues]], key_groups, apart, buckets)

        def rows_of(name: str, index: int) -> Iterator[TableRows]:
            if name in derived:
                for keys, values in _totals(folder, manifest, derived[name]):
                    yield TableRows(index, keys, values)
                return
            if name not in queues:
                yield from _rows_of(folder, manifest, name, index, (key_groups, strides[name]))
                return
            of_queue = sorted_rows(dealt[name]), queues[name], manifest.decided_at_us
            for batch in queue_of_rows(*of_queue, value_bytes_max(coordinator)):
                yield TableRows(index, batch["key"], batch["value"])

        rows = itertools.chain.from_iterable(map(rows_of, tables, itertools.count()))
        places = deal(rows, [strides[name] for name in tables], key_groups, Path(beside), buckets)
        barrier = StoredRowsBarrier(
            coordinator.log,
            ImportOrigin(token),
            tables,
            lambda: sorted_rows(places),
            coordinator.clock,
            drops=own_tables.stale_timeouts(tables, coordinator.folded.tables),
        )
        return Imported(commit(coordinator, barrier).version, new=True, recovered=recovered)


def imported_strides(state: Folded, manifest: Manifest) -> dict[str, int]:
    """Return the stride that each table of an import has here.

    The queues of due times are among them, whether they were exported or not: they are made of the due times,
    since their rows name the key groups of the exported namespace.
    """
    given = {name: table for name, table in manifest.tables.items() if not name.startswith(f"{QUEUE}.")}
    return strides_of(state, manifest.key_groups, given) | dict.fromkeys(own_tables.queues_of(given), 1)


def strides_of(state: Folded, key_groups: int, tables: Mapping[str, HasStride]) -> dict[str, int]:
    """Return the stride of each table: that of its kind here, or the one that keeps its number of key groups.

    ``key_groups`` and ``tables`` are those of the source: an export, or another namespace.
    """
    strides = {}
    for name, table in tables.items():
        alike = own_tables.of_one_stride(name)
        existing = (state.tables[other].apart for other in alike if other in state.tables)
        of_source = next((tables[other].apart for other in alike[1:] if other in tables), table.apart)
        strides[name] = next(existing, kept_stride(of_source, key_groups, state.key_groups))
    return strides


def kept_stride(stride: int, of_source: int, key_groups: int) -> int:
    """Return the stride that keeps a table's number of key groups among others of its namespace.

    ``stride`` is its own among ``of_source`` key groups. Where its number is no divisor of ``key_groups``, or
    it has no stride, it has as many as the namespace.

    >>> kept_stride(4, 128, 256), kept_stride(1, 128, 256), kept_stride(4, 128, 100)
    (8, 1, 1)
    """
    groups = of_source // stride if stride > 1 else key_groups
    return key_groups // groups if key_groups % groups == 0 else 1


def _refuse_other_tables(coordinator: Coordinator, manifest: Manifest) -> None:
    own_tables.check_companions(manifest.tables, coordinator.folded.tables)
    schemas = coordinator.store.schemas()
    existing = {
        name: schema for name, t in coordinator.folded.tables.items() if (schema := schemas.get(t.schema_id))
    }
    refuse_other_keys(existing, {name: table.table_schema for name, table in manifest.tables.items()})


def refuse_other_keys(existing: Mapping[str, TableSchema], given: Mapping[str, TableSchema]) -> None:
    """Refuse an export whose table has another key than the namespace's, or than its companion table.

    A companion is a table that tidegate itself writes for a table of the user. Raises: ConfigError.
    """
    for name, schema in sorted(given.items()):
        known = existing.get(name)
        if known is not None and known.key != schema.key:
            has, brings = described(known.key), described(schema.key)
            if known.derived:
                raise ConfigError(
                    f"derived table {name} has the key {has}, the export has {brings}: nothing was staged;"
                    f" drop it (txn.drop_table({name!r})) and leave it out of derived= before the import"
                )
            raise ConfigError(
                f"table {name} has the key {has}, the export has {brings}: a table's key is fixed for life;"
                " import into a new namespace"
            )
        if own_tables.is_own(name) and (fault := own_tables.fault_of(name, schema, {**existing, **given})):
            raise ConfigError(f"table {name}: {fault}; import into a new namespace")


def derived_in(folder: Path | str, manifest: Manifest) -> dict[str, Definition]:
    """Return the definitions of the derived tables of an export; their rows are made of their base's.

    Raises: ConfigError: the export lacks a base.
    """
    schemas = {name: table.table_schema for name, table in manifest.tables.items()}
    definitions = {name: schema.derived for name, schema in schemas.items() if schema.derived}
    for name, definition in definitions.items():
        if definition.of not in schemas:
            raise ConfigError(
                f"{folder}: table {name} is derived from table {definition.of}, which the export lacks:"
                " nothing was written; export both: `tidegate export DIR --table"
                f" {name} --table {definition.of}`"
            )
    return definitions


def _derived(folder: Path, manifest: Manifest) -> dict[str, DerivedTable]:
    """Return the derived tables of an export. Raises: ConfigError: as ``derived_in``.

    CorruptError: a table is not the one of its definition.
    """
    schemas, made = {name: table.table_schema for name, table in manifest.tables.items()}, {}
    for name in derived_in(folder, manifest):
        schema = schemas[name]
        if schema.derived:
            try:
                made[name] = derived_table(name, schema.derived, schemas[schema.derived.of])
            except ConfigError as error:
                raise CorruptError(f"{folder}: {error}; {NEXT_STEP}") from None
            if (schema.key, schema.value) != (made[name].schema.key, made[name].schema.value):
                why = f"the columns of table {name} are not those of its definition"
                raise CorruptError(f"{folder}: {why}; {NEXT_STEP}")
    return made


def _totals(folder: Path, manifest: Manifest, table: DerivedTable) -> Iterator[tuple[Any, Any]]:
    """Yield the keys and stored values of a derived table, from the exported rows of its base."""
    of = table.definition.of
    base = manifest.tables[of]
    batches = (
        {"key": batch["key"], "value": payloads(batch["value"], manifest.decided_at_us)}
        for batch in batches_of(folder, of, base, manifest.key_groups)
    )
    groups = iter(recount(table, base.table_schema, batches).items())
    while some := list(itertools.islice(groups, ROWS_AT_ONCE)):
        keys = pa.array([key for key, _ in some], pa.binary())
        yield keys, pa.array([table.changed(key, None, part) for key, part in some], pa.binary())


def _rows_of(
    folder: Path, manifest: Manifest, name: str, index: int, layout: tuple[int, int]
) -> Iterator[TableRows]:
    """Yield the exported rows of a table. ``layout``: the number of key groups, and the table's stride."""
    table = manifest.tables[name]
    same = layout == (manifest.key_groups, table.apart)
    for batch in batches_of(folder, name, table, manifest.key_groups):
        yield TableRows(index, batch["key"], batch["value"], batch["key_group"] if same else None)
