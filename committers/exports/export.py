"""The export of one version of a namespace, from a store into a folder of Parquet files. It needs no log."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.clock import Clock
from tidegate.base.files import create, lock_within, make_folder, sync_above
from tidegate.base.names import listed
from tidegate.committers.background.pin import EXPORT, VersionPin
from tidegate.committers.exports.export_format import (
    MANIFEST,
    File,
    Manifest,
    Table,
    checksum_of,
    encode,
    place_of,
)
from tidegate.committers.exports.export_rows import ROWS
from tidegate.errors import ConfigError
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.rules.reads import values_at, windows
from tidegate.sinks.rules.visible import no_entry, schemas_by_table
from tidegate.sinks.store import Store
from tidegate.wal.staging.own_tables import companions

FILE_BYTES = 256 * 1024 * 1024
GROUP_ROWS, GROUP_BYTES = 10_000, 8 * 1024 * 1024
"""The size of a row group of a file, which is in memory at once."""


def export(
    store: Store,
    identity: Identity,
    version: int,
    folder: Path,
    tables: Sequence[str] | None = None,
    file_bytes: int = FILE_BYTES,
) -> Manifest:
    """Write a readable version, all tables or these and their companions, into an empty or new folder.

    A lease pins the version meanwhile; a row
    group at a time is in memory. Durable: on return every file is on disk (fsync). After an error the folder
    has no manifest, and is no export. Raises: ConfigError: the folder cannot be written or is not empty,
    there is no such table, or the file system does not distinguish two tables. SnapshotExpiredError: the
    version was retired. CorruptError: the catalog lost its entry.
    """
    pin = VersionPin(store, version, Clock(), EXPORT)
    try:
        entry = next(iter(store.catalog(version, version)), None)
        if entry is None:
            raise no_entry(store.where, version)
        names = sorted(entry.tables if tables is None else set(tables))
        for name in names:
            if name not in entry.tables:
                raise ConfigError(
                    f"there is no table {name!r} at version {version} of namespace {identity.name}; the"
                    f" tables there are: {', '.join(listed(entry.tables))}"
                )
        names = sorted(companions(names, entry.tables))
        with _own_empty(folder):
            exported = {name: entry.tables[name] for name in names}
            schemas, written = schemas_by_table(store.where, version, exported, store.schemas()), {}
            for name, table in exported.items():
                files = _write(folder, name, _live(store, pin, entry, name, identity.key_groups), file_bytes)
                rows = sum(file.rows for file in files)
                written[name] = Table(schemas[name], rows, tuple(files), bool(table.expires), table.stride)
            manifest = Manifest(
                identity.name,
                identity.uuid,
                version,
                entry.digest,
                entry.decided_at_us,
                identity.key_groups,
                written,
            )
            _write_manifest(folder, manifest)
        return manifest
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be written: {error.strerror or error}; give another folder"
        ) from None
    finally:
        pin.give_back()


@contextlib.contextmanager
def _own_empty(folder: Path) -> Iterator[None]:
    """Make the folder, if need be, and hold it against another export. Raises: ConfigError: it has files."""
    make_folder(folder)
    sync_above(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not lock_within(handle, 0):
            raise ConfigError(f"{folder}: another export is being written there; give a new folder")
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: give a new folder, an export takes all of it")
        yield
    finally:
        os.close(handle)  # releases the lock


def _live(store: Store, pin: VersionPin, entry: CatalogEntry, table: str, key_groups: int) -> Iterator[Any]:
    """Yield the live rows of a table, as they are stored: record batches of ``ROWS``."""
    read_at = entry.read_at(table)
    for step in windows(range(key_groups)):
        pin.keep()
        for group, batch in store.scan_groups_stored(read_at, step):
            pin.keep()
            values = values_at(store.where, read_at, batch["key"].to_pylist(), batch["value"])
            live = batch.filter(values.is_valid())
            if live.num_rows:
                groups = pa.repeat(pa.scalar(group, pa.int32()), live.num_rows)
                yield pa.record_batch([groups, live["key"], live["value"]], schema=ROWS)


def _row_groups(batches: Iterator[Any]) -> Iterator[Any]:
    """Join or split the batches into tables of about a row group."""
    parts: list[Any] = []
    rows = held_bytes = 0
    for part in chain.from_iterable(map(_parts, batches)):
        parts.append(part)
        rows, held_bytes = rows + part.num_rows, held_bytes + part.nbytes
        if rows >= GROUP_ROWS or held_bytes >= GROUP_BYTES:
            yield pa.Table.from_batches(parts, schema=ROWS)
            parts, rows, held_bytes = [], 0, 0
    if parts:
        yield pa.Table.from_batches(parts, schema=ROWS)


def _parts(batch: Any) -> list[Any]:
    """Split a batch into parts of about ``GROUP_BYTES``: a store's page may have a thousand large values."""
    if batch.nbytes <= GROUP_BYTES:
        return [batch]
    sizes = pc.add(pc.binary_length(batch["key"]), pc.binary_length(batch["value"])).to_numpy()
    groups = np.cumsum(sizes.astype(np.int64)) // GROUP_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
    return [batch.slice(start, end - start) for start, end in itertools.pairwise(cuts)]


def _write(folder: Path, name: str, batches: Iterator[Any], file_bytes: int) -> list[File]:
    """Write the files of one table, each of about ``file_bytes`` before compression."""
    from pyarrow import parquet

    files: list[File] = []
    groups = _row_groups(batches)
    following = next(groups, None)
    while following is not None:
        path = place_of(folder, name, len(files))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        rows = written = 0
        with _new(path, name) as made, parquet.ParquetWriter(made, ROWS) as file:
            while following is not None and (not written or written + following.nbytes <= file_bytes):
                file.write_table(following)
                rows, written = rows + following.num_rows, written + following.nbytes
                following = next(groups, None)
        _sync(path)
        files.append(msgspec.structs.replace(checksum_of(path), rows=rows))
    return files


def _new(path: Path, table: str) -> BinaryIO:
    """Create a file that does not exist yet. Raises: ConfigError: it exists, and is another table's."""
    try:
        return os.fdopen(create(path, os.O_WRONLY), "wb")
    except FileExistsError:
        raise ConfigError(
            f"{path} is another table's: to this file system {table} is the same name as one that differs in"
            " upper and lower case alone; export to another file system, or such tables one at a time"
        ) from None


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    beside = folder / f".{MANIFEST}.part"
    beside.unlink(missing_ok=True)
    with os.fdopen(create(beside, os.O_WRONLY), "wb") as file:
        file.write(encode(manifest))
    _sync(beside)
    for name in manifest.tables:
        if (of_table := folder / f"table={name}").is_dir():
            _sync(of_table)
    beside.replace(folder / MANIFEST)
    _sync(folder)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
