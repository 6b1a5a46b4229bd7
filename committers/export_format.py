"""An exported version in a folder, its form and its checks: a manifest, and Parquet files of stored rows.

    manifest.json              ``Manifest`` as JSON, written last: without it there is no export
    table=NAME/part-00000.parquet   columns key_group (int32), key, value (binary); by key group, then key

A value has its flags byte (docs/storage-format.md). Files are named by their number, never by the manifest,
and none is read before its size and checksum fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from tidegate.decoders import json_decoder
from tidegate.errors import ConfigError, CorruptError
from tidegate.names import check_name
from tidegate.wal.record import TableSchema

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
ROWS = pa.schema(
    [pa.field("key_group", pa.int32()), pa.field("key", pa.binary()), pa.field("value", pa.binary())]
)
READ_BYTES = 1024 * 1024
BATCH_ROWS = 1_000


class File(msgspec.Struct, frozen=True):
    """One file of rows; ``checksum`` is XXH3-64 of its bytes, hex."""

    rows: int
    bytes: int
    checksum: str


class Table(msgspec.Struct, frozen=True):
    """One table. ``expires``: its rows may have an expiry."""

    table_schema: TableSchema = msgspec.field(name="schema")
    rows: int
    files: tuple[File, ...]
    expires: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """What was exported: a version of a namespace, whole or some of its tables."""

    namespace: str
    uuid: str
    version: int
    digest: str
    decided_at_us: int
    key_groups: int
    tables: dict[str, Table]
    format: int = FORMAT


def encode(manifest: Manifest) -> bytes:
    """The manifest's bytes, readable."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest and its digest. ConfigError: there is none, or of another format. CorruptError: it cannot
    be read.
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"{folder} is no whole export, it has no {MANIFEST} that can be read ({error.strerror}): give the"
            " folder that `tidegate export` wrote"
        ) from None
    return manifest_in(str(path), content)


def manifest_in(path: str, content: bytes) -> tuple[Manifest, str]:
    """The manifest in these bytes, and its digest. Errors as ``read_manifest``."""
    try:
        manifest = json_decoder(Manifest).decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptError(f"{path} is no manifest of an export: {error}") from None
    if manifest.format != FORMAT:
        raise ConfigError(
            f"{path} has format {manifest.format}, this release knows {FORMAT}: upgrade tidegate"
        )
    for name in manifest.tables:
        check_name("table", name)
    return manifest, hashlib.blake2b(content, digest_size=16).hexdigest()


def place_of(folder: Path, table: str, number: int) -> Path:
    """Where a file of rows lies."""
    return folder / f"table={table}" / f"part-{number:05}.parquet"


def checksum_of(path: Path) -> File:
    """The size and the checksum of a file; its rows are not looked at."""
    state, size = xxhash.xxh3_64(), 0
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            state.update(piece)
            size += len(piece)
    return File(0, size, state.hexdigest())


def check_files(folder: Path, manifest: Manifest) -> None:
    """CorruptError: a file is missing, or its bytes are not those that were exported."""
    for name, table in manifest.tables.items():
        for number, file in enumerate(table.files):
            path = place_of(folder, name, number)
            try:
                found = checksum_of(path)
            except OSError as error:
                raise CorruptError(f"{path} cannot be read: {error.strerror}; export again") from None
            check_file(str(path), file, found)


def check_file(path: str, file: File, found: File) -> None:
    """CorruptError: what was found is not what was exported."""
    if (found.bytes, found.checksum) != (file.bytes, file.checksum):
        raise CorruptError(
            f"{path} has {found.bytes} bytes with checksum {found.checksum}, exported were"
            f" {file.bytes} with {file.checksum}: copy it again, or export again"
        )


def batches_of(folder: Path, name: str, table: Table) -> Iterator[Any]:
    """The rows of a table, in their order: record batches of ``ROWS``.

    CorruptError: there are not as many as the manifest says, or they have other columns.
    """
    from pyarrow import parquet

    for number, file in enumerate(table.files):
        path, rows = place_of(folder, name, number), 0
        try:
            with path.open("rb") as content, parquet.ParquetFile(content) as opened:
                if not opened.schema_arrow.equals(ROWS):
                    raise CorruptError(f"{path} has columns {opened.schema_arrow.names}, not {ROWS.names}")
                for batch in opened.iter_batches(BATCH_ROWS):
                    rows += batch.num_rows
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{path} cannot be read: {error}") from error
        if rows != file.rows:
            raise CorruptError(f"{path} has {rows} rows, the manifest says {file.rows}")
