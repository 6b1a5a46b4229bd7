"""Versions that are not batches, planned: static DataFrames and exported folders. The sink writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidegate.base.names import MIGRATION_TOKEN, QUEUE, check_token, did_you_mean, listed
from tidegate.base.text import brief
from tidegate.committers.exports.export_format import Manifest
from tidegate.committers.exports.import_rows import imported_strides
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.spark.calls.checks import Names, check_table, no_dataframe
from tidegate.spark.calls.migrate_state import MigrationWork, migrated_rows
from tidegate.spark.calls.update import Ddl, state_of, value_schema
from tidegate.spark.source.exported import check_files, frame_of, queue_frame, read_manifest
from tidegate.spark.staging.parallelism import tasks_for
from tidegate.spark.state.udf_runner import Migrate
from tidegate.spark.transaction import Transaction
from tidegate.values.evolve import evolved
from tidegate.values.state_versions import plain
from tidegate.wal.record import Folded, ImportOrigin, LoadOrigin, Origin, TableSchema
from tidegate.wal.staging.own_tables import QUEUE_SCHEMA, check_companions, owner_of, queues_of
from tidegate.wal.staging.spec import StageSpec


class Here(NamedTuple):
    """The namespace that is written: its key groups, the stride of each table, and the largest value."""

    key_groups: int
    stride: Callable[[str], int]
    value_bytes_max: int


Write = Callable[[Transaction, Here], None]
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

    def write(txn: Transaction, _: Here) -> None:
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
    if not isinstance(folder, str):
        raise ConfigError(
            f"folder is {brief(folder)}; it must be text: a path, or a URL such as s3a://bucket/export"
        )
    manifest, digest = read_manifest(spark, folder)
    check_companions(manifest.tables, ())
    check_files(spark, folder, manifest, bytes_max)
    frames = {
        name: frame_of(spark, folder, name, table)
        for name, table in manifest.tables.items()
        if not name.startswith(f"{QUEUE}.")
    }

    def write(txn: Transaction, here: Here) -> None:
        queues = queues_of(frames)
        names = sorted(frames.keys() - queues)
        txn.begin_import({*names, *queues})
        for name in names:
            txn.stored(name, frames[name], manifest.tables[name].table_schema)
        for name, dues in queues.items():
            groups = here.key_groups, here.stride(dues)
            rows = queue_frame(frames[dues], dues, groups, manifest.decided_at_us, here.value_bytes_max)
            txn.stored(name, rows, QUEUE_SCHEMA)

    expiring = frozenset(name for name, table in manifest.tables.items() if table.expires)
    rows = next(iter(frames.values()))
    once = Once(ImportOrigin(token or digest), write, rows, expiring, partial(_exported_strides, manifest))
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


def migration_of(session: SparkSession, wanted: Migration, base: Base, options: Options) -> Once | None:
    """Plan the migration of all rows of a state; None: all have the version already.

    Raises: ConfigError: there is no such table, the version goes back, or the arguments do not fit.
    """
    table, state = wanted.table, base.state
    check_table(table)
    known = base.schemas.get(table)
    if known is None:
        raise ConfigError(
            f"there is no table {brief(table)}; tables are {', '.join(listed(base.schemas)) or 'none yet'}"
            f"{did_you_mean(table, base.schemas)}"
        )
    given = None if wanted.schema is None else value_schema(table, known, wanted.schema)
    version = state_of(table, given, known, wanted.state_version, wanted.migrate).version
    if known.states.keys() == {version}:
        return None
    after = plain(known if given is None else given, version)
    if known.version == version:
        after = evolved(table, plain(known, version), after).schema
    at = state.tables[table]
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
        start=at.start,
        version=state.last_version,
        at_us=state.decided_at_us,
        before=known,
        after=after,
        deadline_s=options.function_deadline_s,
        parallelism=tasks_for(options, session, state.key_groups),
    )
    rows = migrated_rows(session, work, wanted.migrate)

    def write(txn: Transaction, _: Here) -> None:
        txn.stored(table, rows, after)

    token = f"{MIGRATION_TOKEN}{state.last_version} {table}"
    return Once(LoadOrigin(token), write, rows, frozenset({table}) if at.expires else frozenset())


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
