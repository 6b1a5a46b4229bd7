"""Repair on Redis: marks on key groups that lost something, and new bases for them.

Nothing is deleted before its replacement is whole. Repairs may overlap and die: each has a token of
its own in the marks that it sets, and a header keeps the record of a loss until it is repaired.
docs/decisions/0029.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidegate.base.extras import pc
from tidegate.errors import StoreNotVerifiedError, TidegateError
from tidegate.sinks.capabilities import Lost
from tidegate.sinks.records import ABOVE_ALL, CatalogEntry, Pointer
from tidegate.sinks.redis.client.origins import listing
from tidegate.sinks.redis.client.replies import Call, Refused, plain
from tidegate.sinks.redis.client.resp import FIELDS_MAX, hset, rows_of
from tidegate.sinks.redis.keys import header_key, rebuilt_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import AnotherServerError, catalog_in, catalog_range, number
from tidegate.sinks.redis.seals import Header, headers
from tidegate.sinks.redis.upkeep.fill import lost_while_filled, oldest_after_fill
from tidegate.sinks.rules.attempts import DISCARDED_MAX
from tidegate.sinks.rules.reads import encode
from tidegate.wal.frame import Run
from tidegate.wal.value_flags import DELETE

ALL_OF_IT = -1
"""A store that is being filled is not repaired: it is filled again."""


class Rebuild:
    """One comparison of the servers with the log.

    Each key group's calls are for the server where its comparison began: another one may have lost
    something.
    """

    def __init__(self, space: RedisNamespace, pointer: Pointer) -> None:
        self.token = uuid.uuid4().hex[:16].encode()
        self.lost: list[Lost] = []
        self._space, self._pointer = space, pointer
        self._began: dict[int, bytes] = {}
        self._seen: dict[int, list[bytes]] = {}
        self._since: dict[int, int] = {}
        self._begun: set[tuple[int, str]] = set()

    # -- marks -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Mark every key group whose header does not match its keys, and note the losses."""
        starts = self._starts()
        args = [part for table, start in starts.items() if start for part in (table.encode(), number(start))]
        groups = range(self._space.made.key_groups)
        calls = [self._space.of_group(group, "begin_rebuild", self.token, *args) for group in groups]
        for group, (server, _, *seen) in zip(groups, self._space.asked(calls), strict=True):
            self._began[group], self._seen[group] = server, seen

    def _starts(self) -> dict[str, int]:
        horizon = self._pointer.horizon
        if not horizon or self._pointer.filling_at:
            return {}
        entries = catalog_in(self._space.where, self._space.ask("catalog", *catalog_range(horizon, horizon)))
        return entries[0].starts if entries else {}

    def discard_again(self, by_group: Mapping[int, Header]) -> bool:
        """Discard attempts again where a server went back to before their discard; return whether
        there were any.

        The pointer names the attempts. If a key group's newest seal is of one of them, its layers
        from that version downwards belong to lost attempts, as long as the pointer names one for
        each version. The other layers belong to attempts that the log has.
        """
        discarded, *_ = self._space.ask("begun")
        notes = [note.split(b" ", 2) for note in discarded.split(b",") if note]
        versions, attempts = {int(version) for version, *_ in notes}, [note[-1] for note in notes]
        groups = [group for group, header in by_group.items() if header.sealed[1] in attempts]
        for group in groups:
            lowest = by_group[group].sealed[0]
            while lowest - 1 in versions and lowest - 1 > by_group[group].floor:
                lowest -= 1
            self._at_its_server(group, "keep_lost", self.token, number(lowest))
            self._at_its_server(
                group, "discard", number(lowest), number(DISCARDED_MAX), *attempts[-DISCARDED_MAX:]
            )
        return bool(groups)

    def find(self, by_group: Mapping[int, Header], whole: frozenset[bytes]) -> None:
        """Find the losses by the headers. ``whole``: servers that are listed, and unchanged."""
        changed = self._changed(by_group, whole)
        for group, header in by_group.items():
            versions = [since for since in (header.since, changed.get(group)) if since is not None]
            since = min(versions, default=None)
            if self._pointer.filling_at:
                self._since[group] = ALL_OF_IT
                continue
            self._since[group] = ABOVE_ALL if since is None else since
            if since is not None or header.lost_layers or header.lost_bases:
                layers = {table: tuple(versions) for table, versions in header.lost_layers.items()}
                self.lost.append(Lost(group, self._pointer.horizon, since, layers, dict(header.lost_bases)))

    def _changed(self, by_group: Mapping[int, Header], whole: frozenset[bytes]) -> dict[int, int]:
        """Return, by key group, the oldest version of which its server may have lost a part.

        It contains the key groups of servers that changed. Those that moved are included, too,
        unless their origin is among the ``whole`` and no server changed.

        A server's data is its state at one moment. At that moment, if a version was sealed in any
        of its key groups, everything before that version was published, so sealed everywhere. On a
        Cluster a key group may have moved from another server after that moment: there each one is
        judged by itself only.
        """
        unchanged, first = all(server in whole for server in self._began.values()), self._space.origins.first
        newest = {}
        for group, header in by_group.items():
            server = self._began[group]
            origins = {first(each) for each in ({server, *whole} if unchanged else {server})}
            if server not in whole or first(header.server) not in origins:
                newest[group] = header.newest
        if self._space.servers.settings.kind != "cluster":
            newest = dict.fromkeys(newest, max(newest.values(), default=0))
        return {group: max(version, by_group[group].floor + 1) for group, version in newest.items()}

    def keep_lost(self, group: int, since: int | None) -> None:
        """As ``SupportsRebuild.keep_lost``."""
        self._since[group] = ABOVE_ALL
        if since is not None:
            self._at_its_server(group, "keep_lost", self.token, number(since))

    def end(self) -> None:
        """Remove this repair's marks where all is restored. A group that moved meanwhile is
        compared later.
        """
        calls = [
            self._call(group, "end_rebuild", self.token, number(since), *self._seen[group])
            for group, since in sorted(self._since.items())
        ]
        for reply in self._space.calls.run(calls):
            if isinstance(reply, Refused) and reply.code != "TGSERVER":
                raise self._space.refused(reply)

    # -- bases -----------------------------------------------------------------------------------

    def begin_bases(self, bases: Iterable[tuple[int, str]]) -> None:
        """As ``SupportsRebuild.begin_bases``."""
        places = list(bases)
        self._begun |= set(places)
        self._at_its_servers(
            [self._call(group, "begin_base", self.token, table.encode()) for group, table in places]
        )

    def add_to_bases(self, runs: Iterable[Run]) -> None:
        """As ``SupportsRebuild.add_to_bases``."""
        calls: list[Call] = []
        rows = []
        for run in runs:
            assert (run.group, run.table) in self._begun, (run.group, run.table)
            deletes = pc.equal(run.values, DELETE)
            stay = pc.invert(deletes)
            if stay.true_count:
                rows.append(run._replace(keys=run.keys.filter(stay), values=run.values.filter(stay)))
            deleted, key = run.keys.filter(deletes).to_pylist(), self._built(run.group, run.table)
            cuts = range(0, len(deleted), FIELDS_MAX)
            calls += [plain(key, b"HDEL", key, *deleted[start : start + FIELDS_MAX]) for start in cuts]
        for piece in rows_of(rows):
            key = self._built(piece.run.group, piece.run.table)
            calls.append(Call(key, "", (hset(key, piece),)))
        self._run(calls)

    def put_bases(self, group: int, tables: Mapping[str, int], floor: int = 0) -> bool:
        """As ``SupportsRebuild.put_bases``."""
        versions = [part for table, base in sorted(tables.items()) for part in (table.encode(), number(base))]
        done = bool(self._at_its_server(group, "put_bases", self.token, number(floor), *versions))
        if floor:
            self._since[group] = floor + 1
        return done

    def drop_what_is_left(self) -> None:
        """Drop bases that were written and not put in place. ``vacuum`` drops those that a crash leaves."""
        calls: list[Call] = []
        for group, table in self._begun:
            built, header = self._built(group, table), header_key(self._space.namespace, group)
            field = b"r:%b:%b" % (table.encode(), self.token)
            calls += [plain(built, b"UNLINK", built), plain(header, b"HDEL", header, field)]
        with contextlib.suppress(TidegateError):
            self._run(calls)

    def _built(self, group: int, table: str) -> bytes:
        return rebuilt_key(self._space.namespace, group, table, self.token)

    # -- sending ---------------------------------------------------------------------------------

    def _call(self, group: int, name: str, *args: bytes) -> Call:
        return self._space.of_group(group, name, *args)._replace(server=self._began[group])

    def _at_its_server(self, group: int, name: str, *args: bytes) -> int:
        (reply,) = self._at_its_servers([self._call(group, name, *args)])
        return int(reply)

    def _at_its_servers(self, calls: list[Call]) -> list[Any]:
        try:
            return self._space.asked(calls)
        except AnotherServerError as other:
            raise changed_again(self._space) from other

    def _run(self, calls: list[Call]) -> None:
        self._space.calls.run(calls)


