"""Upkeep of a namespace in Redis: merge, expiry, and the reads of verify and repair."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from tidegate.base import failpoints
from tidegate.errors import StoreNotVerifiedError, StoreUnavailableError
from tidegate.sinks.records import Counts, Finding, Stamp, Stopped, never
from tidegate.sinks.redis.client.replies import Refused, plain
from tidegate.sinks.redis.client.servers import Node
from tidegate.sinks.redis.keys import base_key, changes_key, header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import number
from tidegate.sinks.redis.seals import headers
from tidegate.sinks.rules.expiry import SweepPage
from tidegate.sinks.rules.reads import windows

TABLES_AT_ONCE = 250
"""The tables of one ``look``, which takes no more than 300 arguments."""
MERGE_ROWS = 128
"""Rows that one call moves into the base: it delays other calls by about a quarter of a millisecond."""
CALL_ROWS = 8
"""The cost of a call itself, as a number of moved rows."""
MERGE_FLIGHTS = 16
"""Flights per step, for all servers together: a merge can be stopped between steps, and each step
has a time-out of its own.
"""

Starts = Mapping[tuple[int, str], int]
"""Tables by key group, each with its start at the horizon."""


# -- merging ------------------------------------------------------------------------------------


def merge(
    space: RedisNamespace, starts: Starts, upto: int, stopped: Stopped = never, *, rows: int | None = None
) -> tuple[int, bool]:
    """Merge all layers up to the version, a step of some key groups at a time.

    Return the number of dropped rows, and whether everything is merged: ``stopped`` is called
    before each step. ``upto`` is at or below the horizon of the pointer that ``starts`` were read
    with. ``rows``: the most rows in the layers of a key group; None: unknown. Repeatable,
    interruptible, and safe to run concurrently.
    """
    flight = flight_of(rows)
    dropped, left = 0, iter(starts)
    cursors = dict.fromkeys(itertools.islice(left, MERGE_FLIGHTS * flight), b"0")
    while cursors:
        if stopped():
            return dropped, False
        calls = len(cursors)
        went, moved = _merge_step(space, starts, upto, cursors, flight)
        dropped += went
        each = -(-moved // calls)
        flight = flight_of(each if each <= CALL_ROWS else rows)  # layers become bases: so will the next ones
        failpoints.hit("retire.after_group")
        room = max(MERGE_FLIGHTS * flight - len(cursors), 0)
        cursors |= dict.fromkeys(itertools.islice(left, room), b"0")
    return dropped, True


def listing(space: RedisNamespace, tables: Sequence[str]) -> set[tuple[int, str]]:
    """Return the key groups whose headers list rows of the tables, or are lost or marked."""
    fields = [kind + table.encode() for table in tables for kind in (b"l:", b"b:")]
    listed: set[tuple[int, str]] = set()
    for groups in windows(range(space.made.key_groups)) if tables else ():
        keys = [header_key(space.namespace, group) for group in groups]
        replies = space.calls.run([plain(key, b"HMGET", key, b"u", *fields) for key in keys])
        for group, (owner, *values) in zip(groups, replies, strict=True):
            places = zip(tables, values[::2], values[1::2], strict=True)
            listed |= {
                (group, table) for table, layers, base in places if layers or base or owner != space.uuid
            }
    return listed


def flight_of(rows: int | None) -> int:
    """Return the number of calls of a merge that are sent to a server together.

    A server executes all calls in its queue before it serves a reader: together they move
    ``MERGE_ROWS`` rows, in one call or in several with a few rows each.
    """
    return 1 if rows is None else max(MERGE_ROWS // (CALL_ROWS + rows), 1)


def _merge_step(
    space: RedisNamespace, starts: Starts, upto: int, cursors: dict[tuple[int, str], bytes], flight: int
) -> tuple[int, int]:
    """Send one call each and remove finished ones from ``cursors``; return the rows dropped and the
    rows moved.
    """
    calls = [
        space.of_group(
            group,
            "merge",
            table.encode(),
            number(upto),
            number(starts[group, table]),
            number(MERGE_ROWS),
            cursor,
        )
        for (group, table), cursor in cursors.items()
    ]
    try:
        replies = space.asked(calls, flight=flight)
    except StoreNotVerifiedError:
        space.lost = True
        raise
    for place, (done, cursor, *_) in zip(list(cursors), replies, strict=True):
        if int(done):
            del cursors[place]
        else:
            cursors[place] = cursor
    return sum(int(went) for _, _, went, _ in replies), sum(int(moved) for *_, moved in replies)


def merge_all(
    space: RedisNamespace, starts: Mapping[str, int], upto: int, at_us: int, *, dry_run: bool
) -> int:
    """Merge every key group of every table up to the version, and drop rows that had expired at ``at_us``.

    ``at_us`` is the time of its decision, ``starts`` are those of its tables. Return the number of
    rows dropped, or that would be.
    """
    tables: dict[tuple[int, str], int] = {}
    for group, header in headers(space).items():
        for table in {*header.layers, *header.bases}:
            tables[group, table] = starts.get(table, upto)  # no row of another table can be read
    if dry_run:
        dropped = _mergeable(space, tables, upto, at_us)
    else:
        dropped, _ = merge(space, tables, upto)
    for group, table in tables:
        cursor: bytes | None = b"0"
        while cursor is not None:
            page = expire(space, table, group, cursor, MERGE_ROWS, upto, at_us, dry_run=dry_run)
            dropped, cursor = dropped + page.gone, page.cursor
    return dropped


def _mergeable(space: RedisNamespace, starts: Starts, upto: int, at_us: int) -> int:
    """Count the rows that ``merge`` would drop, a page of a layer at a time."""
    droppable, left = 0, iter(starts)
    places = dict.fromkeys(itertools.islice(left, MERGE_FLIGHTS), (b"0", b"0"))
    while places:
        calls = [
            space.of_group(
                group,
                "mergeable",
                table.encode(),
                number(upto),
                number(starts[group, table]),
                _time(at_us),
                *place,
                number(MERGE_ROWS),
            )
            for (group, table), place in places.items()
        ]
        for part, (layer, cursor, rows) in zip(list(places), space.asked(calls, flight=1), strict=True):
            droppable += int(rows)
            if int(layer):
                places[part] = layer, cursor
            else:
                del places[part]
        places |= dict.fromkeys(itertools.islice(left, MERGE_FLIGHTS - len(places)), (b"0", b"0"))
    return droppable


def expire(
    space: RedisNamespace,
    table: str,
    group: int,
    cursor: bytes,
    rows: int,
    upto: int,
    at_us: int,
    *,
    dry_run: bool = False,
) -> SweepPage:
    """Drop, from some rows of a base, those that had expired when the version was decided.

    The version is at or below the horizon of a pointer that was read before.
    """
    drop = b"0" if dry_run else b"1"
    call = space.of_group(
        group, "expire", table.encode(), number(upto), _time(at_us), cursor, number(rows), drop
    )
    ((following, looked, dropped),) = space.asked([call])
    return SweepPage(int(looked), int(dropped), None if following == b"0" else following)


def _time(at_us: int) -> bytes:
    """Encode a time as stored values have it."""
    return struct.pack(">q", at_us)


# -- servers that lost something ------------------------------------------------------------------


LOOK_S = 1.0
"""The interval of reads of the headers: a process that marked them may have died."""


def unsettled(space: RedisNamespace) -> bool:
    """Return whether a loss is not repaired, or a key group is not on the server where it was compared."""
    if space.servers.settings.kind == "cluster":
        space.servers.refresh()
    places = tuple(node.address for node in _nodes(space))
    now = time.monotonic()
    if places == space.compared_at and now < space.look_again_at:
        return False
    moved, lost = _looked_at(space)
    if moved or lost:
        return True
    space.compared_at, space.look_again_at = places, now + LOOK_S
    return False


def note_moved(space: RedisNamespace) -> None:
    """As ``SupportsRebuild.note_moved``: key groups not proven whole are left to repair."""
    moved, _ = _looked_at(space)
    calls = [space.of_group(group, "note_moved") for group in moved]
    for reply in space.calls.run(calls):
        if isinstance(reply, Refused) and reply.code != "TGLOST":
            raise space.refused(reply)


def _nodes(space: RedisNamespace) -> list[Node]:
    groups = range(space.made.key_groups)
    return [space.calls.node_of(header_key(space.namespace, group)) for group in groups]


def _looked_at(space: RedisNamespace) -> tuple[list[int], bool]:
    """Return key groups that moved since they were compared; and whether one is marked, or lost its
    header.
    """
    keys = [header_key(space.namespace, group) for group in range(space.made.key_groups)]
    fields = space.calls.run([plain(key, b"HMGET", key, b"u", b"s") for key in keys])
    nodes, moved = _nodes(space), []
    if space.servers.settings.kind == "cluster":
        # A client that has called no function on a server does not know its id yet.
        ids = {} if all(node.server_id for node in nodes) else space.ids_by_address()
        moved = [
            group
            for group, (owner, server) in enumerate(fields)
            if owner == space.uuid
            and server != (nodes[group].server_id or ids.get(str(nodes[group].address)))
        ]
    return moved, any(owner != space.uuid for owner, _ in fields)


def missing(space: RedisNamespace, stamp: Stamp, counts: Counts) -> dict[int, Mapping[str, int]]:
    """As ``Store.missing``, in one call per key group."""
    return {group: counts[group] for group, _, _ in _unfit(space, stamp, counts)}


def confirm(space: RedisNamespace, version: int, replicas: int, *, aof: bool) -> None:
    """Write after all other writes on every server, then WAIT for it on the same connection."""
    last: dict[bytes, int] = {}
    for group in range(space.made.key_groups):
        node = space.calls.node_of(header_key(space.namespace, group))
        last.setdefault(node.server_id, group)
    calls = [space.of_group(group, "stamp", number(version)) for group in last.values()]
    for call in calls:
        space.asked([call])
        synced, confirmed = space.calls.wait_behind(call, replicas, aof=aof)
        if not synced:
            raise StoreUnavailableError(
                f"{space.where}: a server has not fsynced version {version} in time: check its disk, and"
                " appendfsync, which has to be always or everysec"
            )
        if confirmed < replicas:
            raise StoreUnavailableError(
                f"{space.where}: only {confirmed} of {replicas} replicas have version {version}; bring them"
                " back, or lower wait_replicas"
            )


# -- verification -----------------------------------------------------------------------------------


def verify(space: RedisNamespace, stamp: Stamp, counts: Counts) -> Iterator[Finding]:
    """Yield what is missing or miscounted of a sealed version; merged key groups cannot be checked
    any more.
    """
    for group, expected, actual in _unfit(space, stamp, counts):
        yield Finding(f"{space.where}, version {stamp.version}, key group {group}", expected, actual)


def _unfit(space: RedisNamespace, stamp: Stamp, counts: Counts) -> Iterator[tuple[int, str, str]]:
    """Yield key groups in which the version is not whole, with what was expected and what was found."""
    tables = [
        (group, sorted(of_group)[start : start + TABLES_AT_ONCE])
        for group, of_group in sorted(counts.items())
        for start in range(0, max(len(of_group), 1), TABLES_AT_ONCE)
    ]
    calls = [
        space.of_group(group, "look", number(stamp.version), *(name.encode() for name in names))
        for group, names in tables
    ]
    for (group, names), (floor, *counted) in zip(tables, space.asked(calls), strict=True):
        if int(floor) >= stamp.version:
            continue
        for name, sealed, rows in zip(names, counted[::2], counted[1::2], strict=True):
            expected = counts[group][name]
            if int(rows) != expected or (expected and not int(sealed)):
                actual = f"{int(rows)} rows of table {name}{'' if int(sealed) else ', not sealed'}"
                yield group, f"{expected} rows of table {name}, sealed", actual
                break


def size(space: RedisNamespace) -> int:
    """Return the bytes of all keys that the headers list, by the servers' own estimate."""
    keys: dict[bytes, None] = {}
    uuid = space.uuid
    for group, header in headers(space).items():
        keys[header_key(space.namespace, group)] = None
        for table, versions in header.layers.items():
            of = [changes_key(space.namespace, group, table, version, uuid) for version in versions]
            keys.update(dict.fromkeys(of))
        keys.update((base_key(space.namespace, group, table), None) for table in header.bases)
    replies = space.calls.run([plain(key, b"MEMORY", b"USAGE", key) for key in keys])
    return sum(int(size_bytes or 0) for size_bytes in replies)
