"""An exported folder as Spark reads it, wherever that is: its manifest, its files' checksums, its rows.

The form is ``committers/export_format.py``'s. The bytes of one file, 256 MB of rows at most, are in a
task's memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import xxhash
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidegate.committers import export_format
from tidegate.committers.export_format import MANIFEST, File, Manifest, Table
from tidegate.errors import ConfigError, CorruptError
from tidegate.spark.call_checks import first_line

ROWS_DDL = "key_group int, key binary, value binary"


def read_manifest(spark: SparkSession, folder: str) -> tuple[Manifest, str]:
    """The manifest and its digest. ConfigError: there is none, or it names no table. CorruptError: it cannot
    be read.
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


def check_files(spark: SparkSession, folder: str, manifest: Manifest) -> None:
    """Compare every file with its checksum, in one job. CorruptError: which is missing or another."""
    expected = {
        _end(name, number): file
        for name, table in manifest.tables.items()
        for number, file in enumerate(table.files)
    }
    if not expected:
        return
    session = spark.newSession()  # options of its own
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    paths = [f"{folder.rstrip('/')}/{end}" for end in expected]
    try:
        files = session.read.format("binaryFile").load(paths).select("path", "content")
        found = files.repartition(len(paths)).mapInArrow(_sums, "path string, bytes bigint, checksum string")
        rows = found.collect()
    except PySparkException as error:
        raise CorruptError(f"{folder}: files cannot be read: {first_line(error)}; export again") from None
    sums = {"/".join(row.path.split("/")[-2:]): File(0, row.bytes, row.checksum) for row in rows}
    for end, file in expected.items():
        if end not in sums:
            raise CorruptError(f"{folder}/{end} cannot be read; export again")
        export_format.check_file(f"{folder}/{end}", file, sums[end])


def _sums(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        contents = batch["content"]
        yield pa.record_batch(
            {
                "path": batch["path"],
                "bytes": pa.array([len(one.as_buffer()) for one in contents], pa.int64()),
                "checksum": [xxhash.xxh3_64(one.as_buffer()).hexdigest() for one in contents],
            }
        )


def frame_of(spark: SparkSession, folder: str, name: str, table: Table) -> DataFrame:
    """The rows of a table as they are stored. CorruptError: they have other columns."""
    if not table.files:
        return spark.createDataFrame([], ROWS_DDL)
    paths = [f"{folder.rstrip('/')}/{_end(name, number)}" for number in range(len(table.files))]
    rows = spark.read.parquet(*paths)
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)
    if found != ROWS_DDL:
        raise CorruptError(f"{paths[0]} has columns {found}, not {ROWS_DDL}: export again")
    return rows


def _end(name: str, number: int) -> str:
    return f"table={name}/part-{number:05}.parquet"
