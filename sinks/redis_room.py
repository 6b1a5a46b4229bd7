"""Whether the next version still fits into the memory of a store's Redis servers: for `tidegate doctor`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidegate.checks import Check, Outcome
from tidegate.sinks.redis_checks import APPLIED, ask, ask_each, fields, number
from tidegate.sinks.redis_header import headers
from tidegate.sinks.redis_keys import changes_key
from tidegate.sinks.redis_servers import Node
from tidegate.sinks.redis_space import Space
from tidegate.sinks.store import CatalogEntry

LOOKED_AT = 20
"""The next version is taken to be as large as the largest of so many."""
SAMPLES = 64
"""So many hashes of changes are measured."""
WARN_BELOW = 2
"""Rows need not spread evenly over the servers, and a merge holds some of them twice for a moment."""


class Memory(NamedTuple):
    """Of one server, in bytes."""

    free: int
    address: str
    used: int
    limit: int
    by: str


def room(space: Space, entries: Sequence[CatalogEntry]) -> Check:
    """The forecast for the fullest server. ``entries``: the last visible versions. Writes nothing."""
    found = []
    for address, (reply,) in ask_each(space, (b"INFO", b"memory")):
        memory = _memory(address, fields(reply))
        if memory is None:
            return _untold(f"{address}: cannot be told: INFO memory is barred")
        found.append(memory)
    fullest = min(found)
    mib = fullest.used / 1024**2, fullest.limit / 1024**2
    has = f"{fullest.address}: {mib[0]:,.1f} of {mib[1]:,.1f} MiB used ({fullest.by})"
    rows = max((sum(entry.changes.values()) for entry in entries), default=0)
    if rows == 0:
        return Check("memory", "pass", f"{has}; no version yet to measure", APPLIED)
    per_row = _bytes_per_row(space)
    if per_row is None:
        return _untold(f"{has}; how large rows are cannot be told: MEMORY is barred, or all are merged")
    needed = per_row * rows / len(found)
    outcome: Outcome = "warn" if fullest.free < WARN_BELOW * needed else "pass"
    fits = "may not fit: raise maxmemory or free some" if outcome == "warn" else "fits"
    takes = f"{rows:,} changes take about {needed / 1024**2:,.1f} MiB there"
    return Check("memory", outcome, f"{has}; {takes}: the next version {fits}", APPLIED)


def _memory(address: str, told: dict[str, str]) -> Memory | None:
    used, limit = number(told, "used_memory"), number(told, "maxmemory")
    most = limit or number(told, "total_system_memory")
    if used is None or not most:
        return None
    by = "maxmemory" if limit else "all that the machine has: set maxmemory"
    return Memory(most - used, address, used, most, by)


def _bytes_per_row(space: Space) -> float | None:
    """By a sample of the changes that lie there unmerged; None: nothing can be measured."""
    of_node: dict[Node, list[tuple[bytes, ...]]] = defaultdict(list)
    for key in itertools.islice(_layers(space), SAMPLES):
        commands = of_node[space.servers.node_of(key)]
        commands += [(b"MEMORY", b"USAGE", key), (b"HLEN", key)]
    taken = rows = 0
    for node, commands in of_node.items():
        replies = ask(node, *commands)
        for usage, length in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(usage, int) and isinstance(length, int):
                taken, rows = taken + usage, rows + length
    return taken / rows if rows else None


def _layers(space: Space) -> Iterator[bytes]:
    for group, header in headers(space).items():
        for table, versions in header.layers.items():
            for version in versions:
                yield changes_key(space.namespace, group, table, version, space.uuid)


def _untold(found: str) -> Check:
    return Check("memory", "warn", found, APPLIED)
