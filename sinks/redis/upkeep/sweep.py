"""The sweep of a namespace in Redis: late changes, and bases that a repair left, which no reader reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tidegate.sinks.records import Stamp
from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.keys import header_key, patterns, rebuilt_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import in_parts
from tidegate.sinks.redis.removal import Places, listed_tables, places, unlisted_keys
from tidegate.sinks.redis.seals import Header, headers
from tidegate.sinks.rules.reads import windows

SWEPT = re.compile(rb"tg:\{[^/}]+/(\d{1,5})\}:([^:]+):d:(\d{1,16}):([^:]+(?::[^:]+)?)$")
REBUILT = re.compile(rb"tg:\{[^/}]+/(\d{1,5})\}:([^:]+):r:([^:]+)$")
UNSEARCHED = (
    "late rows of versions that were retired before, or of a dropped namespace, rows whose header or note was"
    " lost, and rows that an earlier release never noted: --thorough looks for them, and scans all keys of"
    " the server"
)


def sweep(space: RedisNamespace, *, dry_run: bool, thorough: bool = False) -> int:
    """Drop late changes: below a floor, next to their layer, or of a dropped namespace; return their rows.

    Bases that a repair wrote and never put in place are dropped, too. Keys are looked for in the places that
    the namespace lists; ``thorough``: on the whole server.
    """
    calls, drop = [], b"0" if dry_run else b"1"
    for key in _scanned(space) if thorough else unlisted(space):
        if (match := SWEPT.search(key)) is not None:
            group, table, version, uuid = match.groups()
            calls.append(space.of_group(int(group), "sweep", table, version, uuid, drop))
        elif (match := REBUILT.search(key)) is not None:
            group, table, token = match.groups()
            calls.append(space.of_group(int(group), "sweep_rebuild", table, token, drop))
    return sum(int(rows) for rows in space.asked(calls))


def _scanned(space: RedisNamespace) -> Iterator[bytes]:
    _, pattern = patterns(space.namespace)
    yield from space.calls.each_primary_scan(pattern.replace(":*", ":*:d:*"))
    yield from space.calls.each_primary_scan(pattern.replace(":*", ":*:r:*"))


def unlisted(space: RedisNamespace) -> Iterator[bytes]:
    """Yield the keys that no header lists: all of the noted places, of key groups in which one exists."""
    by_group, known = headers(space), places(space.calls, space.namespace)
    for groups in windows(sorted(by_group)):
        parts: list[tuple[bytes, Sequence[bytes]]] = []
        for group in groups:
            keys = list(dict.fromkeys(_listed(space, group, by_group[group], known)))
            parts += [(header_key(space.namespace, group), part) for part in in_parts(keys)]
        counts = space.calls.run([plain(owner, b"EXISTS", *part) for owner, part in parts])
        for (_, part), count in zip(parts, counts, strict=True):
            yield from part if count else ()


def _listed(space: RedisNamespace, group: int, header: Header, known: Places) -> Iterator[bytes]:
    yield from unlisted_keys(space.namespace, group, space.uuid, known.attempts)
    for (version, _), written in known.attempts.items():
        unsealed = frozenset(table for table in written if version not in header.layers.get(table, ()))
        yield from unlisted_keys(space.namespace, group, space.uuid, {(version, b""): unsealed})
    tables = known.tables.union(header.layers, header.bases)
    yield from unlisted_keys(space.namespace, group, space.uuid, {header.sealed: tables})
    for table, token in header.built:
        yield rebuilt_key(space.namespace, group, table, token)


def unlink_unsealed(space: RedisNamespace, lost: Sequence[Stamp]) -> None:
    """Remove the rows of attempts that are sealed nowhere any more."""
    calls, namespace, key_groups = space.calls, space.namespace, space.made.key_groups
    _, listed = listed_tables(calls, namespace, key_groups)
    tables = places(calls, namespace).tables | listed
    attempts = {(stamp.version, stamp.attempt.encode()): tables for stamp in lost if stamp.attempt}
    for groups in windows(range(key_groups)):
        removals = []
        for group in groups:
            header, keys = header_key(namespace, group), unlisted_keys(namespace, group, space.uuid, attempts)
            removals += [plain(header, b"UNLINK", *part) for part in in_parts(list(keys))]
        calls.run(removals)
