"""The import of an export as one version of a namespace, in any kind of store, with any key groups.

Rows are divided by key group into buckets, in temporary files, and staged bucket by bucket. So one bucket is
in memory, whatever the size of the export.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.names import UNLISTED
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.transfer.export_format import Manifest, batches_of, check_files, read_manifest
from tidegate.committers.transfer.stored_rows import StoredRowsBarrier
from tidegate.errors import ConfigError
from tidegate.keys.groups import key_group_of_each
from tidegate.values.decode import described
from tidegate.wal.fold import decided_for, once_key
from tidegate.wal.record import Folded, ImportOrigin, TableSchema
from tidegate.wal.staging import own_tables
from tidegate.wal.staging.spec import CHANGES

logger = logging.getLogger("tidegate")

BUCKET_BYTES = 64 * 1024 * 1024
"""The approximate size of a bucket, in bytes of the exported files."""


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
    nothing. Raises, with nothing staged: ConfigError: a table has another key than the namespace's.
    CorruptError: rows are not those of the manifest, or cannot be stored (see ``batches_of``). Otherwise as
    ``open_namespace`` and ``commit``.
    """
    recovered = open_namespace(coordinator, None)
    before = imported_before(coordinator.folded, token)
    if before is not None:
        return before._replace(recovered=recovered)
    _refuse_other_keys(coordinator, manifest)
    key_groups, strides = coordinator.folded.key_groups, strides_of(coordinator.folded, manifest)
    tables = importable(manifest, KeyGroupsHere(key_groups, strides.__getitem__))
    strides = {name: strides[name] for name in tables}
    size = sum(file.bytes for name in tables for file in manifest.tables[name].files)
    buckets = max(1, min(-(-size // bucket_bytes), key_groups, BUCKETS_MAX))
    with tempfile.TemporaryDirectory(prefix="tidegate-import-") as beside:
        places = _deal(
            folder, manifest, strides, key_groups, [Path(beside, str(at)) for at in range(buckets)]
        )
        barrier = StoredRowsBarrier(
            coordinator.log,
            ImportOrigin(token),
            tables,
            {name: manifest.tables[name].table_schema for name in tables},
            lambda: _rows(places),
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


def strides_of(state: Folded, manifest: Manifest) -> dict[str, int]:
    """Return the stride of each table: its own, or the one that keeps the exported number of key groups.

    Where that is no divisor of the namespace's, a new table has as many as the namespace.
    """
    strides = {}
    for name, table in manifest.tables.items():
        exported = manifest.key_groups // table.apart if table.stride else state.key_groups
        fits = state.key_groups % exported == 0
        new = state.key_groups // exported if fits else 1
        strides[name] = state.tables[name].apart if name in state.tables else new
    return strides


def _refuse_other_keys(coordinator: Coordinator, manifest: Manifest) -> None:
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


BUCKETS_MAX = 500
"""The most files that are open at once."""


def _deal(
    folder: Path, manifest: Manifest, strides: Mapping[str, int], key_groups: int, places: list[Path]
) -> list[Path]:
    """Write every row into the bucket of its key group, as ``CHANGES``."""
    writers = [pa.ipc.new_stream(str(place), CHANGES) for place in places]
    try:
        for index, name in enumerate(sorted(strides)):
            was = manifest.key_groups, manifest.tables[name].apart
            for batch in batches_of(folder, name, manifest.tables[name], manifest.key_groups):
                keys, groups = batch["key"], batch["key_group"].to_numpy()
                if (key_groups, strides[name]) != was:
                    groups = np.array(
                        key_group_of_each(keys.to_pylist(), key_groups, strides[name]), np.int32
                    )
                of_table = pa.repeat(pa.scalar(index, pa.int32()), batch.num_rows)
                rows = pa.record_batch([pa.array(groups), of_table, keys, batch["value"]], schema=CHANGES)
                buckets = groups.astype(np.int64) * len(places) // key_groups
                for bucket in np.unique(buckets).tolist():
                    writers[bucket].write_batch(rows.filter(pa.array(buckets == bucket)))
    finally:
        for writer in writers:
            writer.close()
    return places


def _rows(places: list[Path]) -> Iterator[Any]:
    for place in places:
        with pa.ipc.open_stream(str(place)) as stream:
            rows = stream.read_all()
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in "gtk"])
        yield from rows.take(order).to_batches(max_chunksize=1_000)
