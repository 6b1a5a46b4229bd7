"""The format of an export and its checks: a folder with a manifest and Parquet files of stored rows.

    manifest.json              ``Manifest`` as JSON, written last: without it there is no export
    table=NAME/part-00000.parquet   columns key_group (int32), key, value (binary); by key group, then key

A value has its flags byte (docs/storage-format.md). Files are named by their number, never by the manifest,
and none is read before its size and checksum fit. The author of an export may have computed its checksums
too, so schemas are checked here, and rows in ``export_rows.py``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from tidegate.base.decoders import json_decoder
from tidegate.base.files import open_regular, read_regular
from tidegate.base.names import check_name
from tidegate.committers.exports.export_rows import NEXT_STEP, RowsOf, place_at, rows_of
from tidegate.errors import ConfigError, CorruptError
from tidegate.values.row_checks import check_schema
from tidegate.wal.record import Count, KeyGroups, TableSchema
from tidegate.wal.staging import own_tables
from tidegate.wal.staging.own_tables import row_type_of

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024


class File(msgspec.Struct, frozen=True):
    """One file of rows; ``checksum`` is XXH3-64 of its bytes, hex."""

    rows: Count
    bytes: Count
    checksum: str


class Table(msgspec.Struct, frozen=True):
    """One table. ``expires``: its rows may have an expiry. ``stride``: as in ``TableAt``."""

    table_schema: TableSchema = msgspec.field(name="schema")
    rows: Count
    files: tuple[File, ...]
    expires: bool = False
    stride: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def apart(self) -> int:
        """The distance between two key groups of the table: its stride, or 1."""
        return self.stride or 1


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of an export: a version of a namespace, with all or some of its tables."""

    namespace: str
    uuid: str
    version: Count
    digest: str
    decided_at_us: Count
    key_groups: KeyGroups
    tables: dict[str, Table]
    format: int = FORMAT


def encode(manifest: Manifest) -> bytes:
    """Encode the manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read the manifest and its digest.

    Raises: ConfigError: there is none, or it has another format. CorruptError: it cannot be decoded.
    """
    path = folder / MANIFEST
    try:
        content = read_regular(path, MANIFEST_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"{folder} is no whole export, it has no {MANIFEST} that can be read ({error.strerror}): give the"
            " folder that `tidegate export` wrote"
        ) from None
    return manifest_in(str(path), content)


def manifest_in(path: str, content: bytes) -> tuple[Manifest, str]:
    """Decode the manifest in these bytes; return its digest, too.

    Raises: as ``read_manifest``; CorruptError also: a table has an impossible schema.
    """
    try:
        manifest = json_decoder(Manifest).decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptError(f"{path} is no manifest of an export: {error}") from None
    if manifest.format != FORMAT:
        raise ConfigError(
            f"{path} has format {manifest.format}, this release knows {FORMAT}: upgrade tidegate"
        )
    check_name("namespace", manifest.namespace)
    for name, table in manifest.tables.items():
        check_name("table", name)
        if fault := _fault_of(name, table, manifest):
            raise CorruptError(f"{path}, table {name}: {fault}; {NEXT_STEP}")
    return manifest, hashlib.blake2b(content, digest_size=16).hexdigest()


def _fault_of(name: str, table: Table, manifest: Manifest) -> str:
    """Describe why such a table cannot exist; '' if it can."""
    try:
        check_schema(table.table_schema)
    except ConfigError as error:
        return str(error)
    if table.rows != sum(file.rows for file in table.files):
        return f"it has {table.rows} rows, and its files have others"
    if table.apart < 1 or manifest.key_groups % table.apart:
        return f"it has the stride {table.stride}, and there are {manifest.key_groups} key groups"
    if not own_tables.is_own(name):
        return ""
    others = {other: of.table_schema for other, of in manifest.tables.items()}
    return own_tables.fault_of(name, table.table_schema, others)


def place_of(folder: Path, table: str, number: int) -> Path:
    """Return the path of a file of rows."""
    return folder / f"table={table}" / f"part-{number:05}.parquet"


def opened(path: Path) -> BinaryIO:
    """Open a file of an export.

    Raises: OSError: it does not exist, or is no regular file. A pipe or a device, which the author may have
    put there, could block an open or a read without end.
    """
    return os.fdopen(open_regular(path), "rb")


def checksum_of(path: Path, expected: int | None = None) -> File:
    """Compute the size and the checksum of a file, without decoding its rows.

    A file that does not have the expected number of bytes is not read.
    """
    state, size = xxhash.xxh3_64(), 0
    with opened(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if expected not in (None, actual):
            return File(0, actual, "not computed")
        while piece := file.read(READ_BYTES):
            state.update(piece)
            size += len(piece)
    return File(0, size, state.hexdigest())


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check every file. Raises: CorruptError: one is missing, or its bytes are not the exported ones."""
    for name, table in manifest.tables.items():
        for number, file in enumerate(table.files):
            path = place_of(folder, name, number)
            try:
                actual = checksum_of(path, file.bytes)
            except OSError as error:
                raise CorruptError(f"{path} cannot be read: {error.strerror}; export again") from None
            check_file(str(path), file, actual)


def check_file(path: str, file: File, actual: File) -> None:
    """Check one file against its entry in the manifest. Raises: CorruptError: it is another."""
    if (actual.bytes, actual.checksum) != (file.bytes, file.checksum):
        raise CorruptError(
            f"{path} has {actual.bytes} bytes with checksum {actual.checksum}, exported were"
            f" {file.bytes} with {file.checksum}: copy it again, or export again"
        )


def batches_of(folder: Path, name: str, table: Table, key_groups: int | None = None) -> Iterator[Any]:
    """Yield the rows of a table, in their order: record batches of ``ROWS``.

    ``key_groups`` are the manifest's. Raises: CorruptError, with file, row and cause: their number is not the
    manifest's, they have other columns, they would take too much memory, or a table of this schema cannot
    have such a row.
    """
    of = RowsOf(table.table_schema, table.expires, key_groups, table.apart, row_type_of(name))
    before = None
    for number, file in enumerate(table.files):
        path = place_of(folder, name, number)
        try:
            content = opened(path)
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {error.strerror}; export again") from None
        with content:
            for batch in rows_of(content, str(path), of, file.rows, before):
                before = place_at(batch, -1)
                yield batch
