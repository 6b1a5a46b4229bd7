"""Seals in Redis: key groups counted and listed, many in one call unless a Cluster separates them.

``headers`` reads back what was sealed and merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tidegate.errors import CorruptError
from tidegate.sinks.records import Counts, Stamp
from tidegate.sinks.redis.client.replies import CROSS_SLOT, Call, Refused
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import number
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.rules.seals import incomplete, miscounted

GROUPS_AT_ONCE = 32
"""About half a millisecond of the server, which serves no other client meanwhile."""
SEALED_AT_ONCE = 2_700
"""Arguments of a seal. All tables of one key group fit: a namespace has some 870 at most."""


class Seals:
    """Seals of key groups of a namespace."""

    def __init__(self, space: RedisNamespace) -> None:
        self._space = space
        self._together = space.servers.settings.kind != "cluster"

    def run(
        self, stamp: Stamp, counts: Counts, before: Sequence[Call] = (), sets: KeySets | None = None
    ) -> None:
        """Seal, after calls that write rows, in one flight. Raises: as ``Store.seal`` and ``apply``."""
        _ = self._space.uuid
        together = self._together and not self._space.repairing  # read once: another thread may turn it off
        calls = self._calls(stamp, counts, sets or KeySets({}), together=together)
        replies = self._space.calls.run([*before, *calls])[len(before) :]
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        if any(refusal.code == CROSS_SLOT for refusal in refused):
            self._together = False
            self.run(stamp, counts, sets=sets)
            return
        for refusal in refused:
            raise self._space.refused(refusal)
        by_group = itertools.chain.from_iterable(replies) if together else replies
        wrong = [
            miscounted(group, _counts_in(reply), counts[group])
            for group, reply in zip(sorted(counts), by_group, strict=True)
            if reply
        ]
        if wrong:
            raise incomplete(self._space.where, stamp, wrong)

    def _calls(self, stamp: Stamp, counts: Counts, sets: KeySets, *, together: bool) -> list[Call]:
        space, groups, version = self._space, sorted(counts), sealed_as(stamp)
        if not together:
            name = "seal_again" if space.repairing else "seal"
            return [space.of_group(group, name, version, *_counted(group, counts, sets)) for group in groups]
        at_once, tables = GROUPS_AT_ONCE, max(map(len, counts.values()), default=0)
        while at_once > 1 and at_once * (1 + 3 * tables) > SEALED_AT_ONCE:
            at_once //= 2
        return [
            self._of_several(version, groups[start : start + at_once], counts, sets)
            for start in range(0, len(groups), at_once)
        ]

    def _of_several(self, version: bytes, groups: Sequence[int], counts: Counts, sets: KeySets) -> Call:
        args = [version]
        for group in groups:
            args += [number(len(counts[group])), *_counted(group, counts, sets)]
        more = tuple(header_key(self._space.namespace, group) for group in groups[1:])
        return self._space.of_group(groups[0], "seal_many", *args)._replace(more=more)


def sealed_as(stamp: Stamp) -> bytes:
    """Return a version as an argument of the sealing functions; without an attempt its number alone."""
    if not stamp.attempt:
        return number(stamp.version)
    return b"%d:%d:%b" % (stamp.version, stamp.decided_at_us, stamp.attempt.encode())


def _counted(group: int, counts: Counts, sets: KeySets) -> Iterator[bytes]:
    for table, rows in sorted(counts[group].items()):
        yield table.encode()
        yield number(rows)
        yield sets.digest(group, table)


def _counts_in(reply: Sequence[Any]) -> dict[str, int]:
    return {name.decode(): int(rows) for name, rows in zip(reply[::2], reply[1::2], strict=True)}


# -- the header of a key group in Redis, as it is read: sealed and merged versions -------------------------

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Header(NamedTuple):
    """The decoded header of a key group. ``layers`` and ``bases`` are by table.

    ``sealed``: version and attempt of the newest version that was sealed, (0, b"") without a note
    of it. ``marked``: its losses are being restored. ``since``: versions from this one on may be
    missing, 0: all of the key group. ``lost_layers`` and ``lost_bases``: entries that were listed
    and are gone. ``built``: table and token of bases that repairs write.
    """

    marked: bool
    server: bytes
    floor: int
    whole: int
    filling: int
    layers: dict[str, list[int]]
    bases: dict[str, int]
    since: int | None = None
    lost_layers: Mapping[str, list[int]] = NOTHING
    lost_bases: Mapping[str, int] = NOTHING
    sealed: tuple[int, bytes] = (0, b"")
    built: tuple[tuple[str, bytes], ...] = ()

    @property
    def newest(self) -> int:
        """Everything below this version was sealed on this server when it was written (decision 0013)."""
        return max([self.floor, self.whole, *(v for of_table in self.layers.values() for v in of_table)])


def headers(space: RedisNamespace) -> dict[int, Header]:
    """Return the header of every key group. Raises: CorruptError, no release writes such a header."""
    by_group = {}
    for group, header in headers_of(space):
        if isinstance(header, CorruptError):
            raise header
        by_group[group] = header
    return by_group


def headers_of(space: RedisNamespace) -> Iterator[tuple[int, Header | CorruptError]]:
    """Yield the header of every key group, or the error of one that no release writes."""
    groups = range(space.made.key_groups)
    replies = space.asked([space.of_group(group, "header") for group in groups])
    for group, reply in zip(groups, replies, strict=True):
        try:
            yield group, _header(reply)
        except (ValueError, KeyError) as error:
            key = header_key(space.namespace, group).decode()
            place = f"{space.where}, key group {group}: its header {key}"
            message = f"{place} cannot be read: {error!s:.200}: restore the store from a copy"
            yield group, CorruptError(message)


def _header(reply: list[bytes]) -> Header:
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    by_kind: dict[bytes, dict[str, bytes]] = {kind: {} for kind in (b"l", b"b", b"lost", b"lost_base", b"r")}
    for name, value in fields.items():
        kind, _, table = name.partition(b":")
        if kind in by_kind and table:
            by_kind[kind][table.decode()] = value
    layers, lost = (
        {table: [int(version) for version in value.split(b",")] for table, value in by_kind[kind].items()}
        for kind in (b"l", b"lost")
    )
    bases, lost_bases = (
        {table: int(value) for table, value in by_kind[kind].items()} for kind in (b"b", b"lost_base")
    )
    floor, whole, filling = (int(fields.get(name, 0)) for name in (b"floor", b"whole", b"filling"))
    since = int(fields[b"lost"]) if b"lost" in fields else None
    version, _, attempt = fields.get(b"sealed", b"0  ").split(b" ", 2)
    marked, server = b"!" in fields[b"u"], fields.get(b"s", b"")
    written = [place.partition(":") for place in by_kind[b"r"]]
    return Header(
        marked,
        server,
        floor,
        whole,
        filling,
        layers,
        bases,
        since,
        lost,
        lost_bases,
        (int(version), attempt),
        tuple((table, token.encode()) for table, _, token in written),
    )
