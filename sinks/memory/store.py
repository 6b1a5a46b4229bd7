"""The reference store: plain dictionaries under one lock. Read this one first.

It implements every promise of the interface in its simplest form; the other stores do
the same with files and servers. "Durable" means here: until the process ends.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tidegate.base.clock import Clock
from tidegate.base.names import check_name
from tidegate.base.urls import redact
from tidegate.keys.groups import key_group_of_each
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.memory import aliases as memory_aliases
from tidegate.sinks.memory import checks
from tidegate.sinks.memory.aliases import MemoryAliases
from tidegate.sinks.memory.namespace import MemoryNamespace
from tidegate.sinks.memory.rows import counted_in, drop_below, drop_replaced, drop_up_to, newest_of, put_rows
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
    heartbeat_ages,
    never,
)
from tidegate.sinks.rules import leases as rules
from tidegate.sinks.rules.attempts import fenced
from tidegate.sinks.rules.columns import column_of
from tidegate.sinks.rules.expiry import ExpirySweep, SweepPage, collectable_versions, is_hidden
from tidegate.sinks.rules.leases import Lease, LeaseInfo
from tidegate.sinks.rules.reads import (
    batch_of,
    check_fillable,
    check_kept,
    check_visible,
    dropped,
    lost,
    nothing_here,
)
from tidegate.sinks.rules.schemas import SchemaLooks, unnamed
from tidegate.sinks.rules.seals import incomplete, is_whole, miscounted
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import TableSchema

SCAN_ROWS = 1_000


_spaces: dict[tuple[str, str], MemoryNamespace] = {}
_spaces_lock = threading.Lock()


def forget(name: str) -> None:
    """Drop every namespace of ``memory://name`` in this process; for tests that make many."""
    memory_aliases.forget(name)
    with _spaces_lock:
        for space_key in [space_key for space_key in _spaces if space_key[0] == name]:
            del _spaces[space_key]


