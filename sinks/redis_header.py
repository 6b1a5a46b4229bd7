"""The header of a key group in Redis, as it is read: what is sealed and merged there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tidegate.errors import CorruptError
from tidegate.sinks.redis_keys import header_key
from tidegate.sinks.redis_space import Space

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Header(NamedTuple):
    """What the header of a key group says. ``layers`` and ``bases`` are by table.

    ``sealed``: version and attempt of the newest version that was sealed, (0, b"") where no note says so.
    ``marked``: what it lost is being put back. ``since``: versions from this one on may be missing, 0: all of
    the key group. ``lost_layers`` and ``lost_bases``: what was listed and is gone.
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

    @property
    def newest(self) -> int:
        """Everything below this version was sealed on this server when it was written (decision 0013)."""
        return max([self.floor, self.whole, *(at for of_table in self.layers.values() for at in of_table)])


def headers(space: Space) -> dict[int, Header]:
    """The header of every key group. CorruptError: no release writes such a one."""
    groups = range(space.made.key_groups)
    replies = space.asked([space.of_group(group, "header") for group in groups])
    found = {}
    for group, reply in zip(groups, replies, strict=True):
        try:
            found[group] = _header(reply)
        except (ValueError, KeyError) as error:
            raise CorruptError(
                f"{space.where}, key group {group}: its header {header_key(space.namespace, group).decode()}"
                f" cannot be read: {error!s:.200}: restore the store from a copy"
            ) from error
    return found


def _header(reply: list[bytes]) -> Header:
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    by_kind: dict[bytes, dict[str, bytes]] = {kind: {} for kind in (b"l", b"b", b"lost", b"lost_base")}
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
    return Header(
        marked, server, floor, whole, filling, layers, bases, since, lost, lost_bases, (int(version), attempt)
    )
