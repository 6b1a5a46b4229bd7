"""Versions that are no batch: static DataFrames, and exported folders of any size, once each."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.committers.background import Background
from tidegate.committers.driver import Driver
from tidegate.committers.pipeline_thread import PipelineThread
from tidegate.errors import ConfigError
from tidegate.names import check_token
from tidegate.options import Endpoints, Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.batch import refuse_connect
from tidegate.spark.call_checks import Names
from tidegate.spark.exported import check_files, frame_of, read_manifest
from tidegate.spark.transaction import Transaction
from tidegate.spark.turns import Turns
from tidegate.wal.fold import decided_for, once_key
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded, ImportOrigin, LoadOrigin, Origin, VersionFact

Write = Callable[[Transaction], None]


class Loads(abc.ABC):
    """The part of ``VersionedSink`` that writes what is there already."""

    _lock: Turns
    _key: Names | None
    _options: Options
    _endpoints: Endpoints
    _driver: Driver | None
    _background: Background | None
    _pipeline: PipelineThread | None

    def load(
        self,
        tables: Mapping[str, DataFrame],
        *,
        token: str,
        key: Names | Mapping[str, Names] | None = None,
        replace: bool = False,
    ) -> int | None:
        """Write static DataFrames as one version, once per token; that version.

        ``key`` is one for all tables, or one per table; without it the sink's own. With
        ``replace`` the tables hold exactly these rows afterwards, else the rows are upserted.
        On return the version is visible, also with ``commit="pipelined"``.
        May be repeated: a token that was decided before writes nothing and returns its version
        (None when that is too long ago for the log to say which). Do not run it beside a query
        of another process on the same namespace: the later of the two fences the earlier.

        Errors prove what they do for a batch; after each of them the same call may be made again, under the
        same token. ConfigError: the token is not a text of 1 to 200 printable characters, or rows do not fit.
        """
        token = check_token(token)
        _check_loaded(tables)
        given = key if key is not None else self._key
        keys = {name: given.get(name) if isinstance(given, Mapping) else given for name in tables}

        def write(txn: Transaction) -> None:
            for name, of_table in tables.items():
                named = keys[name]
                if named is None:
                    msg = f"table {name}: which column is its key? pass key=, or key={{{name!r}: column}}"
                    raise ConfigError(msg)
                (txn.replace if replace else txn.upsert)(name, of_table, named)

        return self._once(next(iter(tables.values())), LoadOrigin(token), write)

    def import_folder(self, spark: SparkSession, folder: str, *, token: str | None = None) -> int | None:
        """Make one version of what `tidegate export` wrote, by a Spark job: its tables hold exactly its rows
        then, other tables stay; that version.

        ``folder`` is wherever Spark can read: a path, or a URL such as s3a://bucket/export; tasks read it, so
        every executor must reach it. A namespace that is not there is made, with the exported number of key
        groups unless ``key_groups`` says another. Every file is compared with its checksum first. A folder is
        imported once into a namespace, under its digest, by `tidegate import` too; ``token`` gives it another
        name. On return the version is visible. May be repeated: a second time writes nothing and returns its
        version (None when that is too long ago for the log to say which). Beside a query: as ``load``.

        ConfigError: there is no export, or a table has another key than the namespace's. CorruptError: a file
        is missing, or is not what was exported. Either way nothing was staged.
        """
        refuse_connect(spark)
        named = "" if token is None or token == "" else check_token(token)
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

        with self._lock:
            if self._driver is None and self._options.key_groups is None and not self._is_made():
                self._options = dataclasses.replace(self._options, key_groups=manifest.key_groups)
        expiring = frozenset(name for name, table in manifest.tables.items() if table.expires)
        return self._once(next(iter(frames.values())), ImportOrigin(named or digest), write, expiring)

    def _is_made(self) -> bool:
        where = self._endpoints
        with (
            contextlib.closing(open_store(where.store, where.namespace, where.store_options)) as store,
            contextlib.closing(open_log(where.wal, where.namespace, where.wal_options)) as log,
        ):
            return store.identity() is not None or any(True for _ in log.decisions())

    def _once(
        self, rows: DataFrame, origin: Origin, write: Write, expiring: frozenset[str] = frozenset()
    ) -> int | None:
        refuse_connect(rows.sparkSession)
        with self._lock:
            streaming = self._background is not None and not self._background.ended
            try:
                return self._write_once(rows, origin, write, expiring)
            except BaseException:
                self._release()
                raise
            finally:
                if self._background is not None and not streaming:
                    self._background.drain(self._options.apply_deadline_s)

    def _write_once(
        self, rows: DataFrame, origin: Origin, write: Write, expiring: frozenset[str]
    ) -> int | None:
        driver = self._driver or self._open(rows, None, lambda _: None, lambda: True)
        self._keep_alive(lambda: True)
        if once_key(origin) in driver.folded.once:
            fact = decided_for(driver.folded, origin)
            return None if fact is None else fact.version
        txn = self._transaction(driver, -1)
        write(txn)
        fact = self._committed(driver, txn, origin, "", rows, expiring)
        if self._pipeline is not None:
            self._pipeline.drain(self._options.apply_deadline_s)
        return fact.version

    # -- the sink's own ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(
        self,
        rows: DataFrame,
        lineage: str | None,
        check: Callable[[Folded], None],
        alive: Callable[[], bool],
    ) -> Driver: ...

    @abc.abstractmethod
    def _keep_alive(self, alive: Callable[[], bool]) -> None: ...

    @abc.abstractmethod
    def _transaction(self, driver: Driver, batch_id: int) -> Transaction: ...

    @abc.abstractmethod
    def _committed(
        self,
        driver: Driver,
        txn: Transaction,
        origin: Origin,
        source_offsets: str,
        rows: DataFrame,
        expiring: frozenset[str] = frozenset(),
    ) -> VersionFact: ...

    @abc.abstractmethod
    def _release(self) -> Any: ...


def _check_loaded(tables: object) -> None:
    """ConfigError: these are not DataFrames by table, or none."""
    if not isinstance(tables, Mapping):
        msg = f"what is to be loaded is a {type(tables).__name__}: pass {{table name: DataFrame}}"
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