class MemoryStore(SupportsReadWithPointer):
    """A namespace in this process's memory, shared by all instances of the same name."""

    can_be_filled = can_rewrite = True

    def __init__(self, name: str, namespace: str, clock: Clock | None = None) -> None:
        check_name("namespace", namespace)
        self.where = f"store {redact(f'memory://{name}')}, namespace {namespace}"
        self._place, self._clock = name, clock or Clock()
        self._sweep, self._looks = ExpirySweep(), SchemaLooks()
        self._known: Identity | None = None
        with _spaces_lock:
            self._found = _spaces.setdefault((name, namespace), MemoryNamespace())

    # -- identity ------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        self._known = self._known or self._found.identity
        return self._found.identity

    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        with self._found.lock:
            if self._found.identity is None:
                self._found.identity = identity
                self._found.pointer = msgspec.structs.replace(self._found.pointer, horizon=lost_at)
            return self._found.identity

    def aliases(self) -> Aliases:
        return MemoryAliases(self._place)

    @property
    def _space(self) -> MemoryNamespace:
        identity = self.identity()
        if identity is None:
            raise nothing_here(self.where) if self._known is None else lost(self.where)
        if identity != self._known:  # another one of its name, created since
            raise dropped(self.where)
        return self._found

    # -- the pointer ---------------------------------------------------------------------------

    def pointer(self) -> Pointer:
        space = self._space
        with space.lock:
            if space.heartbeat_us is None:
                return space.pointer
            age_s, closed_age_s = heartbeat_ages(space.heartbeat_us, self._clock.now_us())
            return msgspec.structs.replace(space.pointer, heartbeat_age_s=age_s, closed_age_s=closed_age_s)

    def claim(self, epoch: int, writer: str) -> int:
        space = self._space
        with space.lock:
            if epoch > space.pointer.epoch:
                space.pointer = msgspec.structs.replace(space.pointer, epoch=epoch, writer=writer)
            return space.pointer.epoch

    def heartbeat(self, epoch: int) -> None:
        space = self._space
        with space.lock:
            if epoch == space.pointer.epoch:
                space.heartbeat_us = self._clock.now_us()

    def end_heartbeat(self, epoch: int) -> None:
        space = self._space
        with space.lock:
            if epoch == space.pointer.epoch:
                space.heartbeat_us = -self._clock.now_us()

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        space = self._space
        with space.lock:
            pointer, version = space.pointer, entry.version
            # I7: only from the exact predecessor, and not into a fill. I6: never under a higher epoch.
            if pointer.visible != version - 1 or pointer.horizon >= version or pointer.epoch > epoch:
                return False
            space.catalog[entry.version] = msgspec.structs.replace(
                entry, published_at_us=self._clock.now_us()
            )
            space.pointer = msgspec.structs.replace(
                space.pointer, visible=entry.version, digest=entry.digest, epoch=epoch
            )
            return True

    # -- writing a decided version ---------------------------------------------------------------

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        space = self._space
        with space.lock:
            space.schemas.update((schema.schema_id, schema) for schema in schemas)

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        space = self._space
        with space.lock:
            self.put_schemas(schemas)
            return space.attempts.begin(self.where, stamp, space.pointer, epoch)

    def begun(self) -> list[Stamp]:
        space = self._space
        with space.lock:
            return space.attempts.above(space.pointer.visible)

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        space, lowest = self._space, min(lost, key=lambda stamp: stamp.version)
        with space.lock:
            if space.pointer.epoch > epoch:
                raise fenced(self.where, lowest, space.pointer.epoch, epoch, space.pointer.writer)
            space.attempts.discard(lost)
            space.drop_from(lowest.version)

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        space, version = self._space, stamp.version
        with space.lock:
            space.attempts.refuse_other(self.where, stamp)
            for chunk in chunks:
                counted: dict[tuple[int, str], int] = defaultdict(int)
                for run in chunk.runs:
                    if space.floors.get(run.group, 0) >= version:
                        continue  # a late zombie: its rows were merged, or replaced and dropped
                    put_rows(space.rows[run.table, run.group], run, version)
                    counted[run.group, run.table] += len(run.keys)
                for (group, table), count in counted.items():
                    # Set, not added: a repeated chunk counts once.
                    of_group = space.applied.setdefault((group, version), {})
                    of_group.setdefault(table, {})[chunk.ordinal] = count

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        space, version = self._space, stamp.version
        wrong = []
        with space.lock:
            space.attempts.refuse_other(self.where, stamp)
            for group, expected in counts.items():
                if (group, version) in space.sealed or space.floors.get(group, 0) >= version:
                    continue
                counted = counted_in(space.applied.get((group, version), {}))
                if is_whole(counted, expected):
                    space.sealed.add((group, version))
                else:
                    wrong.append(miscounted(group, counted, expected))
        if wrong:
            raise incomplete(self.where, stamp, wrong)

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        space, version = self._space, stamp.version
        with space.lock:
            for run in (run for run in runs if space.floors.get(run.group, 0) <= version):
                put_rows(space.rows[run.table, run.group], run, version)

    # -- reading -----------------------------------------------------------------------------------

    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        space = self._space
        with space.lock:
            first = max(oldest, space.pointer.horizon)
            return [
                entry
                for version, entry in sorted(space.catalog.items())
                if first <= version and (newest is None or version <= newest)
            ]

    def schemas(self) -> dict[str, TableSchema]:
        space = self._space
        with space.lock:
            return dict(space.schemas)

    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        space = self._space
        key_groups = space.identity.key_groups if space.identity else 1
        with space.lock:
            groups = key_group_of_each(keys, key_groups, at.stride)
            self._check_readable(space, at.version, set(groups))
            values = [
                newest_of(space.rows[at.table, group].get(key, {}), at.version, at.start)
                for group, key in zip(groups, keys, strict=True)
            ]
        return column_of(values)

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        space = self._space
        with space.lock:
            # Keys that are added later belong to later versions; removed keys raise the floor.
            keys = sorted(space.rows[at.table, group])
        for first in range(0, max(len(keys), 1), SCAN_ROWS):
            page = keys[first : first + SCAN_ROWS]
            with space.lock:
                self._check_readable(space, at.version, {group})
                rows = space.rows[at.table, group]
                newest = {key: newest_of(rows.get(key, {}), at.version, at.start) for key in page}
            present = {key: stored for key, stored in newest.items() if stored is not None}
            if present:
                yield batch_of(list(present), list(present.values()))

    def _check_readable(self, space: MemoryNamespace, version: int, groups: set[int]) -> None:
        """Refuse rather than mix versions (I8, T28). In other stores the order of these reads matters."""
        check_visible(self.where, version, space.pointer)
        oldest = max([space.pointer.horizon, *(space.floors.get(group, 0) for group in groups)])
        check_kept(self.where, version, oldest)

    # -- leases and retirement -----------------------------------------------------------------------

    def lease(self, lease: Lease, ttl_s: float) -> None:
        space = self._space
        with space.lock:
            rules.check_leasable(self.where, lease, ttl_s, space.pointer.visible, space.pointer.horizon)
            now_us = self._clock.now_us()
            known = space.leases.get(lease.lease_id)
            if known is None and len(space.holding(now_us)) >= space.max_leases:
                raise rules.too_many_leases(self.where, space.max_leases)
            taken_us = known.taken_us if known is not None and known.version == lease.version else now_us
            expires_us = now_us + int(ttl_s * 1e6)
            space.leases[lease.lease_id] = rules.KeptLease(
                lease.lease_id, lease.version, taken_us, expires_us
            )

    def release(self, lease_id: str) -> None:
        space = self._space
        with space.lock:
            space.leases.pop(lease_id, None)

    def leases(self) -> list[LeaseInfo]:
        space, now_us = self._space, self._clock.now_us()
        with space.lock:
            infos = [lease.info(now_us) for lease in space.holding(now_us)]
        return sorted(infos, key=lambda info: info.version)

    def announce(self, horizon: int, *, max_leases: int | None = None, **limits: Any) -> int:
        space = self._space
        with space.lock:
            visible, now_us = space.pointer.visible, self._clock.now_us()
            holding, target, published_us = space.holding(now_us), min(horizon, visible), space.published_us
            of_leases = rules.Limits(**limits)
            allowed = rules.horizon_allowed(target, holding, of_leases, visible, now_us, published_us)
            moved = max(space.pointer.horizon, allowed)
            space.pointer = msgspec.structs.replace(space.pointer, horizon=moved)
            space.max_leases = space.max_leases if max_leases is None else max_leases
            # Leases that the horizon passed are revoked.
            space.leases = {lease.lease_id: lease for lease in holding if lease.version >= moved}
            return moved

    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        space, version = self._space, stamp.version
        for chunk in changes:
            if stopped():
                return False
            with space.lock:
                for run in chunk.runs:
                    space.raise_floor(run.group, version)
                    rows = space.rows[run.table, run.group]
                    for key in run.keys.to_pylist():
                        drop_replaced(rows, key, version)
        with space.lock:
            self._retire_replaced_tables(space, version)
            last = min(version, space.pointer.horizon - 1)  # later ones still name the tables they emptied
            for old in [old for old in space.catalog if old <= last]:
                del space.catalog[old]
            self._forget_schemas(space)
        return True

    def drop_expired(self, rows: int) -> int:
        space = self._space
        with space.lock:
            entry = space.catalog.get(space.pointer.horizon)
        if entry is None or space.identity is None:
            return 0
        version, at_us = entry.version, entry.decided_at_us

        def check_page(table: str, group: int, cursor: bytes | None, most: int) -> SweepPage:
            with space.lock:
                of_keys, removed = space.rows[table, group], 0
                page = sorted(key for key in of_keys if key >= (cursor or b""))[: most + 1]
                for key in page[:most]:
                    newest = max((v for v in of_keys[key] if v <= version), default=None)
                    if newest is not None and is_hidden(of_keys[key][newest], at_us):
                        space.floors[group] = max(space.floors.get(group, 0), version)
                        drop_up_to(of_keys, key, newest)
                        removed += 1
                return SweepPage(len(page[:most]), removed, page[most] if len(page) > most else None)

        return self._sweep.run(rows, entry, space.identity.key_groups, check_page)

    def _retire_replaced_tables(self, space: MemoryNamespace, version: int) -> None:
        """Drop the older rows of tables that ``version`` emptied or dropped, also of keys written again."""
        entry = space.catalog.get(version)
        starts = {table for table, start in entry.starts.items() if start == version} if entry else set()
        for table, group in [place for place in space.rows if place[0] in starts]:
            space.raise_floor(group, version)
            drop_below(space.rows[table, group], version)

    def _forget_schemas(self, space: MemoryNamespace) -> None:
        pointer = space.pointer
        if self._looks.is_due(pointer.horizon) and not space.attempts.above(pointer.visible):
            live = [entry for version, entry in sorted(space.catalog.items()) if version >= pointer.horizon]
            for schema_id in unnamed(space.schemas, pointer, live):
                del space.schemas[schema_id]
            self._looks.ended(pointer)

    # -- filling a new store from another one ---------------------------------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        check_fillable(self.where, entry.version)
        space = self._space
        with space.lock:
            if space.pointer.visible or space.pointer.epoch > epoch:
                return 0
            marked = max(space.pointer.horizon, entry.version)
            space.pointer = msgspec.structs.replace(space.pointer, horizon=marked)
            space.raise_floors(marked - 1)
            for place, of_group in space.rows.items():
                space.rows[place] = {
                    key: {v: value for v, value in versions.items() if v >= marked}
                    for key, versions in of_group.items()
                    if max(versions) >= marked
                }
            return marked

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        space, newest = self._space, (entry, *newer)[-1]
        with space.lock:
            pointer = space.pointer
            if pointer.visible or pointer.horizon != entry.version or pointer.epoch > epoch:
                return False
            space.raise_floors(entry.version)
            for each in (entry, *newer):
                space.catalog[each.version] = msgspec.structs.replace(
                    each, published_at_us=self._clock.now_us()
                )
            space.pointer = msgspec.structs.replace(
                pointer, visible=newest.version, digest=newest.digest, epoch=epoch
            )
            return True

    # -- checking ---------------------------------------------------------------------------------------

    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        return checks.verify(self._space, self.where, stamp.version, counts)

    def size(self) -> int:
        space = self._space
        with space.lock:
            return sum(
                len(key) + sum(map(len, versions.values()))
                for of_group in space.rows.values()
                for key, versions in of_group.items()
            )

    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        space = self._space
        key_groups = space.identity.key_groups if space.identity else 1
        with space.lock:
            values = [
                space.rows.get((at.table, group), {}).get(key, {}).get(at.version)
                for group, key in zip(key_group_of_each(keys, key_groups, at.stride), keys, strict=True)
            ]
        return column_of(values)

    def self_check(self) -> Iterator[Finding]:
        """Check key groups and floors: dictionaries have no other faults."""
        return checks.self_check(self._space, self.where)

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        return checks.row_counts(self._space)

    # -- mending and ending -----------------------------------------------------------------------------

    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        space = self._space
        with space.lock:
            if space.pointer.filling_at:
                return Vacuumed()  # the floors must stay below the version that is being written
            now_us, horizon = self._clock.now_us(), space.pointer.horizon
            entry = space.catalog.get(horizon)
            starts = entry.starts if entry else {}
            no_table = horizon if entry else 0  # no row of a table that the horizon lacks can be read
            at_us = entry.decided_at_us if entry else 0
            rows = [
                (place, key, version)
                for place, of_group in space.rows.items()
                for key, versions in of_group.items()
                for version in collectable_versions(versions, horizon, starts.get(place[0], no_table), at_us)
            ]
            notes = {note for note in {*space.applied, *space.sealed} if note[1] <= horizon}
            leases = [name for name, lease in space.leases.items() if lease.expires_us <= now_us]
            entries = [version for version in space.catalog if version < horizon]
            if not dry_run:
                for group in range(space.identity.key_groups if space.identity and horizon else 0):
                    space.floors[group] = max(space.floors.get(group, 0), horizon)
                for place, key, version in rows:
                    del space.rows[place][key][version]
                    if not space.rows[place][key]:
                        del space.rows[place][key]
                for note in notes:
                    space.applied.pop(note, None)
                    space.sealed.discard(note)
                for name in leases:
                    del space.leases[name]
                for version in entries:
                    del space.catalog[version]
                self._forget_schemas(space)
            return Vacuumed(len(rows), len(notes), len(leases), len(entries))

    def drop(self, *, thorough: bool = False) -> bool:
        with self._found.lock:
            if self.identity() not in (None, self._known):
                raise dropped(self.where)
            existed, self._known = self._found.identity is not None, None
            self._found.empty()
            return existed

    def close(self) -> None:
        pass
