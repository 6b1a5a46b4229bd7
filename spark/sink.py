"""``VersionedSink``: every micro-batch becomes one version of the namespace, or none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from tidegate.committers.background import Background
from tidegate.committers.commit import commit
from tidegate.committers.driver import Driver
from tidegate.committers.open import open_namespace
from tidegate.committers.states import State
from tidegate.errors import ConfigError
from tidegate.names import check_name
from tidegate.options import Endpoints, Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.apply_job import apply_on_executors
from tidegate.spark.batch import BatchContext, batch_context, is_running
from tidegate.spark.stage import SparkBarrier
from tidegate.spark.stopped import stopped
from tidegate.spark.transaction import Names, Transaction
from tidegate.wal import quarantine
from tidegate.wal.fold import decided_for, once_key, replay_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import BatchOrigin, Folded, LoadOrigin, Origin, TableSchema, VersionFact

logger = logging.getLogger("tidegate")

Write = Callable[[Transaction, DataFrame], None]
Alive = Callable[[], bool]


class VersionedSink:
    """A sink for ``foreachBatch``: one atomic, numbered version per micro-batch.

    >>> sink = VersionedSink(                                          # doctest: +SKIP
    ...     namespace="flights", wal="file:///data/wal", store="sqlite:///data/store",
    ...     table="aircraft", key="tailnum", order_by="time_hour",
    ... )
    >>> df.writeStream.foreachBatch(sink).option("checkpointLocation", path).start()

    With ``table`` and ``key`` the sink upserts every batch into that table; without them give
    ``sink.each(write)`` a function that writes several tables. Making a sink writes nothing;
    the namespace is opened, and made if missing, at the first batch. One sink serves one
    query at a time. Further keywords are ``tidegate.options.Options``.

    ConfigError: an option, a URL or a name is wrong; nothing was written.
    """

    def __init__(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        *,
        namespace: str,
        wal: str,
        store: str,
        table: str | None = None,
        key: Names | None = None,
        order_by: Names | None = None,
        delete_when: str | None = None,
        value: str | None = None,
        wal_options: dict[str, Any] | None = None,
        store_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._endpoints = Endpoints(namespace, wal, store, wal_options or {}, store_options or {})
        self._options = Options.of(options)
        if (table is None) != (key is None):
            msg = "table and key go together: give both, or neither and use sink.each(write)"
            raise ConfigError(msg)
        if table is not None:
            check_name("table", table)
        elif order_by is not None or delete_when is not None or value is not None:
            msg = "order_by, delete_when and value belong to the one-table form: give table and key too"
            raise ConfigError(msg)
        self._table, self._key = table, key
        self._order_by, self._delete_when, self._value = order_by, delete_when, value
        open_log(wal, namespace, self._endpoints.wal_options).close()
        open_store(store, namespace, self._endpoints.store_options).close()
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._background: Background | None = None
        self._session: Any = None
        self._done: tuple[str, int] | None = None
        self._entered = (State.READY, 0.0)
        self.last_commit: VersionFact | None = None
        """The last version this sink made visible, None before the first."""
        self.last_phases: dict[str, float] = {}
        """Where the last commit's time went: seconds per state, by the state's name, in order."""
        self.recovered: list[int] = []
        """Versions an earlier driver had decided and this sink made visible when it opened."""

    def __repr__(self) -> str:
        return f"VersionedSink({self._endpoints!r}, table={self._table!r})"

    def __reduce__(self) -> NoReturn:
        msg = "a VersionedSink stays in the driver's process: it cannot be pickled, nor used by Spark Connect"
        raise ConfigError(msg)

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Commit one batch into the sink's table. Spark calls this from ``foreachBatch``."""
        if self._table is None or self._key is None:
            msg = "this sink has no table: pass table= and key=, or give foreachBatch sink.each(write)"
            raise ConfigError(msg)
        table, key = self._table, self._key

        def write(txn: Transaction, rows: DataFrame) -> None:
            txn.upsert(
                table, rows, key, order_by=self._order_by, delete_when=self._delete_when, value=self._value
            )

        self._run(batch_df, batch_id, write)

    def each(self, write: Write) -> Callable[[DataFrame, int], None]:
        """A function for ``foreachBatch`` that calls ``write(txn, batch_df)`` for each new batch.

        All that ``write`` does through ``txn`` becomes one version. It is not called for a
        batch that was decided before. If it raises, nothing is decided.
        """

        def run(batch_df: DataFrame, batch_id: int) -> None:
            self._run(batch_df, batch_id, write)

        return run

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
        May be repeated: a token that was decided before writes nothing and returns its version
        (None when that is too long ago for the log to say which). Do not run it beside a query
        of another process on the same namespace: the later of the two fences the earlier.
        """
        if not token:
            msg = "token='': give the load a name of its own, such as a date; it is loaded once per token"
            raise ConfigError(msg)
        if not tables:
            msg = "there is nothing to load: pass {table name: DataFrame}"
            raise ConfigError(msg)
        given = key if key is not None else self._key
        keys = {name: given.get(name) if isinstance(given, Mapping) else given for name in tables}
        with self._lock:
            streaming = self._background is not None and not self._background.ended
            try:
                return self._load(tables, LoadOrigin(token), keys, replace=replace)
            except BaseException:
                self._release()
                raise
            finally:
                if self._background is not None and not streaming:
                    self._background.stop()

    def _load(
        self,
        tables: Mapping[str, DataFrame],
        origin: LoadOrigin,
        keys: Mapping[str, Names | None],
        *,
        replace: bool,
    ) -> int | None:
        rows = next(iter(tables.values()))
        driver = self._driver or self._open(rows, None, lambda _: None, lambda: True)
        self._keep_alive(lambda: True)
        if once_key(origin) in driver.folded.once:
            fact = decided_for(driver.folded, origin)
            return None if fact is None else fact.version
        txn = self._transaction(driver, -1)
        for name, of_table in tables.items():
            named = keys[name]
            if named is None:
                msg = f"table {name}: which column is its key? pass key=, or key={{{name!r}: column}}"
                raise ConfigError(msg)
            (txn.replace if replace else txn.upsert)(name, of_table, named)
        self.last_commit = fact = self._committed(driver, txn, origin, "", rows)
        return fact.version

    def close(self) -> None:
        """Stop the background work and release handles. The next batch opens again."""
        with self._lock:
            self._release()

    # -- one batch ------------------------------------------------------------------------------

    def _run(self, batch_df: DataFrame, batch_id: int, write: Write) -> None:
        with self._lock:
            batch = batch_context(batch_df, batch_id)
            if self._done == (batch.run_id, batch_id):
                msg = (
                    f"batch {batch_id} has made its version already: one transaction per batch; write all"
                    " tables in one sink.each(write), or use a second namespace"
                )
                raise ConfigError(msg)
            try:
                fact = self._commit(batch_df, batch, write)
            except BaseException as error:
                self._release()  # open again, and recover, before anything else is written
                if (stop := stopped(error, batch_id)) is not None:
                    raise stop from None
                raise
            self._done, self.last_commit = (batch.run_id, batch_id), fact

    def _commit(self, batch_df: DataFrame, batch: BatchContext, write: Write) -> VersionFact:
        driver = self._opened(batch_df, batch)
        origin = _origin(driver.folded, batch)
        fact = replay_of(driver.folded, origin)
        if fact is not None:
            logger.info("batch %s is version %s already; it is skipped", batch.batch_id, fact.version)
            return fact
        txn = self._transaction(driver, batch.batch_id)
        write(txn, batch_df)
        return self._committed(driver, txn, origin, batch.source_offsets, batch_df)

    def _transaction(self, driver: Driver, batch_id: int) -> Transaction:
        return Transaction(batch_id, driver.folded.last_version, self._known(driver))

    def _committed(
        self, driver: Driver, txn: Transaction, origin: Origin, source_offsets: str, rows: DataFrame
    ) -> VersionFact:
        state = driver.folded
        calls, schemas = txn.close(), txn.schemas
        if self._options.on_bad_record == "quarantine":
            schemas[quarantine.TABLE] = quarantine.SCHEMA
        barrier = SparkBarrier(
            calls,
            schemas,
            origin,
            source_offsets,
            self._endpoints,
            state.key_groups,
            self._parallelism(rows, state),
            state.tables,
            txn.starts,
        )
        fact = commit(driver, barrier)
        if self._background is not None:
            self._background.published()
        return fact

    def _opened(self, batch_df: DataFrame, batch: BatchContext) -> Driver:
        self._session = session = batch_df.sparkSession
        if self._driver is not None and self._driver.folded.lineage != batch.lineage:
            self._release()  # another query: its checkpoint has to be accepted first
        alive = partial(is_running, session, batch.lineage)
        driver = self._driver or self._open(
            batch_df, batch.lineage, lambda state: _refuse(state, batch), alive
        )
        self._keep_alive(alive)
        return driver

    def _open(
        self, rows: DataFrame, lineage: str | None, check: Callable[[Folded], None], alive: Alive
    ) -> Driver:
        self._session = rows.sparkSession
        self._driver = driver = self._new_driver()
        self._keep_alive(alive)  # a long recovery gives signs of life too
        self.recovered = open_namespace(driver, lineage, check)
        driver.store.heartbeat(driver.epoch)
        if self.recovered:
            logger.info("recovered versions %s of %s", self.recovered, self._endpoints.namespace)
        return driver

    def _keep_alive(self, alive: Alive) -> None:
        """Heartbeat and retirement beside the batches, while ``alive``."""
        if self._driver is not None and (self._background is None or self._background.ended):
            driver = self._driver
            self._background = Background(
                driver.log, driver.store, self._options, lambda: driver.epoch, alive
            )

    def _new_driver(self) -> Driver:
        where = self._endpoints
        return Driver(
            where,
            open_log(where.wal, where.namespace, where.wal_options),
            open_store(where.store, where.namespace, where.store_options),
            self._options,
            apply_on_executors=apply_on_executors(lambda: self._session.sparkContext, where),
            watch=self._watch,
        )

    def _watch(self, state: State) -> None:
        """Add the time since the state before to it: what took so long was to leave it."""
        now = time.perf_counter()
        if state is State.STAGING:
            self.last_phases = {}
        else:
            before, since = self._entered
            self.last_phases[before.value] = self.last_phases.get(before.value, 0.0) + now - since
        self._entered = (state, now)

    def _release(self) -> None:
        if self._background is not None:
            self._background.stop()
        if self._driver is not None:
            self._driver.log.close()
            self._driver.store.close()
        self._driver = self._background = None

    def _known(self, driver: Driver) -> dict[str, TableSchema]:
        """The schemas of the tables as they stand. Read from the store: it is never behind here."""
        tables = driver.folded.tables
        if not tables:
            return {}
        schemas = driver.store.schemas()
        return {name: schemas[at.schema_id] for name, at in tables.items()}

    def _parallelism(self, batch_df: DataFrame, state: Folded) -> int:
        asked = self._options.parallelism or batch_df.sparkSession.sparkContext.defaultParallelism
        return min(asked, state.key_groups)


def _origin(state: Folded, batch: BatchContext) -> BatchOrigin:
    return BatchOrigin(batch.lineage, state.generation, batch.batch_id, batch.fingerprint)


def _refuse(state: Folded, batch: BatchContext) -> None:
    """LineageError when the batch went back in time, before anything is appended."""
    replay_of(state, _origin(state, batch))
