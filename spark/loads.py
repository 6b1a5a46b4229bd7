"""Versions that are not batches, planned: static DataFrames and exported folders. The sink writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidegate.base.names import check_token
from tidegate.errors import ConfigError
from tidegate.spark.batch import refuse_connect
from tidegate.spark.calls.checks import Names
from tidegate.spark.source.exported import check_files, frame_of, read_manifest
from tidegate.spark.transaction import Transaction
from tidegate.wal.record import ImportOrigin, LoadOrigin, Origin

Write = Callable[[Transaction], None]


class Once(NamedTuple):
    """A version that is written once: its origin, the function that writes it, and a DataFrame of it."""

    origin: Origin
    write: Write
    rows: DataFrame
    expiring: frozenset[str] = frozenset()
    """Tables whose rows already have an expiry."""


def load_of(
    tables: Mapping[str, DataFrame], token: str, keys: Names | Mapping[str, Names] | None, *, replace: bool
) -> Once:
    """Plan the load of static DataFrames. Raises: ConfigError: the token or the tables do not fit."""
    token = check_token(token)
    _check_loaded(tables)
    by_table = {name: keys.get(name) if isinstance(keys, Mapping) else keys for name in tables}

    def write(txn: Transaction) -> None:
        for name, rows in tables.items():
            key = by_table[name]
            if key is None:
                msg = f"table {name}: which column is its key? pass key=, or key={{{name!r}: column}}"
                raise ConfigError(msg)
            (txn.replace if replace else txn.upsert)(name, rows, key)

    return Once(LoadOrigin(token), write, next(iter(tables.values())))


def import_of(spark: SparkSession, folder: str, token: str | None) -> tuple[Once, int]:
    """Plan the import of an exported folder; return its number of key groups, too. Every file is checked.

    Raises: ConfigError: there is no export. CorruptError: a file is missing, or is not the exported one.
    """
    refuse_connect(spark)
    token = "" if token is None or token == "" else check_token(token)
    if not isinstance(folder, str):
        raise ConfigError(
            f"folder is {folder!r}; it must be text: a path, or a URL such as s3a://bucket/export"
        )
    manifest, digest = read_manifest(spark, folder)
    check_files(spark, folder, manifest)
    frames = {name: frame_of(spark, folder, name, table) for name, table in manifest.tables.items()}

    def write(txn: Transaction) -> None:
        for name, table in sorted(manifest.tables.items()):
            txn.stored(name, frames[name], table.table_schema)

    expiring = frozenset(name for name, table in manifest.tables.items() if table.expires)
    once = Once(ImportOrigin(token or digest), write, next(iter(frames.values())), expiring)
    return once, manifest.key_groups


def _check_loaded(tables: object) -> None:
    """Check that these are static DataFrames by table, at least one. Raises: ConfigError."""
    if not isinstance(tables, Mapping):
        msg = f"tables is a {type(tables).__name__}: pass {{table name: DataFrame}}"
        raise ConfigError(msg)
    if not tables:
        msg = "there is nothing to load: pass {table name: DataFrame}"
        raise ConfigError(msg)
    for name, rows in tables.items():
        if not isinstance(rows, DataFrame):
            msg = f"table {name}: rows must be a DataFrame, not {type(rows).__name__}"
            raise ConfigError(msg)
        if rows.isStreaming:
            msg = (
                f"table {name}: a load takes a static DataFrame, and this one streams: write it with"
                " df.writeStream.foreachBatch(sink), or read what is there with spark.read"
            )
            raise ConfigError(msg)
