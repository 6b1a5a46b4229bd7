"""The versions of a sink that are not batches: planned, and written once."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidegate.base.names import (
    MIGRATION_TOKEN,
    QUEUE,
    check_folder,
    check_token,
    did_you_mean,
    listed,
    own_token,
)
from tidegate.base.text import brief
from tidegate.committers.barrier import stride_here, value_bytes_max
from tidegate.committers.exports.export_format import Manifest
from tidegate.committers.exports.import_rows import derived_in, imported_strides
from tidegate.committers.opening.rekeyed import undone_words
from tidegate.committers.rename_column import rename_barrier
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.spark.calls.checks import Names, check_table, no_dataframe
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.calls.migrate_state import MigrationWork, migrated_rows
from tidegate.spark.calls.update import Ddl, state_of, value_schema
from tidegate.spark.source.exported import check_files, frame_of, queue_frame, read_manifest
from tidegate.spark.staging.parallelism import tasks_for
from tidegate.spark.state.udf_runner import Migrate
from tidegate.spark.transaction import Transaction
from tidegate.spark.writer import SinkWriter
from tidegate.values.evolve import evolved
from tidegate.values.state_versions import plain
from tidegate.wal.fold import decided_for, once_key
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded, ImportOrigin, LoadOrigin, Origin, TableSchema
from tidegate.wal.staging.own_tables import QUEUE_SCHEMA, check_companions, owner_of, queues_of
from tidegate.wal.staging.spec import StageSpec

logger = logging.getLogger("tidegate")


class Here(NamedTuple):
    """The version that is written: its calls, the key groups, each table's stride, and the largest value."""

    collected: CollectedCalls
    base_version: int
    key_groups: int
    stride: Callable[[str], int]
    value_bytes_max: int


Write = Callable[[Here], None]
"""Makes the calls."""


class Once(NamedTuple):
    """A version that is written once: its origin, the function that writes it, and a DataFrame of it."""

    origin: Origin
    write: Write
    rows: DataFrame
    expiring: frozenset[str] = frozenset()
    """Tables whose rows already have an expiry."""
    strides: Callable[[Folded, Options], Mapping[str, int]] = lambda *_: {}
    """Returns the strides that new tables bring."""
    derived: frozenset[str] = frozenset()
    """Tables that the sink has to derive."""


class Base(NamedTuple):
    """The version whose rows a migration reads: the fold at it, its tables' schemas, and the store.

    ``value_bytes_max`` is the limit of all stores.
    """

    state: Folded
    schemas: Mapping[str, TableSchema]
    endpoints: Endpoints
    value_bytes_max: int


def load_of(
    tables: Mapping[str, DataFrame], token: str, keys: Names | Mapping[str, Names] | None, *, replace: bool
) -> Once:
    """Plan the load of static DataFrames. Raises: ConfigError: the token or the tables do not fit."""
    token = check_token(token)
    _check_loaded(tables)
    by_table = {name: keys.get(name) if isinstance(keys, Mapping) else keys for name in tables}

    def write(target: Here) -> None:
        txn = Transaction(-1, target.base_version, target.collected)
        for name, rows in tables.items():
            key = by_table[name]
            if key is None:
                msg = f"table {name}: which column is its key? pass key=, or key={{{name!r}: column}}"
                raise ConfigError(msg)
            (txn.replace if replace else txn.upsert)(name, rows, key)

    return Once(LoadOrigin(token), write, next(iter(tables.values())))


def import_of(spark: SparkSession, folder: str, token: str | None, bytes_max: int | None) -> tuple[Once, int]:
    """Plan the import of an exported folder; return its number of key groups, too. Every file is checked.

    Raises: ConfigError: there is no export. CorruptError: a file is missing, or is not the exported one.
    """
    token = "" if token is None or token == "" else check_token(token)
    folder = check_folder("folder", folder)
    if not hasattr(spark, "read"):  # of Spark Connect, too
        raise ConfigError(f"spark is {brief(spark)}; give the SparkSession that reads the folder")
    if bytes_max is not None and (type(bytes_max) is not int or bytes_max < 1):
        raise ConfigError(f"bytes_max is {brief(bytes_max)}; it must be a number of bytes, or None")
    manifest, digest = read_manifest(spark, folder)
    check_companions(manifest.tables, ())
    check_files(spark, folder, manifest, bytes_max)
    derived = frozenset(derived_in(folder, manifest))
    frames = {
        name: frame_of(spark, folder, name, table)
        for name, table in manifest.tables.items()
        # The version makes queues of the due times, and derived tables of their base.
        if not name.startswith(f"{QUEUE}.") and name not in derived
    }

    def write(target: Here) -> None:
        queues = queues_of(frames)
        names = sorted(frames.keys() - queues)
        target.collected.begin_import({*names, *queues})
        for name in names:
            target.collected.add_stored(name, frames[name], manifest.tables[name].table_schema)
        for name, dues in queues.items():
            groups = target.key_groups, target.stride(dues)
            rows = queue_frame(frames[dues], dues, groups, manifest.decided_at_us, target.value_bytes_max)
            target.collected.add_stored(name, rows, QUEUE_SCHEMA)

    expiring = frozenset(name for name, table in manifest.tables.items() if table.expires)
    rows = next(iter(frames.values()))
    strides = partial(_exported_strides, manifest)
    once = Once(ImportOrigin(token or digest), write, rows, expiring, strides, derived)
    return once, manifest.key_groups


