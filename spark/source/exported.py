"""An exported folder as Spark reads it, on any file system: its manifest, its files' checksums, its rows.

``committers/exports/export_format.py`` defines the format. A task holds the bytes of one file in
memory at a time, at most 256 MB of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import xxhash
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from tidegate.base.text import first_line
from tidegate.committers.exports import export_format
from tidegate.committers.exports.export_format import MANIFEST, File, Manifest, Table
from tidegate.committers.exports.export_rows import (
    NEXT_STEP,
    UNORDERED,
    RowsOf,
    check_stored_bytes,
    place_at,
    rows_of,
    stored_bytes_max,
)
from tidegate.committers.repair.companions import queue_of_rows
from tidegate.errors import ConfigError, CorruptError
from tidegate.spark.calls.columns import key_group
from tidegate.spark.errors import told
from tidegate.spark.session.releases import with_option
from tidegate.wal.staging.own_tables import row_type_of

ROWS_DDL = "key_group int, key binary, value binary"
PLACE = "struct<group: int, key: binary>"
LOOKED_AT = f"path string, fault string, stored long, first {PLACE}, last {PLACE}"
_PLACE = pa.struct([("group", pa.int32()), ("key", pa.binary())])
LOOKED_AT_ARROW = pa.schema(
    [
        *(("path", pa.string()), ("fault", pa.string()), ("stored", pa.int64())),
        *(("first", _PLACE), ("last", _PLACE)),
    ]
)


def read_manifest(spark: SparkSession, folder: str) -> tuple[Manifest, str]:
    """Read the manifest and its digest.

    Raises: ConfigError, there is none, or it names no table; CorruptError, it cannot be read.
    """
    path = f"{folder.rstrip('/')}/{MANIFEST}"
    try:
        row = spark.read.format("binaryFile").load(path).select("content").head()
    except PySparkException as error:
        raise ConfigError(
            f"{folder} is no whole export that Spark can read, its {MANIFEST} is not there"
            f" ({first_line(error)}): give the folder that `tidegate export` wrote"
        ) from None
    manifest, digest = export_format.manifest_in(path, b"" if row is None else bytes(row[0]))
    if not manifest.tables:
        raise ConfigError(f"{folder} holds no table, so there is nothing to import")
    return manifest, digest


def check_files(spark: SparkSession, folder: str, manifest: Manifest, bytes_max: int | None) -> None:
    """Compare every file with its checksum, and check all of its rows, in one job, one file per task.

    Raises: CorruptError that names a missing or different file, or a row that cannot be imported
    (``export_rows.py``), or says that all rows take more than ``bytes_max``.
    """
    files_bytes = sum(file.bytes for table in manifest.tables.values() for file in table.files)
    most = stored_bytes_max(files_bytes) if bytes_max is None else bytes_max
    expected = {
        _end(name, number): (
            file,
            RowsOf(table.table_schema, table.expires, manifest.key_groups, table.apart, row_type_of(name)),
        )
        for name, table in manifest.tables.items()
        for number, file in enumerate(table.files)
    }
    if not expected:
        return
    paths = [f"{folder.rstrip('/')}/{end}" for end in expected]
    try:
        with with_option(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", "1") as session:
            files = session.read.format("binaryFile").load(paths).select("path", "content")
            checked = files.repartition(len(paths)).mapInArrow(_looked_at(expected, most), LOOKED_AT)
            rows = checked.collect()
    except PySparkException as error:
        raise CorruptError(f"{folder}: files cannot be read: {first_line(error)}; export again") from None
    check_stored_bytes(folder, sum(row.stored for row in rows), most)
    looked = {_end_of(row.path): row for row in rows}
    for name, table in manifest.tables.items():
        before: tuple[int, bytes] | None = None
        for number in range(len(table.files)):
            end = _end(name, number)
            if end not in looked:
                raise CorruptError(f"{folder}/{end} cannot be read; export again")
            if looked[end].fault:
                raise CorruptError(looked[end].fault)
            first, last = (row and (row[0], bytes(row[1])) for row in (looked[end].first, looked[end].last))
            if before is not None and first is not None and first <= before:
                raise CorruptError(f"{folder}/{end}, row 1: {UNORDERED}; {NEXT_STEP}")
            before = last or before


def _end_of(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def _looked_at(
    expected: Mapping[str, tuple[File, RowsOf]], most: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a task's check of files: the reason against an import, or the first and last row's place."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for path, content in zip(batch["path"].to_pylist(), batch["content"], strict=True):
                file, of = expected[_end_of(path)]
                row: dict[str, Any] = {"path": path, "fault": "", "stored": 0}
                try:
                    row |= _places(path, content.as_buffer(), file, of, most)
                except CorruptError as error:
                    row["fault"] = str(error)
                yield pa.RecordBatch.from_pylist([row], schema=LOOKED_AT_ARROW)

    return run


def _places(path: str, content: Any, file: File, of: RowsOf, most: int) -> dict[str, Any]:
    """Return the places of the first and the last row, and the bytes of all. Raises: CorruptError, the file
    cannot be imported.
    """
    actual = File(0, len(content), xxhash.xxh3_64(content).hexdigest())
    export_format.check_file(path, file, actual)
    first = last = None
    stored = 0
    for batch in rows_of(pa.BufferReader(content), path, of, file.rows, None):
        first, last = first or place_at(batch, 0), place_at(batch, -1)
        stored += batch["key"].nbytes + batch["value"].nbytes
        check_stored_bytes(path, stored, most)
    places = {"first": first, "last": last}
    return {"stored": stored} | {name: place and place._asdict() for name, place in places.items()}


def frame_of(spark: SparkSession, folder: str, name: str, table: Table) -> DataFrame:
    """Return the rows of a table as they are stored. Raises: CorruptError, they have other columns."""
    if not table.files:
        return spark.createDataFrame([], ROWS_DDL)
    paths = [f"{folder.rstrip('/')}/{_end(name, number)}" for number in range(len(table.files))]
    rows = spark.read.parquet(*paths)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)
    if columns != ROWS_DDL:
        raise CorruptError(f"{paths[0]} has columns {columns}, not {ROWS_DDL}: export again")
    return rows


def queue_frame(
    dues: DataFrame, table: str, groups: tuple[int, int], at_us: int, value_bytes_max: int
) -> DataFrame:
    """Return the rows of the queue of these exported due times: their keys and stored values.

    ``groups``: the number of key groups of the namespace that imports, and the stride of ``table`` there.
    """

    def queued(batches: Iterator[Any]) -> Iterator[Any]:
        yield from queue_of_rows(batches, table, at_us, value_bytes_max)

    rows = dues.select(key_group(functions.col("key"), *groups).alias("g"), "key", "value")
    return (
        rows.repartition("g").sortWithinPartitions("g").mapInArrow(told(queued), "key binary, value binary")
    )


def _end(name: str, number: int) -> str:
    return f"table={name}/part-{number:05}.parquet"
