"""The store on Redis: layers of sealed changes over a merged base, one hash tag per key group.

A Redis server executes commands in one thread, so every step that must be atomic is one function
call there (``lua/``): a read sees floor, layers and base at once; a seal counts and lists at once;
the flip, leases and horizon are calls on the pointer. Bulk data is written by plain HSETs under a
version that no reader uses before its seal.

A server that restarts or is promoted may have lost its last writes. It also has another replication
id then, which every call compares; the pointer lists the ids that were compared with the log.
docs/storage-format.md has the layout, docs/decisions/0013 why it is right.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.base.checks import Check
from tidegate.errors import StoreNotVerifiedError, TidegateError
from tidegate.options import VALUE_BYTES_MAX
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.capabilities import (
    Lost,
    SupportsApplyAndSeal,
    SupportsNamespaces,
    SupportsRebuild,
    SupportsUsage,
)
from tidegate.sinks.records import (
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
    RowCount,
    Stamp,
    Stopped,
    Usage,
    Vacuumed,
    never,
)
from tidegate.sinks.redis import checks as redis_checks
from tidegate.sinks.redis import checks as redis_room
from tidegate.sinks.redis.aliases import RedisAliases
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.redis.client.replies import Call, plain
from tidegate.sinks.redis.client.resp import hset, rows_of
from tidegate.sinks.redis.keys import EVERY_META, beside, changes_key, namespace_of
from tidegate.sinks.redis.leases import Leases
from tidegate.sinks.redis.namespace import RedisNamespace, RedisReads
from tidegate.sinks.redis.reads import (
    catalog_in,
    catalog_range,
    in_parts,
    number,
    schemas_in,
    starts_of,
    version_after,
)
from tidegate.sinks.redis.seals import Seals
from tidegate.sinks.redis.upkeep import attempts
from tidegate.sinks.redis.upkeep import merge as upkeep
from tidegate.sinks.redis.upkeep import rebuild as redis_rebuild
from tidegate.sinks.redis.upkeep.fill import Fill, refuse_half_filled
from tidegate.sinks.redis.upkeep.limits import limits_of
from tidegate.sinks.redis.upkeep.self_check import row_counts, self_check
from tidegate.sinks.redis.upkeep.sweep import UNSEARCHED, sweep
from tidegate.sinks.redis.upkeep.usage import refused_writes, usage
from tidegate.sinks.rules.expiry import ExpirySweep, SweepPage
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.rules.leases import Lease, LeaseInfo
from tidegate.sinks.rules.reads import (
    check_fillable,
)
from tidegate.sinks.rules.schemas import SchemaLooks, unnamed
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import TableSchema

logger = logging.getLogger("tidegate")

LOOKS = 5  # the number of reads of pointer and catalog, if the horizon moves between the two


class RedisStore(RedisReads, SupportsApplyAndSeal, SupportsRebuild, SupportsUsage, SupportsNamespaces):
    """A namespace on one Redis, behind Sentinels, or on a Cluster. Connects on first use.

    ``options``: ``sinks/redis/client/settings.py``.
    """

    can_be_filled = True
    keep_versions_default = 2
    layers_default = 14
    """A read searches the layers one by one, so there are few."""
    unsearched = UNSEARCHED

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        super().__init__(RedisNamespace(url, namespace, options))
        self._fill = Fill(self._space)
        self._sweep, self._looks = ExpirySweep(), SchemaLooks()
        self._seals = Seals(self._space)
        self._comparing = threading.local()
        self._noted: frozenset[tuple[bytes, str]] = frozenset()
        self._leases = Leases(self._space)

    # -- identity ------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        return self._space.identity()

    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        self._noted = frozenset()  # a server that lost the namespace lost its notes, too
        return self._space.create(identity, lost_at)

    def aliases(self) -> Aliases:
        return RedisAliases(self._space.calls, self.where)

    def namespaces(self) -> list[str]:
        keys = self._space.calls.each_primary_scan(EVERY_META)
        return sorted({name for key in keys if (name := namespace_of(key)) is not None})

    # -- the pointer ---------------------------------------------------------------------------

    def pointer(self) -> Pointer:
        return self._space.pointer()

    def claim(self, epoch: int, writer: str) -> int:
        return int(self._space.ask("claim", number(epoch), writer.encode(), library_name().encode()))

    def heartbeat(self, epoch: int) -> None:
        self._space.ask("heartbeat", number(epoch))

    def end_heartbeat(self, epoch: int) -> None:
        self._space.ask("heartbeat", number(epoch), b"end")

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        if entry.version == 1:
            refuse_half_filled(self._space)
        return self._flip("publish", entry, epoch)

    def _flip(self, name: str, entry: CatalogEntry, epoch: int) -> bool:
        changed = self._space.changed_servers()
        if changed:
            raise self._space.unlisted(changed)
        content = redis_rebuild.entry_content(entry)
        flipped = self._space.ask(
            name, number(epoch), number(entry.version), entry.digest.encode(), content, once=True
        )
        return bool(flipped == 1)

    # -- writing a decided version ---------------------------------------------------------------

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        for part in in_parts(attempts.schema_parts(schemas)):
            self._space.ask("put_schemas", *part)

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        return attempts.begin(self._space, stamp, schemas, epoch)

    def begun(self) -> list[Stamp]:
        return attempts.begun(self._space)

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        attempts.discard(self._space, lost, epoch)

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        self._space.calls.run(self._rows(stamp, chunks))

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        self._seals.run(stamp, counts)

    def apply_and_seal(
        self, stamp: Stamp, counts: Counts, *chunks: Chunk, sets: KeySets | None = None
    ) -> None:
        self._seals.run(stamp, counts, self._rows(stamp, chunks), sets)

    def _rows(self, stamp: Stamp, chunks: Iterable[Chunk]) -> list[Call]:
        uuid, calls = self._space.uuid, []
        chunks = list(chunks)
        self._note_tables({(uuid, run.table) for chunk in chunks for run in chunk.runs})
        under = b"%b:%b" % (uuid, stamp.attempt.encode()) if stamp.attempt else uuid
        for rows in rows_of([run for chunk in chunks for run in chunk.runs]):
            key = changes_key(self._space.namespace, rows.run.group, rows.run.table, stamp.version, under)
            calls.append(Call(key, "", (hset(key, rows),)))
        return calls

    def _note_tables(self, tables: set[tuple[bytes, str]]) -> None:
        """Note the tables, before their first rows from here, so that a removal finds these rows."""
        if new := tables - self._noted:
            for part in in_parts([table.encode() for _, table in sorted(new)]):
                self._space.ask("note_tables", *part)
            self._noted |= new

    # -- reading -----------------------------------------------------------------------------------

    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        entries: list[CatalogEntry] = []
        following: int | None = oldest
        while following is not None:
            page = catalog_in(self.where, self._space.ask("catalog", *catalog_range(following, newest)))
            entries += page
            following = version_after(page, newest)
        return entries

    def schemas(self) -> dict[str, TableSchema]:
        return schemas_in(self.where, self._space.ask("schemas"))

    def schemas_of(self, ids: Collection[str]) -> dict[str, TableSchema]:
        parts = in_parts([*map(str.encode, ids)]) if ids else ()
        return schemas_in(self.where, [each for part in parts for each in self._space.ask("schemas", *part)])

    # -- leases and retirement -----------------------------------------------------------------------

    def lease(self, lease: Lease, ttl_s: float) -> None:
        self._leases.lease(lease, ttl_s)

    def release(self, lease_id: str) -> None:
        self._leases.release(lease_id)

    def leases(self) -> list[LeaseInfo]:
        return self._leases.held()

    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        return self._leases.announce(
            horizon,
            max_lease_s=max_lease_s,
            max_layers=max_layers,
            keep_versions=keep_versions,
            max_leases=max_leases,
        )

    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        """Merge the layers up to this version: by name, not by their rows, which the server moves."""
        version, (pointer, entry) = stamp.version, self._at_horizon()
        upto, starts = min(version, pointer.horizon), starts_of(entry)
        if version < pointer.horizon:  # it has moved on: only the version's own entry names what it dropped
            starts = {**starts_of(self._passed_entry(version)), **starts}
        touched = {(group, table) for group, tables in counts.items() for table in tables}
        # A table that this version emptied is dropped everywhere, whichever key groups have rows again.
        emptied = [table for table, start in starts.items() if start == version]
        touched |= upkeep.listing(self._space, emptied)
        of = {place: starts.get(place[1], 0) for place in sorted(touched)}
        rows = max((rows for tables in counts.values() for rows in tables.values()), default=0)
        _, done = upkeep.merge(self._space, of, upto, stopped, rows=rows)
        if done:
            self._space.ask("forget", number(version))
            self._forget_schemas(pointer.horizon)
        return done

    def _forget_schemas(self, horizon: int) -> None:
        if not self._looks.is_due(horizon) or len(self._space.ask("begun")) > 1:
            return
        pointer = self.pointer()
        entries = self.catalog(pointer.horizon, pointer.visible)
        unused = unnamed(self.schemas(), pointer, entries)
        parts = [*in_parts([*map(str.encode, unused)])] or [()]
        if all(self._space.ask("forget_schemas", number(pointer.visible), *part) for part in parts):
            self._looks.ended(pointer)

    def drop_expired(self, rows: int) -> int:
        entry = self._entry(self.pointer().horizon)
        if entry is None:
            return 0
        version, at_us = entry.version, entry.decided_at_us

        def look(table: str, group: int, following: bytes | None, most: int) -> SweepPage:
            some = following or b"0", min(most, upkeep.MERGE_ROWS)
            return upkeep.expire(self._space, table, group, *some, version, at_us)

        return self._sweep.run(rows, entry, self._space.made.key_groups, look)

    def _entry(self, version: int) -> CatalogEntry | None:
        return next(iter(self.catalog(version, version)), None) if version else None

    def _passed_entry(self, version: int) -> CatalogEntry | None:
        """Return the entry of a version below the horizon, which no function returns; None: it is gone."""
        catalog = beside(self._space.namespace, "catalog")
        (content,) = self._space.calls.run([plain(catalog, b"HGET", catalog, number(version))])
        return catalog_in(self.where, [content])[0] if content else None

    def _at_horizon(self) -> tuple[Pointer, CatalogEntry | None]:
        """Return the pointer, and the catalog's entry of its horizon; None: nothing was retired yet.

        If the horizon moves in between, its entry may be gone: then both are read again. A merge
        without the tables' starts would restore rows from before they were emptied.
        """
        for _ in range(LOOKS):
            pointer = self.pointer()
            entry = self._entry(pointer.horizon)
            if entry is not None or not pointer.horizon or pointer.filling_at:
                return pointer, entry
        self._space.lost = True
        raise StoreNotVerifiedError(
            f"{self.where}: version {pointer.horizon} can be read, and has no entry in the catalog; nothing"
            " was merged; a running query puts the entry back from the log, `tidegate repair` does so now"
        )

    # -- servers that lose what they acknowledged ----------------------------------------------------

    def unverified(self) -> bool:
        return self._space.lost or bool(self._space.changed_servers()) or upkeep.unsettled(self._space)

    @contextlib.contextmanager
    def comparing(self, epoch: int) -> Iterator[int]:
        with redis_rebuild.comparing(self._space, epoch) as (oldest, rebuild):
            self._comparing.rebuild = rebuild  # per thread: another one may repair, too
            yield oldest

    def has_headers(self, key_groups: int) -> bool:
        return redis_rebuild.has_headers(self._space, key_groups)

    def put_entries(self, entries: Iterable[CatalogEntry]) -> int:
        return redis_rebuild.put_entries(self._space, entries)

    def resume(self, entry: CatalogEntry, horizon: int, epoch: int, visible: int) -> bool:
        return redis_rebuild.resume(self._space, entry, horizon, epoch, visible)

    def note_moved(self) -> None:
        if not self._space.changed_servers():  # else everything is compared anyway
            with contextlib.suppress(StoreNotVerifiedError):
                upkeep.note_moved(self._space)

    def lost(self) -> list[Lost]:
        return list(self._rebuild.lost)

    def begin_bases(self, bases: Iterable[tuple[int, str]]) -> None:
        self._rebuild.begin_bases(bases)

    def add_to_bases(self, runs: Iterable[Run]) -> None:
        self._rebuild.add_to_bases(runs)

    def put_bases(self, group: int, tables: Mapping[str, int], floor: int = 0) -> bool:
        return self._rebuild.put_bases(group, tables, floor)

    def keep_lost(self, group: int, since: int | None) -> None:
        self._rebuild.keep_lost(group, since)

    @property
    def _rebuild(self) -> redis_rebuild.Rebuild:
        rebuild: redis_rebuild.Rebuild = self._comparing.rebuild
        return rebuild

    def missing(self, stamp: Stamp, counts: Counts) -> dict[int, Mapping[str, int]]:
        return upkeep.missing(self._space, stamp, counts)

    def stamp(self, version: int) -> None:
        groups = range(self._space.made.key_groups)
        self._space.asked([self._space.of_group(group, "stamp", number(version)) for group in groups])

    def checks_of_confirm(self, *, replicas: int, aof: bool) -> list[Check]:
        return redis_checks.fsync(self._space) if aof else []

    def confirm(self, version: int, *, replicas: int, aof: bool) -> None:
        upkeep.confirm(self._space, version, replicas, aof=aof)

    def checks(self, *, thorough: bool = False, value_bytes_max: int = VALUE_BYTES_MAX) -> list[Check]:
        checks = redis_checks.set_up(self._space, thorough=thorough)
        limit = limits_of(self._space, value_bytes_max, thorough=thorough)
        self.value_bytes_max, self.value_limit = (limit.value_bytes, limit.why) if limit.why else (None, "")
        checks.append(limit.check)
        if not thorough:
            return checks
        try:
            entries = []
            if self.identity() is not None:
                visible = self.pointer().visible
                entries = self.catalog(visible - redis_room.LOOKED_AT + 1)
            return [*checks, redis_room.room(self._space, entries)]
        except TidegateError as error:
            unknown = f"is not known: {error}"
            return [*checks, Check("memory", "warn", unknown, redis_checks.APPLIED)]

    def await_newer(self, version: int, timeout_s: float) -> bool:
        return self._space.await_newer(version, timeout_s)

    # -- filling a new store from another one ---------------------------------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        check_fillable(self.where, entry.version)
        version = self._fill.begin(entry.version, entry.attempt, epoch)
        if version:
            sweep(self._space, dry_run=False)  # unsealed changes of older fills
        return version

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        if newer:
            raise ValueError(f"{self.where}: it is rebuilt by key groups, and then shows its last version")
        pointer = self.pointer()
        if pointer.filling_at != entry.version or pointer.epoch > epoch:
            return False
        self._fill.end(entry.version)
        return self._flip("publish_filled", entry, epoch)

    # -- verification -----------------------------------------------------------------------------------

    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        return list(upkeep.verify(self._space, stamp, counts))

    def size(self) -> int:
        return upkeep.size(self._space)

    def used_shares(self) -> dict[str, float]:
        return redis_room.used_shares(self._space)

    def may_evict(self) -> str | None:
        return redis_room.may_evict(self._space)

    def usage(self) -> Iterator[Usage]:
        return usage(self._space)

    def refused_writes(self) -> str:
        return refused_writes(self._space)

    def self_check(self) -> Iterator[Finding]:
        return self_check(self._space)

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        return row_counts(self._space)

    # -- vacuum and removal -----------------------------------------------------------------------------

    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        pointer, entry = self._at_horizon()
        if pointer.filling_at:
            return Vacuumed()  # the floors must stay below the version that is being written
        horizon = pointer.horizon
        rows = 0
        if entry is not None:
            starts, at_us = starts_of(entry), entry.decided_at_us
            rows = upkeep.merge_all(self._space, starts, horizon, at_us, dry_run=dry_run)
        rows += sweep(self._space, dry_run=dry_run, thorough=thorough)
        entries, leases = int(self._space.ask("leftovers")), self._leases.unheld()
        if not dry_run:
            self._space.ask("forget", number(horizon))
            self._forget_schemas(horizon)
            self._leases.drop_unheld()
        return Vacuumed(rows, 0, leases, entries)

    def drop(self, *, thorough: bool = False) -> bool:
        return self._space.drop(thorough=thorough)

    def close(self) -> None:
        self._space.servers.close()
