"""The reads of a namespace in Redis: their calls and the meaning of their replies. Pure; for both clients.

The functions in the server decide what a reader sees: ``lua/pointer.lua`` and ``lua/read.lua``.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidegate.errors import (
    CorruptError,
    FencedError,
    SnapshotExpiredError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    TidegateError,
    VersionRegressedError,
)
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, ReadAt, Reads, Stamp, heartbeat_ages
from tidegate.sinks.redis.client.functions import FORMAT
from tidegate.sinks.redis.client.replies import Call, Refused, plain
from tidegate.sinks.redis.keys import beside, header_key, meta_key
from tidegate.sinks.rules.attempts import other_attempt
from tidegate.sinks.rules.columns import column_of
from tidegate.sinks.rules.leases import Lease, too_many_leases
from tidegate.sinks.rules.reads import (
    GROUPS_AT_ONCE,
    by_group,
    checked_format,
    decode,
    dropped,
    lost,
    nothing_here,
    values_at,
)
from tidegate.sinks.sorted_rows import SortedRows
from tidegate.wal.record import TableSchema

KEYS_AT_ONCE = 500
ARGS_AT_ONCE = 500
"""Names and schemas that one call of a function is given: another client waits for some 3 ms at most."""
NEWEST = 2**52
CATALOG_PAGE_MIN = 625
PAGE_ROWS, PAGE_BYTES = 1_000, 64 * 1024
SCAN_TRIES = 20
ROWS_AT_ONCE = 8_000
"""The number of rows of several key groups that a scan holds together."""
FEW_ROWS = ROWS_AT_ONCE // GROUPS_AT_ONCE
"""The rows of a first answer: a key group with at most these and ``PAGE_BYTES`` is scanned by one call."""
DETAIL_MAX = 500
"""The most characters of a function's message: after tampering, header fields may have any length."""
BLOCK_S = 1.0
"""A blocked read ends well before its connection's time-out, and is repeated."""

WHOLE = re.compile(rb"\d{1,18}")
NO_ENTRY: tuple[list[None], ...] = ([], [None])
"""The end of a reply with a pointer and no entry."""
NOT_OURS = (ValueError, TypeError, AttributeError)
"""The errors of a field that is missing, no number or no text."""

Kind = TypeVar("Kind")


def number(value: int) -> bytes:
    """Encode a whole number as an argument."""
    return b"%d" % value


# -- calls ----------------------------------------------------------------------------------------


