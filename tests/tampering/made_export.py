"""A forged export: any rows, any manifest, and checksums that fit all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from tidegate.committers.exports.export_format import MANIFEST, checksum_of, place_of
from tidegate.committers.exports.export_rows import ROWS
from tidegate.keys.groups import key_group
from tidegate.wal.record import TableSchema

KEY_GROUPS = 4
Row = tuple[Any, bytes | None, bytes | None]
"""Key group, key and stored value."""


class MadeTable(NamedTuple):
    """A table of an export, with a file for each list of rows."""

    schema: Any
    files: Sequence[Sequence[Row]]
    expires: bool = False


def placed(pairs: Iterable[tuple[bytes, bytes]], key_groups: int = KEY_GROUPS) -> list[Row]:
    """Sort rows as an export has them: by key group and key."""
    return sorted((key_group(key, key_groups), key, value) for key, value in pairs)


def make_export(folder: Path, tables: Mapping[str, MadeTable], **fields: Any) -> Path:
    """Write the export; ``fields`` are put into the manifest as they are."""
    folder.mkdir(parents=True)
    of_tables = {}
    for name, table in tables.items():
        files = []
        for number, rows in enumerate(table.files):
            path = place_of(folder, name, number)
            path.parent.mkdir(exist_ok=True)
            columns = zip(*rows, strict=True) if rows else ((), (), ())
            arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
            parquet.write_table(pa.Table.from_arrays(arrays, schema=ROWS), path)
            files.append(msgspec.structs.replace(checksum_of(path), rows=len(rows)))
        schema = msgspec.to_builtins(table.schema) if isinstance(table.schema, TableSchema) else table.schema
        rows_of_all = sum(file.rows for file in files)
        of_tables[name] = {
            "schema": schema,
            "rows": rows_of_all,
            "files": msgspec.to_builtins(files),
            "expires": table.expires,
        }
    manifest = {
        "namespace": "made",
        "uuid": "u",
        "version": 1,
        "digest": "d",
        "decided_at_us": 1,
        "key_groups": KEY_GROUPS,
        "tables": of_tables,
        "format": 1,
    }
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest | fields))
    return folder


def stamp(folder: Path) -> None:
    """Put the present size and checksum of each file into the manifest."""
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
    for name, table in manifest["tables"].items():
        for number, file in enumerate(table["files"]):
            found = checksum_of(place_of(folder, name, number))
            file.update(bytes=found.bytes, checksum=found.checksum)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