def entry_content(entry: CatalogEntry) -> bytes:
    """Encode the entry as the catalog has it, without the time of publication that precedes it there."""
    return encode(msgspec.structs.replace(entry, published_at_us=0))


def has_headers(space: RedisNamespace, key_groups: int) -> bool:
    """As ``SupportsRebuild.has_headers``."""
    keys = [header_key(space.namespace, group) for group in range(key_groups)]
    return any(space.calls.run([plain(key, b"HGET", key, b"u") for key in keys]))


def put_entries(space: RedisNamespace, entries: Iterable[CatalogEntry]) -> int:
    """As ``SupportsRebuild.put_entries``.

    No record shows when a version was published: the time of its decision is used.
    """
    return sum(
        int(
            space.ask("put_entries", number(entry.version), number(entry.decided_at_us), entry_content(entry))
        )
        for entry in entries
    )


def resume(space: RedisNamespace, entry: CatalogEntry, horizon: int, epoch: int, visible: int) -> bool:
    """As ``SupportsRebuild.resume``. A floor above the visible version, or a note of a trim, is the proof.

    The log was trimmed after every header had a note, so a header without any was created with the
    pointer. The marks are set first: they remain if this is interrupted, and the pointer shows
    nothing until then. Raises: WalGapError: the store was being filled.
    """
    token = uuid.uuid4().hex[:16].encode()
    with space.relying_on(space.server_ids()):
        space.make_headers(space.uuid, space.made.key_groups, is_lost=True)  # those that were lost since
        by_group = headers(space)
        if any(header.filling for header in by_group.values()):
            raise lost_while_filled(space)
        if visible and max(max(header.floor, header.whole) for header in by_group.values()) < horizon - 1:
            return False  # readers of the visible version would lose it, and gain nothing
        new = [
            group
            for group, header in by_group.items()
            if not (header.newest or header.bases or header.marked)
        ]
        space.asked([space.of_group(group, "keep_lost", token, b"0") for group in new])
    args = (
        number(epoch),
        number(entry.version),
        entry.digest.encode(),
        number(horizon),
        number(visible),
        number(entry.decided_at_us),
        entry_content(entry),
    )
    resumed = int(space.ask("resume", *args)) == 1
    space.pointer()  # it lists no server any more
    return resumed


