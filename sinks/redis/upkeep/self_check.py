"""The check of a namespace in Redis without a log: each header, and the keys that it lists.

A writer may run meanwhile. So the existence of a listed key is read together with the header that lists it,
in one function call: the headers that were read first only name the keys to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.errors import CorruptError
from tidegate.sinks.records import Finding, RowCount
from tidegate.sinks.redis.client.replies import Call, Refused, plain
from tidegate.sinks.redis.keys import base_key, header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import NEWEST, number
from tidegate.sinks.redis.seals import Header, headers, headers_of
from tidegate.sinks.rules.visible import floor_found

ANY_VERSION, ANY_START = number(NEWEST - 1), b"0"
BASE = 0
"""The base, as the cursors of ``scan`` number it among the layers."""


def self_check(space: RedisNamespace) -> Iterator[Finding]:
    """Yield headers that are lost, damaged or of another server, and listed keys that do not exist."""
    lost = list(_lost(space))
    yield from lost
    if lost:
        return
    readable: dict[int, Header] = {}
    for group, header in headers_of(space):
        if isinstance(header, CorruptError):
            yield Finding(_place(space, group), "a header that can be read", str(header))
        else:
            readable[group] = header
    yield from _refusals(space, readable)
    yield from _floors(space, readable)
    yield from _absent(space, readable)


def _place(space: RedisNamespace, group: int) -> str:
    return f"{space.where}, key group {group}"


def _lost(space: RedisNamespace) -> Iterator[Finding]:
    """Yield key groups without a header of this namespace."""
    groups = range(space.made.key_groups)
    keys = [header_key(space.namespace, group) for group in groups]
    owners = space.calls.run([plain(key, b"HGET", key, b"u") for key in keys])
    for group, owner in zip(groups, owners, strict=True):
        if owner is None:
            actual = "none: its server lost it; `tidegate repair` writes it again"
            yield Finding(_place(space, group), "its header", actual)
        elif owner.startswith(space.uuid + b"!"):
            actual = "marks of a repair that is under way or was interrupted: `tidegate repair` finishes it"
            yield Finding(_place(space, group), "a header without marks", actual)
        elif owner != space.uuid:
            actual = f"{owner!r:.80}: somebody changed it; restore the store from a copy"
            header = keys[group].decode()
            yield Finding(f"{_place(space, group)}, field u of {header}", f"uuid {space.made.uuid}", actual)


def _refusals(space: RedisNamespace, by_group: dict[int, Header]) -> Iterator[Finding]:
    """Yield key groups that refuse every reader, such as one that names another server than its own."""
    args = b"-", ANY_VERSION, ANY_START, b"0", b"1", b"1"
    calls = [space.of_group(group, "scan", *args) for group in by_group]
    for group, reply in zip(by_group, space.calls.run(calls), strict=True):
        if isinstance(reply, Refused):
            header = header_key(space.namespace, group).decode()
            place = f"{_place(space, group)}, {header}"
            yield Finding(place, "a key group that readers may read", str(space.refused(reply)))


def _floors(space: RedisNamespace, by_group: dict[int, Header]) -> Iterator[Finding]:
    """Yield floors above the horizon, which is announced before any floor moves and was read after them."""
    pointer = space.pointer()
    for group, header in by_group.items():
        if header.floor > pointer.horizon:
            place = f"{_place(space, group)}, field floor of {header_key(space.namespace, group).decode()}"
            expected = f"at most the horizon, {pointer.horizon}"
            yield Finding(place, expected, floor_found(header.floor, pointer.visible))


def _absent(space: RedisNamespace, by_group: dict[int, Header]) -> Iterator[Finding]:
    """Yield listed layers and bases whose keys do not exist."""
    calls: dict[tuple[int, str, int], Call] = {}
    for group, header in by_group.items():
        listed = [(table, layer) for table, layers in sorted(header.layers.items()) for layer in layers]
        for table, layer in [*listed, *((table, BASE) for table in sorted(header.bases))]:
            arguments = table.encode(), ANY_VERSION, ANY_START, b"%d:0" % layer, b"1", b"0"
            calls[group, table, layer] = space.of_group(group, "scan", *arguments)
    for (group, table, layer), reply in zip(calls, space.calls.run(list(calls.values())), strict=True):
        # A refusal of the whole key group was found before: then the detail is not a key alone.
        if isinstance(reply, Refused) and reply.code == "TGLOST" and " " not in reply.detail:
            what = f"changes of version {layer}" if layer != BASE else "the rows below its layers"
            actual = f"none: its server lost {reply.detail:.200}; `tidegate repair` writes them again"
            yield Finding(f"{_place(space, group)}, table {table}", f"{what}, as listed", actual)


def row_counts(space: RedisNamespace) -> Iterator[RowCount]:
    """Count the rows of each listed layer and base, by key group and table: readers get no others.

    The rows of a base count as those of its newest version.
    """
    layers: dict[tuple[int, str, int], Call] = {}
    bases: dict[tuple[int, str, int], Call] = {}
    for group, header in headers(space).items():
        for table, versions in sorted(header.layers.items()):
            for version in versions:
                look = space.of_group(group, "look", number(version), table.encode())
                layers[group, table, version] = look
        for table, version in sorted(header.bases.items()):
            key = base_key(space.namespace, group, table)
            bases[group, table, version] = plain(key, b"HLEN", key)
    for (group, table, version), (_, sealed, rows) in zip(
        layers, space.asked(list(layers.values())), strict=True
    ):
        if int(sealed):  # otherwise it was merged since its header was read
            yield RowCount("", table, group, version, int(rows))
    for (group, table, version), rows in zip(bases, space.calls.run(list(bases.values())), strict=True):
        if rows:
            yield RowCount("", table, group, version, int(rows))
