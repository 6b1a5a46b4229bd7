"""The changes of a table, version by version, read from the log: planned by the driver, read by tasks.

The log is the one place that has every version's changes as they were decided, whatever the store;
a store merges versions as soon as it may. Only versions that are visible in the store are returned.
The works that travel to tasks are plain data.

No pyspark is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import msgpack_decoder
from tidegate.base.urls import redact
from tidegate.committers.apply.apply import ApplyWork, chunks_of, plan, read_manifest, stamp_of
from tidegate.errors import ConfigError, WalGapError
from tidegate.keys.types import parse
from tidegate.reader import rules
from tidegate.reader.decided_log import DecidedLog
from tidegate.sinks.diff import Lookups
from tidegate.sinks.open_store import shared_store
from tidegate.sinks.records import Pointer, ReadAt, Stamp
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.rules.version_ref import VersionRef
from tidegate.sinks.rules.visible import no_schema
from tidegate.sinks.store import Store
from tidegate.spark.source.arrow_rows import columns_of, record_batch
from tidegate.spark.source.leased_table import LeasedTable, lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.values.decode import values_of
from tidegate.values.evolve import is_wider, reads_all
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import shared_log
from tidegate.wal.record import Column, TableAt, TableSchema

CHANGE_TYPE, VERSION = "_change_type", "_version"
NEW_CHECKPOINT = (
    "start the query on a new checkpoint, and let it write its output again from the start, since rows of the"
    " earlier history are in it"
)
ROWS_PER_PART = 50_000
"""Small versions are read together, about this number of rows by one task."""

_encode = msgspec.msgpack.Encoder().encode


class FeedWork(msgspec.Struct, frozen=True):
    """Changes of one table in one range of key groups of one version.

    ``emptied``: the version emptied the table first, or dropped it. ``emits_truncate``: this work emits the
    row for that.
    """

    apply: ApplyWork
    schema: TableSchema
    emptied: bool
    emits_truncate: bool


def encode_works(works: Sequence[FeedWork]) -> bytes:
    """Encode works for a task."""
    return _encode(list(works))


@dataclasses.dataclass(frozen=True)
class Feed:
    """The tasks' parameters. ``leased`` has the store's location and the columns."""

    leased: LeasedTable
    wal: str = dataclasses.field(repr=False)
    wal_options: dict[str, Any] = dataclasses.field(repr=False)
    exact: bool

    def rows(self, works: bytes, schema: Any) -> Iterator[Any]:
        """Yield the changes of these works as record batches of ``schema``. In tasks.

        Raises: WalGapError, the log was trimmed since they were planned; SnapshotExpiredError,
        ``exact``, and the store no longer has the version before.
        """
        leased = self.leased
        log = shared_log(self.wal, leased.namespace, leased.uuid, self.wal_options)
        for work in msgpack_decoder(list[FeedWork]).decode(works):
            version = work.apply.stamp.version
            if work.emits_truncate:
                yield self._batch(None, ["truncate"], version, schema)
            for chunk in chunks_of(work.apply, log):
                for run in chunk.runs:
                    if run.table != leased.at.table:
                        continue
                    for batch in self._changes(run, work):
                        yield self._batch(batch, batch.pop(CHANGE_TYPE), version, schema)

    def _changes(self, run: Any, work: FeedWork) -> Iterator[dict[str, Any]]:
        contents, lookups = payloads(run.values, work.apply.stamp.decided_at_us), Lookups()
        rows = pa.record_batch({"key": run.keys, "value": contents})
        if not self.exact:
            yield from self._columns(rows, pc.if_else(contents.is_null(), "delete", "upsert"), work)
            return
        for parts in lookups.parts(iter([(run.group, rows)])):  # the values before may be of any size
            for _, batch in parts:
                deletes, before = batch["value"].is_null(), self._before(batch["key"].to_pylist(), work)
                lookups.found(before)
                is_change = pc.invert(pc.and_(deletes, before.is_null()))
                kinds = pc.if_else(before.is_null(), "insert", "update")
                kinds = pc.if_else(deletes, "delete", kinds).filter(is_change)
                yield from self._columns(batch.filter(is_change), kinds, work)

    def _columns(self, batch: Any, kinds: Any, work: FeedWork) -> Iterator[dict[str, Any]]:
        if batch.num_rows:
            where = f"{redact(self.wal)}, table {self.leased.at.table}, version {work.apply.stamp.version}"
            yield {**columns_of(batch, values_of(work.schema), where), CHANGE_TYPE: kinds}

    def _before(self, keys: list[bytes], work: FeedWork) -> Any:
        """Return the keys' values at the version before."""
        leased, version = self.leased, work.apply.stamp.version - 1
        store = shared_store(leased.url, leased.namespace, leased.uuid, leased.store_options)
        entry = next(iter(store.catalog(version, version)), None) if version else None
        if (entry is not None and leased.at.table not in entry.tables) or version == 0 or work.emptied:
            return pa.nulls(len(keys), pa.binary())
        if entry is None:
            return store.get_many(ReadAt(leased.at.table, version), keys)  # raises: that version was retired
        return store.get_many(entry.read_at(leased.at.table), keys)

    def _batch(self, columns: dict[str, Any] | None, kinds: Any, version: int, schema: Any) -> Any:
        rows = len(kinds)
        versions = pa.repeat(pa.scalar(version, pa.int64()), rows)
        kinds = pa.array(kinds, pa.string()) if isinstance(kinds, list) else kinds
        try:
            return record_batch({**(columns or {}), CHANGE_TYPE: kinds, VERSION: versions}, schema)
        except pa.ArrowException as error:
            raise ConfigError(
                f"table {self.leased.at.table} has values at version {version} that do not fit the columns of"
                f" this query ({error}): the table was replaced, with columns of other types; restart the"
                " query, or start a new checkpoint, with a later startingVersion"
            ) from error

    def lease(self, options: SourceOptions, version: int) -> LeasedTable:
        """Lease the whole table at this version, for ``snapshot``.

        Raises: as ``lease_table`` and ``check_columns``.
        """
        leased = lease_table(options, version)
        check_columns(self.leased, leased.schema, version)
        return leased

    def snapshot(self, leased: LeasedTable, groups: range, schema: Any) -> Iterator[Any]:
        """Yield all rows at the version of ``leased``, after a mark that voids all earlier rows. In tasks."""
        if groups.start == 0:
            yield self._batch(None, ["truncate"], leased.at.version, schema)
        store = shared_store(leased.url, leased.namespace, leased.uuid, leased.store_options)
        for batch in leased.while_leased(store, leased.stored(store, groups)):
            kinds = pa.repeat(pa.scalar("snapshot", pa.string()), batch.num_rows)
            columns = columns_of(batch, leased.values, leased.where)
            yield self._batch(columns, kinds, leased.at.version, schema)


