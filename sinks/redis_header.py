"""The header of a key group in Redis, as it is read: what is sealed and merged there."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.sinks.redis_space import Space


class Header(NamedTuple):
    """What the header of a key group says. ``layers`` and ``bases`` are by table."""

    lost: bool
    server: bytes
    floor: int
    whole: int
    filling: int
    layers: dict[str, list[int]]
    bases: dict[str, int]

    @property
    def newest(self) -> int:
        """Everything below this version was sealed on this server when it was written (decision 0013)."""
        return max([self.floor, self.whole, *(at for of_table in self.layers.values() for at in of_table)])


def headers(space: Space) -> dict[int, Header]:
    """The header of every key group."""
    groups = range(space.made.key_groups)
    replies = space.asked([space.of_group(group, "header") for group in groups])
    return dict(zip(groups, map(_header, replies), strict=True))


def _header(reply: list[bytes]) -> Header:
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    layers, bases = {}, {}
    for name, value in fields.items():
        kind, _, table = name.partition(b":")
        if kind == b"l" and table:
            layers[table.decode()] = [int(version) for version in value.split(b",")]
        elif kind == b"b" and table:
            bases[table.decode()] = int(value)
    floor, whole, filling = (int(fields.get(name, 0)) for name in (b"floor", b"whole", b"filling"))
    return Header(fields[b"u"].endswith(b"!"), fields.get(b"s", b""), floor, whole, filling, layers, bases)
