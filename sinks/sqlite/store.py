"""The embedded store: a folder of SQLite files, for one machine and any number of processes.

Every step that must be atomic is one SQL transaction: ``publish`` is one UPDATE with its condition
in the WHERE clause; ``lease`` and ``announce`` each hold the write lock of ``meta.sqlite`` from
their first read to their commit.

A read uses two files, so the order matters: the visible version before the rows (an invisible
version may be half applied), the floor in one transaction with the rows, the horizon after them
(I1, I8).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.files import foreign_entry, refuse_nested, refuse_taken, refuse_unremovable, used_share
from tidegate.base.names import check_name, escape
from tidegate.base.text import brief
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.capabilities import SupportsNamespaces, SupportsReadWithPointer, SupportsUsage
from tidegate.sinks.records import (
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
    ReadAt,
    Reads,
    RowCount,
    Stamp,
    Stopped,
    Usage,
    Vacuumed,
    never,
)
from tidegate.sinks.rules import leases as rules
from tidegate.sinks.rules.columns import column_of
from tidegate.sinks.rules.expiry import ExpirySweep, SweepPage
from tidegate.sinks.rules.leases import Lease, LeaseInfo
from tidegate.sinks.rules.reads import (
    batch_of,
    check_fillable,
    check_kept,
    check_visible,
    checked_format,
    decode,
    encode,
    nothing_here,
    value_at,
    values_at,
)
from tidegate.sinks.rules.schemas import SchemaLooks
from tidegate.sinks.rules.seals import incomplete
from tidegate.sinks.sqlite import attempts, checks, fill, newest
from tidegate.sinks.sqlite import leases as kept_leases
from tidegate.sinks.sqlite import pointer as pointer_row
from tidegate.sinks.sqlite import schemas as kept_schemas
from tidegate.sinks.sqlite.aliases import FileAliases
from tidegate.sinks.sqlite.discovery import namespaces_in
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.folder import creation_lock, is_marked, make_folder, mark
from tidegate.sinks.sqlite.disk.tables import FORMAT, META, META_FILE, has_table
from tidegate.sinks.sqlite.drop import OWN, drop_folder
from tidegate.sinks.sqlite.rows import Shards
from tidegate.sinks.sqlite.vacuum import Vacuum, vacuum_meta
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import TableSchema

CATALOG = """SELECT entry FROM catalog WHERE version >= ? AND version <= ?
    AND version >= (SELECT horizon FROM pointer) ORDER BY version"""
Kind = TypeVar("Kind")


class SqliteStore(SupportsUsage, SupportsNamespaces, SupportsReadWithPointer):
    """A namespace in ``<path>/<escape(namespace)>/``. Opens nothing before first use.

    ``timeout_s``: how long to wait for another process's lock before StoreUnavailableError.
    """

    can_be_filled = can_rewrite = True
    driver_changes_max = 10_000  # tasks write to several files in parallel

    def __init__(
        self, path: str, namespace: str, clock: Clock | None = None, *, timeout_s: float = 30.0
    ) -> None:
        check_name("namespace", namespace)
        if not 0 <= timeout_s <= 86_400:
            raise ConfigError(f"timeout_s is {brief(timeout_s)}; it must be 0 to 86,400 seconds")
        self.where = f"store sqlite://{path}, namespace {namespace}"
        self._clock = clock or Clock()
        self._timeout_s = timeout_s
        self._files = Files(Path(path) / escape(namespace), self.where, timeout_s, newest.compare)
        self._opened: Shards | None = None
        self._visible_seen = 0
        self._sweep, self._looks = ExpirySweep(), SchemaLooks()

    # -- identity ------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        if not self._files.exists(META_FILE):
            return None
        with self._files.reading(META_FILE) as meta:
            if not has_table(meta, "namespace"):
                return None  # being created, or its creation was interrupted
            row = meta.execute("SELECT identity FROM namespace WHERE ready = 1").fetchone()
        identity = None if row is None else self._identity_in(row[0])
        if identity is not None and self._files.uuid is None:
            self._files.uuid = identity.uuid  # stays in use, even if another namespace is created later
        return identity

    def missing_place(self) -> str:
        return "" if is_marked(self._files.folder.parent) else str(self._files.folder.parent)

    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        refuse_nested(self._files.folder, META_FILE)
        refuse_taken(self.where, foreign_entry(self._files.folder, OWN))
        make_folder(self._files.folder, self.where)
        mark(self._files.folder.parent)
        self._files.forget()
        try:
            with creation_lock(self._files.folder, self.where, self._timeout_s):
                self._files.creates = True
                return self._made(identity, lost_at)
        except FileNotFoundError as error:
            raise StoreUnavailableError(
                f"{self.where}: it was dropped while it was created here; create it again"
            ) from error
        finally:
            self._files.creates = False

    def _made(self, identity: Identity, lost_at: int) -> Identity:
        self._files.make(META_FILE, META)
        with self._files.writing(META_FILE, durable=True) as meta:
            made = encode(msgspec.structs.replace(identity, format=FORMAT)).decode()
            meta.execute("INSERT OR IGNORE INTO namespace VALUES (1, ?, 0)", (made,))
            content, ready = meta.execute("SELECT identity, ready FROM namespace").fetchone()
            if not ready:  # with the identity: readers who knew the store find that it is being rebuilt
                meta.execute("UPDATE pointer SET horizon = ?", (lost_at,))
        existing = self._identity_in(content)
        if not ready:  # a shard that is missing later is a loss (I10), and is never created again
            Shards(self._files, existing).create()
            with self._files.writing(META_FILE, durable=True) as meta:
                meta.execute("UPDATE namespace SET ready = 1")
        return existing

    def _identity_in(self, content: str) -> Identity:
        return checked_format(self.where, self._decode(content, Identity), FORMAT)

    def aliases(self) -> Aliases:
        return FileAliases(self._files.folder.parent)

    def namespaces(self) -> list[str]:
        folder = self._files.folder.parent
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file: give the folder of a store")
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise ConfigError(f"{folder} cannot be listed by this user: give the user that right")
        return namespaces_in(folder, None)

    def _decode(self, content: str, kind: type[Kind]) -> Kind:
        return decode(f"{self.where}: {self._files.folder / META_FILE}", content, kind)

    @property
    def _shards(self) -> Shards:
        if self._opened is None:
            identity = self.identity()
            if identity is None:
                raise nothing_here(self.where)
            self._key_groups = identity.key_groups
            shards = Shards(self._files, identity)
            newest.check(self._files)
            self._opened = shards
        return self._opened

    # -- the pointer ---------------------------------------------------------------------------

    def pointer(self) -> Pointer:
        _ = self._shards
        pointer = pointer_row.read(self._files, self._clock)
        self._visible_seen = max(self._visible_seen, pointer.visible)
        return pointer

    def claim(self, epoch: int, writer: str) -> int:
        _ = self._shards
        mark(self._files.folder.parent)  # a store that an older release made has none
        return pointer_row.claim(self._files, epoch, writer)

    def heartbeat(self, epoch: int) -> None:
        self._put_heartbeat(self._clock.now_us(), epoch)

    def end_heartbeat(self, epoch: int) -> None:
        self._put_heartbeat(-self._clock.now_us(), epoch)

    def _put_heartbeat(self, noted_us: int, epoch: int) -> None:
        _ = self._shards
        pointer_row.put_heartbeat(self._files, noted_us, epoch)

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        _ = self._shards
        return self._flip(pointer_row.PUBLISH, [entry], epoch)

    def _flip(self, update: str, entries: Sequence[CatalogEntry], epoch: int) -> bool:
        now_us = self._clock.now_us()
        return pointer_row.flip(self._files, self._shards, update, entries, epoch, now_us)

    # -- writing a decided version ---------------------------------------------------------------

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        _ = self._shards
        with self._files.writing(META_FILE, durable=True) as meta:
            kept_schemas.put(meta, schemas)

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        _ = self._shards
        with self._files.writing(META_FILE, durable=True) as meta:
            kept_schemas.put(meta, schemas)
            return attempts.begin(meta, self.where, stamp, epoch)

    def begun(self) -> list[Stamp]:
        _ = self._shards
        with self._files.reading(META_FILE) as meta:
            return attempts.above_visible(meta)

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        attempts.discard(self._files, self._shards, lost, epoch)

    def _refuse_other(self, stamp: Stamp) -> None:
        with self._files.connection(META_FILE) as meta:
            attempts.refuse_other(meta, self.where, stamp)

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        shards = self._shards
        self._refuse_other(stamp)
        for chunk in chunks:
            shards.apply(stamp, chunk, attempts.refuse_discarded)

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        shards = self._shards
        self._refuse_other(stamp)
        wrong = shards.seal(stamp, counts, attempts.refuse_discarded)
        if wrong:
            raise incomplete(self.where, stamp, wrong)

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        self._shards.rewrite(stamp.version, runs)

    # -- reading -----------------------------------------------------------------------------------

    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        _ = self._shards
        with self._files.connection(META_FILE) as meta:
            rows = meta.execute(CATALOG, (oldest, 2**62 if newest is None else newest)).fetchall()
        return [self._decode(content, CatalogEntry) for (content,) in rows]

    def schemas(self) -> dict[str, TableSchema]:
        _ = self._shards
        with self._files.connection(META_FILE) as meta:
            rows = meta.execute("SELECT schema_id, schema FROM schemas").fetchall()
        return {schema_id: self._decode(content, TableSchema) for schema_id, content in rows}

    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        return column_of(self._looked_up([(at, keys)])[0][0])

    def get_stored_one(self, at: ReadAt, key: bytes) -> bytes | None:
        return self._looked_up([(at, [key])])[0][0][0]

    def get_with_pointer(self, at: ReadAt, key: bytes) -> tuple[bytes | None, Pointer]:
        ((value,),), pointer = self._looked_up([(at, [key])])
        return value_at(self.where, at, key, value), pointer

    def get_many_with_pointer(self, reads: Reads) -> tuple[list[Any], Pointer]:
        values, pointer = self._looked_up(reads)
        each = zip(reads, map(column_of, values), strict=True)
        return [values_at(self.where, read_at, keys, stored) for (read_at, keys), stored in each], pointer

    def _looked_up(self, reads: Reads) -> tuple[list[list[bytes | None]], Pointer]:
        """Read the stored values of each table's keys, then the pointer."""
        version = reads[0][0].version
        self._check_visible(version)
        values = [self._shards.look_up(read_at, keys) for read_at, keys in reads]
        return values, self._check_horizon(version)

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        shards = self._shards
        self._check_visible(at.version)
        following: bytes | None = b""
        while following is not None:
            keys, stored, following = shards.page(at, group, following)
            self._check_horizon(at.version)
            if keys:
                yield batch_of(keys, stored)

    def _check_visible(self, version: int) -> None:
        """Check before reading rows."""
        if version > self._visible_seen:
            check_visible(self.where, version, self.pointer())

    def _check_horizon(self, version: int) -> Pointer:
        """Check after reading rows."""
        pointer = self.pointer()
        check_visible(self.where, version, pointer)
        check_kept(self.where, version, pointer.horizon)
        return pointer

    # -- leases and retirement -----------------------------------------------------------------------

    def lease(self, lease: Lease, ttl_s: float) -> None:
        _ = self._shards
        kept_leases.take(self._files, self._clock, lease, ttl_s)

    def release(self, lease_id: str) -> None:
        _ = self._shards
        kept_leases.release(self._files, lease_id)

    def leases(self) -> list[LeaseInfo]:
        _ = self._shards
        now_us = self._clock.now_us()
        with self._files.connection(META_FILE) as meta:
            return [lease.info(now_us) for lease in kept_leases.alive(meta, now_us)]

    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        # Once the horizon has moved, no later step repeats the drops below it, and a power cut may undo
        # drops that are not on disk.
        self._shards.put_on_disk()
        limits = rules.Limits(max_lease_s, max_layers, keep_versions)
        return kept_leases.move_horizon(self._files, self._clock, horizon, limits)

    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        version = stamp.version
        if not self._shards.retire(version, changes, stopped):
            return False
        with self._files.connection(META_FILE) as meta:
            row = meta.execute("SELECT entry FROM catalog WHERE version = ?", (version,)).fetchone()
        if row is not None:
            entry = self._decode(row[0], CatalogEntry)
            for table, start in sorted(entry.starts.items()):
                if start == version and not self._shards.retire_replaced(version, table, stopped):
                    return False
            self._drop_tables(entry)
        with self._files.writing(META_FILE, durable=False) as meta:
            # Later entries still record which tables they emptied.
            meta.execute(
                "DELETE FROM catalog WHERE version <= ? AND version < (SELECT horizon FROM pointer)",
                (version,),
            )
            kept_schemas.forget(meta, self.where, self._looks)
        return True

    def _drop_tables(self, entry: CatalogEntry) -> None:
        """Drop the empty SQL tables of what this version dropped, unless a later version has it again."""
        if not entry.dropped:
            return
        with self._files.writing(META_FILE, durable=False) as meta:  # no version becomes visible meanwhile
            later = meta.execute("SELECT entry FROM catalog WHERE version > ?", (entry.version,)).fetchall()
            again = {table for (content,) in later for table in self._decode(content, CatalogEntry).tables}
            for table in set(entry.dropped) - again:
                self._shards.drop_if_empty(table)

    def drop_expired(self, rows: int) -> int:
        shards, entry = self._shards, self._horizon_entry()
        if entry is None:
            return 0
        version, at_us = entry.version, entry.decided_at_us

        def check_page(table: str, group: int, cursor: bytes | None, most: int) -> SweepPage:
            return shards.drop_expired(table, group, cursor or b"", most, version, at_us)

        return self._sweep.run(rows, entry, self._key_groups, check_page)

    def _horizon_entry(self) -> CatalogEntry | None:
        horizon = self.pointer().horizon
        return next(iter(self.catalog(horizon, horizon)), None)

    # -- filling a new store from another one ---------------------------------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        check_fillable(self.where, entry.version)
        shards = self._shards
        marked = fill.mark(self._files, entry.version, epoch)
        if marked:
            fill.raise_floors(self._files, shards, marked - 1)
            fill.drop_up_to(self._files, shards, marked - 1)
        return marked

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        shards, pointer = self._shards, self.pointer()
        if pointer.filling_at != entry.version or pointer.epoch > epoch:
            return False
        fill.raise_floors(self._files, shards, entry.version)
        return self._flip(fill.PUBLISH_FILLED, [entry, *newer], epoch)

    # -- verification -----------------------------------------------------------------------------------

    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        return self._shards.verify(stamp.version, counts)

    def size(self) -> int:
        _ = self._shards
        return self._files.size()

    def used_shares(self) -> dict[str, float]:
        return {self.where: used_share(self._files.folder)}

    def usage(self) -> Iterator[Usage]:
        _ = self._shards
        return checks.usage(self._files)

    def refused_writes(self) -> str:
        _ = self._shards
        return checks.refused_writes(self._files)

    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        of_version = at._replace(start=at.version)
        return column_of(self._shards.look_up(of_version, keys, retired_too=True))

    def self_check(self) -> Iterator[Finding]:
        _ = self._shards
        for name in (META_FILE, *self._files.expected):
            yield from checks.check_file(self._files, name)
        floors = [
            (name, *floor) for name in self._files.expected for floor in checks.floors_of(self._files, name)
        ]
        pointer = self.pointer()
        yield from checks.check_floors(self._files, floors, pointer.horizon, pointer.visible)

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        for name, _ in self._shards.files():
            yield from checks.row_counts(self._files, name, tables)

    def part_of(self, group: int) -> str:
        return str(self._files.folder / self._shards.file_of(group))

    # -- vacuum and removal -----------------------------------------------------------------------------

    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        shards, pointer = self._shards, self.pointer()
        if pointer.filling_at:
            return Vacuumed()  # the floors must stay below the version that is being written
        horizon, entry = pointer.horizon, self._horizon_entry()
        rows = notes = 0
        for name, groups in shards.files() if horizon else ():
            gone_here = Vacuum(self._files, name, groups, horizon, entry, dry_run=dry_run).run()
            rows, notes = rows + gone_here.rows, notes + gone_here.notes
        # Only now: until here a retirement that restarts would still read which tables were emptied.
        meta_counts = vacuum_meta(self._files, self._clock.now_us(), horizon, dry_run=dry_run)
        if not dry_run:
            with self._files.writing(META_FILE, durable=False) as meta:
                kept_schemas.forget(meta, self.where, self._looks)
        return Vacuumed(rows, notes, *meta_counts)

    def foreign_entry(self) -> str:
        refuse_unremovable(self.where, self._files.folder.parent, self._files.folder)
        return foreign_entry(self._files.folder, OWN)

    def drop(self, *, thorough: bool = False) -> bool:
        self._files.close()
        files = self._files
        existed = drop_folder(files.folder, self.where, self._timeout_s, files.refuse_another)
        self._files = Files(self._files.folder, self.where, self._timeout_s, newest.compare)
        self._opened, self._visible_seen = None, 0
        return existed

    def close(self) -> None:
        self._files.close()