def check_columns(leased: LeasedTable, schema: TableSchema, version: int) -> None:
    """Raise ConfigError if this version's rows have what the feed cannot return in ``leased``'s columns.

    Columns that the table had before, and that a replacement has dropped since, are left out.
    """
    then, known = schema.value_format, leased.schema.value_format
    if then != known and "bytes" in (then, known):
        way = "restart it, the source takes its columns at the start"
        if version <= leased.at.version:
            way = "the table was replaced since; start a new checkpoint, with a later startingVersion"
        raise ConfigError(
            f"table {leased.at.table} holds {then} values at version {version}, this query gives {known}"
            f" ones: {way}"
        )
    if schema.key != leased.schema.key:  # dropped, and made again
        raise ConfigError(
            f"table {leased.at.table} has the key {_shown(schema.key)} at version {version}, this query gives"
            f" {_shown(leased.schema.key)}: the table was dropped and made again; start a new checkpoint,"
            " with a later startingVersion"
        )
    known_columns = {column.name for column in (*leased.schema.key, *leased.schema.columns)}
    new = [column.name for column in schema.columns if column.name not in known_columns]
    if new and version > leased.at.version:
        raise ConfigError(
            f"table {leased.at.table} has the columns {', '.join(new)} from version {version} on,"
            " which this query does not know: restart it, the source takes its columns at the start"
        )
    types = {column.name: column.type for column in schema.columns}
    wider = [
        f"{column.name} ({types[column.name]}, it was {column.type})"
        for column in leased.schema.columns
        if column.name in types and not is_wider(parse(column.type), parse(types[column.name]))
    ]
    if wider and version > leased.at.version:
        raise ConfigError(
            f"table {leased.at.table} has other types from version {version} on, of the columns"
            f" {', '.join(wider)}: restart this query, the source takes its columns at the start"
        )