def in_parts(args: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut the arguments of a function into parts that one call takes."""
    for start in range(0, len(args), ARGS_AT_ONCE):
        yield args[start : start + ARGS_AT_ONCE]


def of_group(namespace: str, uuid: bytes, group: int, name: str, *args: bytes) -> Call:
    """Return a call of a function on a key group."""
    return Call(header_key(namespace, group), name, (uuid, *args), at_server=True)


def identity_call(namespace: str) -> Call:
    """Return the call whose reply ``identity_in`` decodes."""
    meta = meta_key(namespace)
    return plain(meta, b"HMGET", meta, b"identity", b"ready")


def newer_call(namespace: str, version: int, timeout_s: float) -> Call:
    """Return a call that blocks its connection until a newer version is published, ``BLOCK_S`` at most."""
    stream = beside(namespace, "versions")
    last = b"%d-%d" % (version, 2**32)
    block = number(max(1, int(min(timeout_s, BLOCK_S) * 1_000)))
    return plain(stream, b"XREAD", b"COUNT", b"1", b"BLOCK", block, b"STREAMS", stream, last)


def catalog_range(oldest: int, newest: int | None) -> tuple[bytes, bytes]:
    """Return the arguments of ``catalog``."""
    return number(oldest), number(NEWEST if newest is None else newest)


def version_after(page: list[CatalogEntry], newest: int | None) -> int | None:
    """Return the version that the next page of the catalog begins with; None: there is none.

    A call answers the entries of at most 1,250 versions. A page is taken for the last one if it has less than
    half of them.
    """
    if len(page) < CATALOG_PAGE_MIN or (newest is not None and page[-1].version >= newest):
        return None
    return page[-1].version + 1


def lease_args(lease: Lease, ttl_s: float) -> tuple[bytes, ...]:
    """Return the arguments of ``lease``."""
    return lease.lease_id.encode(), number(lease.version), number(int(ttl_s * 1e6))


@functools.lru_cache(maxsize=1_024)
def head_of(at: ReadAt) -> tuple[bytes, bytes, bytes]:
    """Return the first arguments of every read of rows."""
    return at.table.encode(), number(at.version), number(at.start)


def in_places(groups: list[tuple[int, list[int]]], replies: list[Any], keys: int) -> Any:
    """Return the stored values of ``by_group``'s calls, in the order of the keys."""
    stored: list[bytes | None] = [None] * keys
    for (_, indexes), values in zip(groups, replies, strict=True):
        for index, value in zip(indexes, values, strict=True):
            stored[index] = value
    return column_of(stored)


class ManyReads(NamedTuple):
    """The calls that read keys of several tables, and the positions of the keys of each by key group."""

    calls: list[Call]
    groups: list[list[tuple[int, list[int]]]]

    def values(self, where: str, reads: Reads, replies: list[Any] | None) -> list[Any] | None:
        """Return readers' values of each table, in the order of its keys; None for no replies."""
        if replies is None:
            return None
        values, first = [], 0
        for (read_at, keys), groups in zip(reads, self.groups, strict=True):
            stored = in_places(groups, replies[first : first + len(groups)], len(keys))
            values.append(values_at(where, read_at, keys, stored))
            first += len(groups)
        return values


def many_reads(namespace: str, identity: Identity, reads: Reads) -> ManyReads:
    """Return the calls for keys of several tables: one for each table and key group."""
    uuid, many = identity.uuid.encode(), ManyReads([], [])
    for read_at, keys in reads:
        head = head_of(read_at)
        groups = by_group(keys, identity.key_groups, KEYS_AT_ONCE, read_at.stride)
        many.groups.append(groups)
        many.calls.extend(
            of_group(namespace, uuid, group, "read", *head, *[keys[index] for index in indexes])
            for group, indexes in groups
        )
    return many


def is_passed(refused: Refused, pointer: Pointer, version: int) -> bool:
    """Whether a read was refused since its version was retired, and the pointer shows a newer one."""
    return refused.code == "TGEXPIRED" and pointer.visible > version


class AnotherServerError(Exception):
    """A call that was for one server reached another."""


class Ask(NamedTuple):
    """A call of ``scan`` on a key group: its arguments after the head; ``server``: see ``Call``."""

    group: int
    args: tuple[bytes, ...]
    server: bytes


class _GroupScan:
    """The scan of one key group: the next call, and the rows that were read.

    It starts from scratch when the key group's server changes: a cursor means nothing to another server, and
    one that was promoted may again have rows in a layer that were already in the base.
    """

    def __init__(self, where: str, group: int) -> None:
        self.group, self.rows_expected, self._where, self._tries = group, 0, where, 0
        self.rows = SortedRows(where)
        self._begin()

    def _begin(self) -> None:
        self.rows.close()
        self._server, self._cursor = b"", b"0"

    def ask(self) -> Ask | None:
        """Return the next call; None when all rows were read."""
        if self._server and self._cursor == b"0":
            return None
        rows = PAGE_ROWS if self._server else FEW_ROWS
        return Ask(self.group, (self._cursor, number(rows), number(PAGE_BYTES)), self._server)

    def take(self, reply: Any) -> None:
        """Take the reply, None when another server answered. The first value of a key counts.

        Raises: StoreUnavailableError, the server changed ``SCAN_TRIES`` times.
        """
        if reply is None:
            self._tries += 1
            if self._tries == SCAN_TRIES:
                raise StoreUnavailableError(
                    f"{self._where}: key group {self.group} changed its server {SCAN_TRIES} times while it"
                    " was read; read again"
                )
            self._begin()
        else:
            first = self._cursor == b"0"
            self._server, self._cursor, expected, page = reply
            self.rows_expected = expected if first else self.rows_expected
            self.rows.add(page)


ScanSteps = Generator[list[Ask] | tuple[int, SortedRows], Any, None]


def scan_steps(where: str, groups: Sequence[int]) -> ScanSteps:
    """Scan key groups: yield each with its rows, in order. The rows are valid until the next step.

    In between it yields lists of calls, and is sent their replies, None where another server answered. The
    calls of ``GROUPS_AT_ONCE`` key groups travel together, and key groups with few rows need one call each.
    Raises: StoreUnavailableError, a key group changed its server too often.
    """
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        scans = [_GroupScan(where, group) for group in groups[first : first + GROUPS_AT_ONCE]]
        try:
            yield from _read_all(scans)
        finally:
            for scan in scans:
                scan.rows.close()


def following(steps: ScanSteps, replies: list[Any] | None) -> Any:
    """Return the next of the steps, None at their end."""
    try:
        return steps.send(replies)
    except StopIteration:
        return None


def _read_all(scans: list[_GroupScan]) -> ScanSteps:
    yield from _step(scans)
    waiting: list[_GroupScan] = []
    for scan in scans:
        if sum(each.rows_expected for each in waiting) + scan.rows_expected > ROWS_AT_ONCE:
            yield from _finish(waiting)
            waiting = []
        waiting.append(scan)
    yield from _finish(waiting)


def _step(scans: list[_GroupScan]) -> ScanSteps:
    asks = [(scan, ask) for scan in scans if (ask := scan.ask()) is not None]
    replies = yield [ask for _, ask in asks]
    for (scan, _), reply in zip(asks, replies, strict=True):
        scan.take(reply)


def _finish(scans: list[_GroupScan]) -> ScanSteps:
    """Read the rest of these key groups together, then yield all."""
    while left := [scan for scan in scans if scan.ask() is not None]:
        yield from _step(left)
    for scan in scans:
        yield scan.group, scan.rows
        scan.rows.close()


# -- replies --------------------------------------------------------------------------------------


def identity_in(where: str, fields: list[Any]) -> Identity | None:
    """Decode the identity; None while it is being created, or when its creation was interrupted.

    Raises: ConfigError, it has another format.
    """
    if fields[0] is None or fields[1] is None:
        return None
    return checked_format(where, decode(where, fields[0], Identity), FORMAT)


@contextlib.contextmanager
def readable(where: str, what: str, content: object) -> Iterator[None]:
    """Raise CorruptError with the location for content that no release writes."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CorruptError(
            f"{where}: {what} cannot be read: {content!r:.200}: somebody changed it; restore the store from a"
            " copy, or fill it again from another one"
        ) from error


def number_in(content: bytes) -> int:
    """Decode a whole number in a field: digits alone. Raises: ValueError, TypeError, it is none.

    >>> number_in(b"17")
    17
    """
    if WHOLE.fullmatch(content) is None:
        raise ValueError("no whole number")
    return int(content)


class Known(NamedTuple):
    """One read of the pointer. ``listed``: servers listed when its version was visible, which have
    all of it.
    """

    pointer: Pointer
    listed: frozenset[bytes]


def known_in(where: str, fields: list[Any]) -> Known:
    """Decode the pointer, without its entry, and the servers that it lists, as a pair.

    Raises: CorruptError, no release writes such a pointer.
    """
    visible, digest, epoch, writer, horizon, beat_us, servers, now_us = fields[:8]
    try:
        numbers = (
            number_in(visible),
            number_in(epoch),
            number_in(horizon),
        )
        ages = ages_in(beat_us, now_us)
        texts, listed = (digest.decode(), writer.decode()), frozenset(servers.split(b","))
    except NOT_OURS as error:
        raise CorruptError(
            f"{where}: the pointer is {fields!r:.200}: restore the store from a copy"
        ) from error
    lost = not servers  # ``create`` with ``lost_at``, or ``resume``: nothing is compared with the log yet
    return Known(Pointer(numbers[0], texts[0], numbers[1], texts[1], numbers[2], *ages, lost), listed)


def ages_in(beat_us: bytes | None, now_us: bytes) -> tuple[float | None, float | None]:
    """Decode the time of the heartbeat, as ``heartbeat_ages``. Raises: ValueError, TypeError, it is none."""
    if beat_us is None:
        return None, None
    noted_us = number_in(beat_us.removeprefix(b"-"))
    return heartbeat_ages(-noted_us if beat_us.startswith(b"-") else noted_us, int(now_us))


def catalog_in(where: str, contents: list[bytes]) -> list[CatalogEntry]:
    """Decode the entries of the catalog."""
    entries = []
    for content in contents:
        published_us, _, entry = content.partition(b" ")
        decoded = decode(where, entry, CatalogEntry)
        try:
            entries.append(msgspec.structs.replace(decoded, published_at_us=number_in(published_us)))
        except ValueError as error:
            raise CorruptError(
                f"{where}: catalog, version {decoded.version}: it was published at {published_us!r:.60}:"
                " that is no time; restore the store from a copy"
            ) from error
    return entries


def with_entry(where: str, pointer: Pointer, fields: list[Any]) -> Pointer:
    """Return the pointer with the entry that the reply has."""
    (entry,) = catalog_in(where, [fields[8]])
    return msgspec.structs.replace(pointer, entry=entry)


def starts_of(entry: CatalogEntry | None) -> dict[str, int]:
    """Return, by table, the version at which it was last emptied, or that dropped it."""
    return {} if entry is None else entry.starts


def schemas_in(where: str, pairs: list[bytes]) -> dict[str, TableSchema]:
    """Decode the schemas by id."""
    by_name = zip(pairs[::2], pairs[1::2], strict=True)
    return {name.decode(errors="replace"): decode(where, content, TableSchema) for name, content in by_name}


# -- refusals -------------------------------------------------------------------------------------


def refusal(where: str, refused: Refused, *, opened: bool) -> TidegateError:
    """Return the error for a function's refusal. ``opened``: the namespace existed before."""
    refused = refused._replace(detail=refused.detail[:DETAIL_MAX])
    match refused.code:
        case "TGNONE":
            return lost(where) if opened else nothing_here(where)
        case "TGOTHER":
            return dropped(where) if opened else nothing_here(where)
        case "TGEXPIRED":
            return SnapshotExpiredError(
                f"{where}: that version was retired, the oldest that can be read is {refused.detail}"
            )
        case "TGAHEAD":
            return VersionRegressedError(f"{where}: no lease above the visible version, {refused.detail}")
        case "TGLEASES":
            return too_many_leases(where, int(refused.detail))
        case "TGNUMBER":
            return CorruptError(
                f"{where}: the pointer names version {refused.detail}, which no namespace reaches:"
                " somebody changed it; restore the store from a copy, or fill it again from another one"
            )
        case "TGFENCED":
            return FencedError(
                f"{where}: epoch {refused.detail} is claimed, above this driver's: a newer driver runs; stop"
                " this one, or restart it if it is the one that should run"
            )
        case "TGATTEMPT":
            version, attempt, noted = (*refused.detail.split(" "), "")[:3]
            return other_attempt(where, Stamp(int(version), 0, attempt), noted)
        case "TGLOST" if " lost " in refused.detail:
            return StoreNotVerifiedError(
                f"{where}: {refused.detail}. It is not back yet: `tidegate repair` puts it back from the"
                " log, or reports what the log no longer holds"
            )
        case "TGLOST":
            return StoreNotVerifiedError(
                f"{where}: {refused.detail} was not compared with the log: its server lost it (or evicted it:"
                " then first set maxmemory-policy noeviction, and raise maxmemory), or it came from another"
                " server. A running query compares it within seconds after it learns of it, `tidegate repair`"
                " does so now"
            )
        case _:
            return CorruptError(f"{where}: {refused.code} {refused.detail}")
