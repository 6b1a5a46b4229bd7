"""The store on Cassandra: every version's rows side by side, a pointer moved by conditional writes.

Durable, larger than memory, on many nodes. Every decisive step (which namespace exists, the
pointer, claims, flips, the horizon) is a conditional write, agreed on by Paxos; everything else is
repeatable. docs/storage-format.md has the layout, docs/decisions/0014 why it is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from cassandra import ConsistencyLevel

from tidegate.base.checks import Check
from tidegate.options import VALUE_BYTES_MAX
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.capabilities import SupportsNamespaces, SupportsPutEntries
from tidegate.sinks.cassandra import leases, self_check
from tidegate.sinks.cassandra.aliases import CassandraAliases
from tidegate.sinks.cassandra.attempts import NotedAttempts, put_schema
from tidegate.sinks.cassandra.checks import set_up
from tidegate.sinks.cassandra.namespace import HERE, NEVER_AGAIN_US, CassandraNamespace, milliseconds
from tidegate.sinks.cassandra.rows import Rows
from tidegate.sinks.records import (
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
    ReadAt,
    RowCount,
    Stamp,
    Stopped,
    Vacuumed,
    never,
)
from tidegate.sinks.rules.columns import column_of
from tidegate.sinks.rules.expiry import ExpirySweep, SweepPage
from tidegate.sinks.rules.leases import Lease, LeaseInfo, Limits, check_leasable
from tidegate.sinks.rules.reads import check_fillable, decode, encode
from tidegate.sinks.rules.schemas import SchemaLooks, unnamed
from tidegate.sinks.rules.seals import incomplete
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import TableSchema


class CassandraStore(SupportsNamespaces, SupportsPutEntries):
    """A namespace in a keyspace. Connects on first use. ``options``: ``client/settings.py``."""

    can_be_filled = can_rewrite = True
    apply_bytes = 16 * 1024 * 1024
    """A frame has few partitions, whose writers wait for each other; several frames keep the nodes busy."""
    value_bytes_max = 15 * 1024 * 1024
    """A server takes a write of up to half its commit log's segments, 16 MiB by default."""

    size_counts = "all namespaces and copies of this data centre, as its nodes last estimated"

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        self._space = CassandraNamespace(url, namespace, options)
        self._rows = Rows(self._space)
        self._attempts = NotedAttempts(self._space, self._rows)
        self._sweep, self._looks = ExpirySweep(), SchemaLooks()
        self.where = self._space.where

    # -- identity ------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        return self._space.identity()

    def prepare(self) -> list[str]:
        return self._space.prepare()

    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        return self._space.create(identity, lost_at)

    def aliases(self) -> Aliases:
        return CassandraAliases(self._space)

    def namespaces(self) -> list[str]:
        session = self._space.session
        rows = session.rows("names", level=ConsistencyLevel.QUORUM) if session.has_tables() else []
        return sorted(name for name, state in rows if state == HERE)

    # -- the pointer ---------------------------------------------------------------------------

    def pointer(self) -> Pointer:
        return self._space.look().pointer

    def claim(self, epoch: int, writer: str) -> int:
        self._space.writing, made = True, self._space.made
        claimed = self._space.decide(("claim", epoch, writer, made.space, epoch), again=True)
        if claimed[0]:
            return epoch
        if is_missing(claimed):
            raise self._space.lost(made)
        return int(claimed[1])

    def heartbeat(self, epoch: int) -> None:
        self._put_heartbeat("heartbeat", epoch)

    def end_heartbeat(self, epoch: int) -> None:
        self._put_heartbeat("end_heartbeat", epoch)

    def _put_heartbeat(self, statement: str, epoch: int) -> None:
        made = self._space.made
        if is_missing(self._space.decide((statement, made.space, epoch))):
            raise self._space.lost(made)

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        self._space.writing = True
        space, version = self._space.made.space, entry.version
        flip = ("flip", version, entry.digest, epoch, space, version - 1, version, epoch)
        return bool(self._space.decide(flip, self._entered(entry))[0])

    def _entered(self, entry: CatalogEntry) -> tuple[Any, ...]:
        content = encode(msgspec.structs.replace(entry, published_at_us=0)).decode()
        return "enter_version", self._space.made.space, entry.version, content

    def put_entries(self, entries: Iterable[CatalogEntry]) -> int:
        pointer = self.pointer()
        readable = range(max(pointer.horizon, 1), pointer.visible + 1)
        stored = {entry.version for entry in self.catalog()}
        lost = [entry for entry in entries if entry.version in readable and entry.version not in stored]
        for entry in lost:
            self._space.write(*self._entered(entry))
        return len(lost)

    # -- writing a decided version ---------------------------------------------------------------

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        entry = self._entry(self.pointer().visible)
        newer_us = entry.decided_at_us + 1 if entry else 1  # than the tombstone of a schema that was removed
        for schema in schemas:
            self._space.write("put_schema", *put_schema(self._space, schema, newer_us))

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        return self._attempts.begin(stamp, schemas, epoch)

    def begun(self) -> list[Stamp]:
        return self._attempts.begun()

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        self._attempts.discard(lost, epoch)

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        self._attempts.refuse_other(stamp)
        self._rows.apply(stamp, chunks)

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        wrong = self._rows.seal(stamp, counts)
        if wrong:
            raise incomplete(self.where, stamp, wrong)

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        self._rows.rewrite(stamp, runs)

    # -- reading -----------------------------------------------------------------------------------

    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        pointer = self.pointer()
        first = max(oldest, pointer.horizon, 1)
        last = pointer.visible if newest is None else min(newest, pointer.visible)
        entries = self._entries(first, last)
        if len(entries) <= last - first:
            # A flip whose coordinator died may be on one node only, and a read may have repaired its
            # pointer alone.
            self._space.look(settle=True)
            entries = self._entries(first, last)
        return entries

    def _entries(self, first: int, last: int) -> list[CatalogEntry]:
        return [
            msgspec.structs.replace(
                decode(self.where, entry, CatalogEntry), published_at_us=milliseconds(published) * 1_000
            )
            for entry, published in reversed(self._space.rows("catalog", first, last))
            if entry is not None and published is not None
        ]

    def schemas(self) -> dict[str, TableSchema]:
        return {name: decode(self.where, schema, TableSchema) for name, schema in self._space.rows("schemas")}

    def get_stored_one(self, at: ReadAt, key: bytes) -> bytes | None:
        made = self._space.check_before(at.version)
        value = self._rows.get(at, key)
        self._space.check_same(made)
        return value

    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        made = self._space.check_before(at.version)
        values = self._rows.look_up("get_some", at, keys, at.version, at.start)
        if None in values:
            self._space.check_after(at.version)
        self._space.check_same(made)
        return column_of(values)

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        made = self._space.check_before(at.version)
        for batch in self._rows.scan(at, group):
            self._space.check_same(made)
            yield batch
        self._space.check_same(made)

    # -- leases and retirement -----------------------------------------------------------------------

    def lease(self, lease: Lease, ttl_s: float) -> None:
        if self._space.settings.leases:
            leases.lease(self._space, lease, ttl_s)
        else:  # no lease pins the version: a read of retired rows detects that itself (0014)
            pointer = self.pointer()
            check_leasable(self.where, lease, ttl_s, pointer.visible, pointer.horizon)

    def release(self, lease_id: str) -> None:
        if self._space.settings.leases:
            leases.release(self._space, lease_id)

    def leases(self) -> list[LeaseInfo]:
        return leases.leases(self._space)

    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        limits = Limits(max_lease_s, max_layers, keep_versions)
        return leases.announce(self._space, horizon, limits, self._published_us)

    def _published_us(self, version: int) -> int | None:
        return next((entry.published_at_us for entry in self._entries(version, version)), None)

    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        space = self._space.within()
        if stamp.version > space.look().pointer.horizon:
            return False  # announced in a space that was lost; the one that replaced it keeps the version
        rows = self._rows.within(space)
        if not rows.retire(stamp, changes, stopped):
            return False
        # Its own entry names what it dropped. Another driver that removed it has retired the version.
        entry = next(iter(self._entries(stamp.version, stamp.version)), None)
        for table, start in (entry.starts if entry else {}).items():
            if start == stamp.version:
                if stopped():
                    return False
                rows.retire_replaced(stamp, table)
        rows.drop_notes(stamp.version - 1, stamp.decided_at_us)
        self._forget(stamp.version)
        self._forget_schemas()
        return True

    def drop_expired(self, rows: int) -> int:
        space = self._space.within()
        entry, rows_there = self._entry(space.look().pointer.horizon), self._rows.within(space)
        if entry is None:
            return 0

        def check_page(table: str, group: int, cursor: bytes | None, most: int) -> SweepPage:
            return rows_there.drop_expired(table, group, cursor, most, entry)

        return self._sweep.run(rows, entry, self._space.made.identity.key_groups, check_page)

    def _entry(self, version: int) -> CatalogEntry | None:
        return next(iter(self.catalog(version, version)), None) if version else None

    def _forget(self, version: int) -> None:
        """Drop catalog entries up to the version and below the horizon, if the horizon has not moved."""
        space, horizon = self._space.made.space, self.pointer().horizon
        end = min(version + 1, horizon)
        if end:
            self._space.decide(("same_horizon", horizon, space, horizon), ("forget_versions", space, end))

    def _forget_schemas(self) -> None:
        """Remove schemas that no version names. A version that has begun writes its own with a later time."""
        pointer = self.pointer()
        if not self._looks.is_due(pointer.horizon):
            return
        entries = self._entries(max(pointer.horizon, 1), pointer.visible)
        stored = [schema_id for schema_id, _ in self._space.rows("schemas")]
        for schema_id in unnamed(stored, pointer, entries):
            self._space.write("drop_schema", entries[-1].decided_at_us, self._space.made.space, schema_id)
        self._looks.ended(pointer)

    # -- filling a new store from another one ---------------------------------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        check_fillable(self.where, entry.version)
        version, made = entry.version, self._space.made
        self._space.decide(("begin_fill", version, made.space, version, epoch), again=True)
        pointer = self.pointer()
        if pointer.visible or pointer.epoch > epoch:
            return 0
        if pointer.horizon == version:
            self._rows.begun = Stamp(version, entry.decided_at_us, entry.attempt)
            # Rows of an older filler, and its late writes: their version's timestamp is older.
            for table in {*entry.tables, *self._rows.tables()}:
                self._rows.retire_replaced(Stamp(version, entry.decided_at_us), table)
        return pointer.horizon

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        self._space.writing = True
        space, filled, shown = self._space.made.space, entry.version, (entry, *newer)[-1]
        flip = ("flip_filled", shown.version, filled, shown.digest, epoch, space, filled, epoch)
        return bool(self._space.decide(flip, *map(self._entered, (entry, *newer)))[0])

    # -- verification -----------------------------------------------------------------------------------

    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        return list(self_check.verify(self._space, self._rows, stamp, counts))

    def size(self) -> int:
        return self._space.session.size()

    def checks(self, *, thorough: bool = False, value_bytes_max: int = VALUE_BYTES_MAX) -> list[Check]:
        known = CassandraStore.value_bytes_max, CassandraStore.value_limit
        checks, limit = set_up(self._space, min(value_bytes_max, known[0]), thorough=thorough)
        self.value_bytes_max, self.value_limit = (limit.value_bytes, limit.why) if limit.why else known
        return checks

    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        return column_of(self._rows.look_up("of_version", at, keys, at.version))

    def self_check(self) -> Iterator[Finding]:
        yield from self_check.check_catalog(self.where, self.pointer, self.catalog)
        yield from self_check.malformed(self._space, self._rows)

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        return self_check.row_counts(self._space, self._rows, tables)

    # -- vacuum and removal -----------------------------------------------------------------------------

    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        space = self._space.within()
        rows_there, pointer = self._rows.within(space), space.look().pointer
        if pointer.filling_at:
            return Vacuumed()  # the version that is being written may not be taken for an old one
        horizon = pointer.horizon
        entry = self._entry(horizon)
        rows = rows_there.vacuum(horizon, entry, dry_run=dry_run) if horizon else 0
        below = [version for (version,) in space.rows("versions_below", horizon)]
        ran_out = leases.ran_out(space)
        if not dry_run:
            for version in below:
                rows_there.drop_notes(version, NEVER_AGAIN_US)
            self._forget(horizon)
            self._forget_schemas()
            leases.announce(self._space, 0, Limits(), self._published_us)  # drops expired leases
        return Vacuumed(rows, 0, ran_out, len(below))

    def drop(self, *, thorough: bool = False) -> bool:
        existed = self._space.begin_drop()
        return self._space.finish_drop() or existed

    def close(self) -> None:
        self._space.close()


def is_missing(outcome: tuple[Any, ...]) -> bool:
    """Whether a conditional write on the pointer's epoch found no pointer. Scylla returns a row of nulls."""
    return not outcome[0] and (len(outcome) == 1 or outcome[1] is None)