def _exported_strides(manifest: Manifest, state: Folded, options: Options) -> dict[str, int]:
    """Return the strides of the exported tables, but for those whose key groups the options name."""
    named = options.table_key_groups or {}
    strides = imported_strides(state, manifest)
    return {table: stride for table, stride in strides.items() if owner_of(table) not in named}


class Migration(NamedTuple):
    """The arguments of a migration of all rows of a state."""

    table: str
    migrate: Migrate
    state_version: int
    schema: Ddl | None


def migration_of(session: SparkSession, migration: Migration, base: Base, options: Options) -> Once | None:
    """Plan the migration of all rows of a state; None: all have the version already.

    Raises: ConfigError: there is no such table, the version goes back, or the arguments do not fit.
    """
    table, state = migration.table, base.state
    check_table(table)
    known = base.schemas.get(table)
    if known is None:
        raise ConfigError(
            f"there is no table {brief(table)}; tables are {', '.join(listed(base.schemas)) or 'none yet'}"
            f"{did_you_mean(table, base.schemas)}"
        )
    given = None if migration.schema is None else value_schema(table, known, migration.schema)
    version = state_of(table, given, known, migration.state_version, migration.migrate).version
    if known.states.keys() == {version}:
        return None
    after = plain(known if given is None else given, version)
    if known.version == version:
        after = evolved(table, plain(known, version), after).schema
    table_at = state.tables[table]
    work = MigrationWork(
        endpoints=base.endpoints,
        spec=StageSpec(
            state.namespace,
            "",
            (table,),
            (tuple(known.key_types),),
            options.frame_bytes,
            options.key_bytes_max,
            base.value_bytes_max,
            state.key_groups,
        ),
        table=table,
        start=table_at.start,
        version=state.last_version,
        at_us=state.decided_at_us,
        before=known,
        after=after,
        deadline_s=options.function_deadline_s,
        parallelism=tasks_for(options, session, state.key_groups),
    )
    rows = migrated_rows(session, work, migration.migrate)

    def write(target: Here) -> None:
        target.collected.add_stored(table, rows, after)

    token = own_token(MIGRATION_TOKEN, state.namespace, state.last_version, table)
    return Once(LoadOrigin(token), write, rows, frozenset({table}) if table_at.expires else frozenset())


def _check_loaded(tables: object) -> None:
    """Check that these are static DataFrames by table, at least one. Raises: ConfigError."""
    if not isinstance(tables, Mapping):
        msg = f"tables is a {type(tables).__name__}: pass {{table name: DataFrame}}"
        raise ConfigError(msg)
    if not tables:
        msg = "there is nothing to load: pass {table name: DataFrame}"
        raise ConfigError(msg)
    for name, rows in tables.items():
        check_table(name)
        if not isinstance(rows, DataFrame):
            raise no_dataframe(f"table {name}", rows)
        if rows.isStreaming:
            msg = (
                f"table {name}: a load takes a static DataFrame, and this one streams: write it with"
                " df.writeStream.foreachBatch(sink), or read what is there with spark.read"
            )
            raise ConfigError(msg)