def _shown(columns: Sequence[Column]) -> str:
    """Name columns with their types, for messages."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


class FeedPlanner:
    """The planner of ranges of versions; it is in the driver, and folds the log as it grows."""

    def __init__(self, feed: Feed, log: Log, store: Store, parallelism: int) -> None:
        self._feed, self._log, self._store = feed, log, store
        self._decided = DecidedLog(log, feed.leased.uuid)
        self._parallelism = min(parallelism, feed.leased.key_groups)

    def pointer(self) -> Pointer:
        """Return the pointer of the store. Raises: StoreRemovedError."""
        pointer = self._store.pointer()
        rules.check_followed(self._store.where, pointer)
        return pointer

    def ref(self, version: int, pointer: Pointer) -> VersionRef:
        """Return a visible version with its history, by the pointer or by the log. Raises: as ``works``."""
        if version == pointer.visible:
            return VersionRef(version, self._feed.leased.uuid, pointer.digest)
        self._decided.check_same_history(pointer)
        return self._decided.ref(version)

    def check_given(self, given: VersionRef, pointer: Pointer) -> None:
        """Compare a version of the checkpoint with log and store (I12).

        Raises: WalGapError: it is of another history, so that none of its later versions is here.
        """
        shown = VersionRef(given.version, self._feed.leased.uuid)
        given.check(shown, self._feed.leased.where, WalGapError, NEW_CHECKPOINT)
        if 0 < given.version <= pointer.visible:
            shown = self.ref(given.version, pointer)
            given.check(shown, self._feed.leased.where, WalGapError, NEW_CHECKPOINT)

    def continues(self, given: VersionRef) -> bool:
        """Return whether the log has what follows a version. Raises: ConfigError, as ``works``."""
        with contextlib.suppress(WalGapError):
            self.check_comparable(given)
            return self.has(given.version + 1)
        return False

    def check_comparable(self, given: VersionRef) -> None:
        """Refuse to continue after a version that cannot be compared any more. Raises: WalGapError."""
        if given.digest and not self._decided.ref(given.version).digest:
            raise self._retired(given.version + 1, f"it has no decision of version {given.version}")

    def has(self, version: int) -> bool:
        """Return whether the log still has a visible version's changes. Raises: ConfigError, as ``works``."""
        try:
            self._manifest(version, probe=True)
        except WalGapError:
            return False
        return True

    def works(self, after: int, upto: int) -> list[list[FeedWork]]:
        """Return the versions after ``after``, up to ``upto``, as one list of works per task.

        Raises: WalGapError, the log no longer has the first of them; ConfigError, the table got
        columns that this feed does not have, or the log is of another namespace; CorruptError, log
        and store are of two histories.
        """
        self._decided.check_same_history(self._store.pointer(), upto)
        parts: list[list[FeedWork]] = []
        rows = 0
        for version in range(after + 1, upto + 1):
            manifest = self._manifest(version, probe=version == after + 1)
            for work, count in self._of_version(version, manifest):
                if not parts or rows + count > ROWS_PER_PART:
                    parts.append([])
                    rows = 0
                parts[-1].append(work)
                rows += count
        return parts

    def truncation(self, version: int) -> FeedWork | None:
        """Return the work that voids all rows, if this version has no such table: it was dropped."""
        leased, entry = self._feed.leased, next(iter(self._store.catalog(version, version)), None)
        if entry is None or leased.at.table in entry.tables:
            return None
        stamp = Stamp(version, entry.decided_at_us, entry.attempt)
        none = ApplyWork(leased.uuid, entry.attempt, stamp, 0, 0, (), {})
        return FeedWork(none, leased.schema, emptied=True, emits_truncate=True)

    def _of_version(self, version: int, manifest: Manifest) -> Iterator[tuple[FeedWork, int]]:
        table = self._feed.leased.at.table
        state, dropped = manifest.table_schemas.get(table), table in (manifest.dropped or ())
        if state is None and not dropped:
            return
        emptied, changes = state is None or state.start == version, manifest.changes().get(table, 0)
        if not changes and not emptied:
            return
        schema = self._feed.leased.schema if state is None else self._schema(table, state, manifest, version)
        tasks = 1 if changes <= ROWS_PER_PART else self._parallelism
        fact = self._decided.recent(version)
        assert fact is not None
        works = plan(manifest, fact, tasks)
        if emptied and not works:  # no row of any table was written instead
            named = manifest.namespace, fact.attempt, stamp_of(fact)
            works = [ApplyWork(*named, 0, 0, (), {})]
        index = manifest.tables.index(table) if table in manifest.tables else -1
        for place, work in enumerate(works):
            frames = tuple((ordinal, ref) for ordinal, ref in work.frames if index in ref.tables)
            rows = sum(by_table.get(table, 0) for by_table in work.counts.values())
            emits_truncate = emptied and place == 0
            if rows or emits_truncate:
                yield (
                    FeedWork(msgspec.structs.replace(work, frames=frames), schema, emptied, emits_truncate),
                    rows,
                )

    def _schema(self, table: str, at: TableAt, manifest: Manifest, version: int) -> TableSchema:
        known = manifest.schemas.get(at.schema_id) or self._store.schemas_of([at.schema_id]).get(at.schema_id)
        if known is None:
            raise no_schema(self._store.where, version, table, at.schema_id)
        leased = self._feed.leased
        check_columns(leased, known, version)
        # Rows from before a change have the columns after it.
        is_read = reads_all(leased.schema, known, same_start=at.start == leased.at.start)
        return leased.schema if is_read else known

    def _manifest(self, version: int, *, probe: bool) -> Manifest:
        """Return the version's manifest. With ``probe`` a frame is read, too, since it may be
        trimmed first.
        """
        fact = self._decided.recent(version)
        if fact is None:
            raise self._retired(version, "it keeps what the last 1,000 versions were")
        try:
            manifest = read_manifest(self._log, fact)
            frames = manifest.frames()
            if probe and frames:
                for _ in self._log.read([frames[0].address]):
                    pass
        except WalGapError as error:
            raise self._retired(version, str(error)) from error
        return manifest

    def _retired(self, version: int, why: str) -> WalGapError:
        return WalGapError(
            f"the changes of version {version} are no longer in log {redact(self._feed.wal)} ({why}), so the"
            " feed cannot continue without a gap: raise wal_retain_s at the writer; now, start a new"
            " checkpoint with startingVersion=latest, or set onRetired=snapshot to get the whole table once,"
            " and the changes after it"
        )