def changed_again(space: RedisNamespace) -> StoreNotVerifiedError:
    """Return the error for servers that changed since a repair began."""
    return StoreNotVerifiedError(f"{space.where}: servers changed again during the repair; repeat it")


@contextlib.contextmanager
def comparing(space: RedisNamespace, epoch: int) -> Iterator[tuple[int, Rebuild]]:
    """As ``Store.comparing``: the ids are noted first, and listed if they are still the same at the end."""
    pointer = space.pointer()
    servers = space.survey()
    ids = frozenset(servers)
    space.learn(servers)
    with space.relying_on(ids):
        rebuild = Rebuild(space, pointer)
        rebuild.begin()
        by_group = headers(space)
        if rebuild.discard_again(by_group):
            by_group = headers(space)
        rebuild.find(by_group, space.trusted_of(ids))
        try:
            yield max(pointer.horizon, 1, oldest_after_fill(space, pointer, by_group)), rebuild
        finally:
            rebuild.drop_what_is_left()
        if space.server_ids() != ids:
            raise changed_again(space)
        rebuild.end()
        if space.server_ids() != ids:
            raise changed_again(space)
        space.ask("list_servers", number(epoch), *listing(servers))
        floor = max(header.floor for header in by_group.values())
        space.lost, space.look_again_at = False, 0.0  # other repairs' marks may be left
        if floor > pointer.horizon:  # the pointer's server lost it: no lease holds what is merged already
            space.ask("announce", number(floor), b"0", b"0", b"0", b"", b"0")
        space.pointer()