class SingleVersions:
    """The versions of a sink that are not batches: loads, imports, renamed columns, migrated states."""

    _writing: SinkWriter
    _key: Names | None

    def load(
        self,
        tables: Mapping[str, DataFrame],
        *,
        token: str,
        key: Names | Mapping[str, Names] | None = None,
        replace: bool = False,
    ) -> int | None:
        """Write static DataFrames as one version, once per token; return that version.

        ``key`` is one for all tables, or one per table; without it the sink's own. With
        ``replace`` the tables contain exactly these rows afterwards, otherwise the rows are upserted.
        Do not run it while a query of another process writes the same namespace: the later of the two
        fences the earlier.

        Durable: on return the version is visible, also with ``commit="pipelined"``. Repeatable: a token that
        was decided before writes nothing and returns its version, or None when the log no longer has that.
        Raises: the errors of a batch, which prove the same; after each of them the same call may be made
        again, with the same token. ConfigError: the token is not a text of 1 to 200 printable characters, or
        rows do not fit.
        """
        keys = key if key is not None else self._key
        return self._write_once(load_of(tables, token, keys, replace=replace))

    def import_folder(
        self, spark: SparkSession, folder: str, *, token: str | None = None, bytes_max: int | None = None
    ) -> int | None:
        """Make one version of a folder written by `tidegate export`, by a Spark job; return that version.

        The exported tables contain exactly the exported rows then; other tables stay. ``folder`` is a path,
        or a URL such as s3a://bucket/export; tasks read it, so every executor must reach it. A missing
        namespace is created, with the exported number of key groups unless ``key_groups`` is set. Every file
        is compared with its checksum first. A folder is imported once into a namespace, under its digest,
        also by `tidegate import`; ``token`` gives it another name. A query of another process: as for
        ``load``. ``bytes_max``: the most bytes of all rows, decompressed; None: 500 times those of the files,
        or 4 MiB.

        Durable: on return the version is visible. Repeatable: a second call writes nothing and returns the
        version, or None when the log no longer has that. Raises, with nothing staged: ConfigError: there is
        no export, a table has another key than the namespace's, or the namespace has a local state that the
        export lacks. CorruptError: a file is missing, or is not the exported one, or the rows take too many
        bytes.
        """
        once, key_groups = import_of(spark, folder, token, bytes_max)
        writing = self._writing
        with writing.lock:
            where, options = writing.settings.endpoints, writing.settings.options
            if writing.now is None and options.key_groups is None and not _is_made(where):
                options = dataclasses.replace(options, key_groups=key_groups)
                writing.settings = writing.settings._replace(options=options)
        return self._write_once(once)

    def rename_column(self, table: str, old: str, new: str) -> int | None:
        """Give a value column another name, by one version without rows; return that version.

        Readers find the new name from that version on, older versions keep the old one. No stored row
        changes. The old name stays reserved until the table is replaced, so a batch that still writes it is
        refused. Call it between two batches. A query of another process: as for ``load``.

        Durable: on return the version is visible. Repeatable: None, and nothing is written, if the column
        has the new name already. Raises: the errors of a batch, which prove the same. ConfigError: there is
        no such column, it is of the key or orders captured changes, or the new name is in use.
        """
        with self._once():
            writer = self._writing.open(self._writing.session)
            barrier = rename_barrier(writer.coordinator, writer.schemas(), table, old, new)
            return None if barrier is None else self._writing.commit_own(barrier).version

    def migrate_state(
        self, table: str, *, migrate: Migrate, state_version: int, schema: Ddl | None = None
    ) -> int | None:
        """Write all rows of a state again in the form of this version, as one version; return that.

        ``migrate(state, version)`` gets each row of another state version, as ``Transaction.update`` has
        it; None removes the row. ``schema`` are the columns of a version that the table does not have yet.
        Spark's tasks read and write the whole table. A row that expires keeps its expiry. Call it between two
        batches. A query of another process: as for ``load``.

        Durable: on return the version is visible. Repeatable: None, and nothing is written, if all rows have
        the version already. Raises: the errors of a batch, which prove the same. ConfigError: no session of
        Spark is active, there is no such table, or the version goes back.
        """
        with self._once():
            writing, session = self._writing, self._writing.session
            if session is None:
                raise ConfigError("migrate_state runs a Spark job: start a SparkSession in this thread first")
            writer, where = writing.open(session), writing.settings.endpoints.only()
            writing.drain()
            coordinator = writer.coordinator
            base = Base(coordinator.folded, writer.schemas(), where, value_bytes_max(coordinator))
            migration = Migration(table, migrate, state_version, schema)
            once = migration_of(session, migration, base, writing.settings.options)
            return None if once is None else self._write(once)

    def _write_once(self, once: Once) -> int | None:
        with self._once():
            return self._write(once)

    @contextlib.contextmanager
    def _once(self) -> Iterator[None]:
        """Hold the sink for one version that is not a batch. After an error it opens again."""
        writing = self._writing
        with writing.lock:
            streaming = writing.now is not None and not writing.now.background.ended
            try:
                yield
            except BaseException:
                writing.release()
                raise
            finally:
                if writing.now is not None and not streaming:
                    writing.now.background.drain(writing.settings.options.apply_deadline_s)

    def _write(self, once: Once) -> int | None:
        writing, session = self._writing, once.rows.sparkSession
        coordinator = writing.open(session).coordinator
        if once_key(once.origin) in coordinator.folded.once:
            fact = decided_for(coordinator.folded, once.origin)
            if undone := undone_words(coordinator.folded, once.origin):
                logger.warning(
                    "namespace %s: %s was %s: nothing is written; give another token to write it again",
                    coordinator.folded.name, once_key(once.origin), undone,
                )  # fmt: skip
            return None if fact is None else fact.version
        if missing := once.derived - writing.derived.keys():
            raise ConfigError(
                f"the export has the derived tables {', '.join(sorted(missing))}: declare them,"
                " VersionedSink(derived=[...]), or export their base without them; nothing was written"
            )
        collected = writing.begin(-1, session)
        strides = once.strides(coordinator.folded, writing.settings.options)
        stride = partial(stride_here, coordinator, brought=strides)
        state, bytes_max = coordinator.folded, value_bytes_max(coordinator)
        once.write(Here(collected, state.last_version, state.key_groups, stride, bytes_max))
        fact = writing.commit(collected, once.origin, once.rows, expiring=once.expiring, strides=strides)
        writing.drain()
        return fact.version


def _is_made(where: Endpoints) -> bool:
    with (
        contextlib.closing(open_store(where.store, where.namespace, where.store_options)) as store,
        contextlib.closing(open_log(where.wal, where.namespace, where.wal_options)) as log,
    ):
        return store.identity() is not None or not log.is_empty()
