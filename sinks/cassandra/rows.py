"""The rows of a Cassandra store: applied, counted, read, retired. ``namespace.py`` has the pointer.

A row's timestamp is its version's ``decided_at``, and so is that of the version's tombstones. So
anything that is written again, however late, equals what was there before, or stays deleted. Every
delete is bounded by a version: ``version < N`` of one key, where N is a row of that key at or below
the horizon. So a row that is found is right whatever was deleted meanwhile: a delete that removes a
newer row of the key removes the older ones with it, in one tombstone. Only a key that is not found
may have been retired. Then the horizon, which moves before anything is deleted, has passed the
version (``CassandraNamespace.check_after``).
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel

from tidegate.base.extras import np, pa, pc
from tidegate.keys.groups import key_group
from tidegate.sinks.cassandra.client.batch import (
    Packed,
    PackedBatch,
    bigint,
    bound,
    joined,
    routing_key,
    rows,
    rows_of_groups,
    single,
    statement,
)
from tidegate.sinks.cassandra.namespace import CassandraNamespace
from tidegate.sinks.records import CatalogEntry, Counts, ReadAt, Stamp, Stopped
from tidegate.sinks.rules.attempts import other_attempt
from tidegate.sinks.rules.expiry import SweepPage, collectable_versions, is_hidden
from tidegate.sinks.rules.reads import batch_of, by_group
from tidegate.sinks.rules.seals import is_whole, miscounted
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.value_flags import DELETES

KEY_MAX = 65_535
"""Cassandra refuses requests for a longer key. None is written: keys of all stores are shorter."""
KEYS_AT_ONCE = 100
"""Keys in one request: each is a separate slice for the server."""
TOGETHER, TOGETHER_BYTES = 10, 5 * 1024
"""Partitions in one request, and their bytes: servers warn of more, and refuse ten times as many
bytes (unlogged_batch_across_partitions_warn_threshold, batch_size_warn_threshold and
_fail_threshold).
"""
PACKED_ROWS = 16_384
"""Rows that are packed at once; a larger run is packed alone. Many key groups thereby take few
calls of Arrow, in memory that the processor's cache holds.
"""
PAGE_FIRST, PAGE_ROWS = 32, 500
PAGE_BYTES = 2 * 1024 * 1024
SEAL = ""
"""The note that a key group is sealed: it names an empty table, which no table is called. A note
prefixes the table's name by its attempt and a ``/``, which no name contains; those of older
releases have neither.
"""

Request = tuple[Any, int]
Part = tuple[tuple[bytes, ...], Packed]
"""Statements of one partition, with its key."""


class _Table(NamedTuple):
    """Rows of one table: key group (numpy), key and stored value (Arrow) of each."""

    name: str
    groups: Any
    keys: Any
    values: Any


class Rows:
    """The rows and notes of one space."""

    def __init__(self, space: CassandraNamespace) -> None:
        self._space = space
        self._listed: set[tuple[Any, str]] = set()
        self._expiry_rows = PAGE_FIRST
        self.begun: Stamp | None = None
        """The version that this instance began last. It is above the visible one, so above all
        merged ones.
        """

    def within(self, space: CassandraNamespace) -> Rows:
        """Return these rows in a view of the namespace."""
        view = copy.copy(self)
        view._space = space  # noqa: SLF001 - of this class
        return view

    # -- writing -------------------------------------------------------------------------------

    def apply(self, stamp: Stamp, chunks: Sequence[Chunk]) -> None:
        """Write the changes and, once they are acknowledged, their counts."""
        if stamp != self.begun and self.is_merged(stamp.version):
            return
        self.rewrite(stamp, [run for chunk in chunks for run in chunk.runs])
        notes: dict[tuple[int, str, int], int] = {}
        for chunk in chunks:
            counted: dict[tuple[int, str, int], int] = defaultdict(int)
            for run in chunk.runs:
                counted[run.group, run.table, chunk.ordinal] += len(run.keys)
            notes |= counted  # a repeated chunk counts once
        named = [(group, noted_as(stamp, table), part, rows) for (group, table, part), rows in notes.items()]
        self.note(stamp, named)

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        """Write rows, whatever the horizon is.

        A row that was replaced since is hidden by a newer tombstone, or by the row that replaced
        it.
        """
        self._list_tables({run.table for run in runs})
        head, version = self._start_of("put_row", 6), bound(bigint(stamp.version))
        puts = self._parts(head, version, _tables(runs), with_values=True)
        self._send(self._batches(stamp, _in_turns(puts)))

    def seal(self, stamp: Stamp, counts: Counts) -> list[str]:
        """Seal what is whole; describe what is not. Raises: WalGapError: another attempt's notes
        are there.
        """
        if self.is_merged(stamp.version):
            return []
        sealed, counted, others = self.notes_of(stamp, counts)
        if others:
            raise other_attempt(self._space.where, stamp, min(others))
        whole = [
            group
            for group in counts
            if group not in sealed and is_whole(counted.get(group, {}), counts[group])
        ]
        name = noted_as(stamp, SEAL)
        self.note(stamp, [(group, name, 0, sum(counts[group].values())) for group in whole])
        wrong = sorted(counts.keys() - sealed - set(whole))
        return [miscounted(group, counted.get(group, {}), counts[group]) for group in wrong]

    def is_merged(self, version: int) -> bool:
        """Return whether the version is below the horizon, or not above the version of a fill.

        It has been whole for long, and replaced rows of it may be gone. Late writes of it are left
        out. If one were sent, the tombstones would be newer.
        """
        if version > self._space.made.highest.merged:
            self._space.look()
        return version <= self._space.made.highest.merged

    def _list_tables(self, tables: set[str]) -> None:
        space = self._space.made.space
        for table in sorted(tables):
            if (space, table) not in self._listed:
                self._space.write("put_table", space, table)
                self._listed.add((space, table))

    def note(self, stamp: Stamp, notes: Sequence[tuple[int, str, int, int]]) -> None:
        """Write notes of the version: key group, name, chunk, number."""
        self._send(self.requests_to_note(stamp, notes))

    def requests_to_note(self, stamp: Stamp, notes: Sequence[tuple[int, str, int, int]]) -> Iterator[Request]:
        of = self._space.made.space.bytes, bigint(stamp.version)
        head = self._start_of("note", 6)
        encoded = [
            single(head + bound(*of), _int(group), table.encode(), _int(chunk), bigint(changes))
            for group, table, chunk, changes in notes
        ]
        return (self._batch(of, packed, stamp) for packed in _joined(encoded))

    def notes_of(
        self, stamp: Stamp, counts: Counts, *, older: bool = False
    ) -> tuple[set[int], dict[int, dict[str, int]], set[str]]:
        """Read which key groups are sealed, their counts, and the other attempts with notes there.

        ``older``: a seal by a release that named no attempt counts.
        """
        sealed, counted, others = set[int](), dict[int, dict[str, int]](), set[str]()
        noted = self._space.rows("notes", stamp.version, min(counts), max(counts)) if counts else ()
        for group, name, changes in noted:
            if changes is None:  # somebody emptied it
                continue
            attempt, _, table = name.rpartition("/")
            own = attempt == stamp.attempt
            if table == SEAL and (own or (older and not attempt)):
                sealed.add(group)
            elif own:
                of_group = counted.setdefault(group, {})
                of_group[table] = of_group.get(table, 0) + changes
            elif attempt:
                others.add(attempt)
        return sealed, counted, others

    # -- reading -------------------------------------------------------------------------------

    def get(self, at: ReadAt, key: bytes) -> bytes | None:
        """Return the stored value of a key. One request if there is a row, delete markers included."""
        group, rows_of_key = key_group(key, self._space.made.identity.key_groups, at.stride), []
        if len(key) <= KEY_MAX:
            rows_of_key = self._space.rows("get", at.table, group, key, at.version, at.start)
        if not rows_of_key:
            self._space.check_after(at.version)
            return None
        return _stored(rows_of_key[0][0])

    def look_up(self, name: str, at: ReadAt, keys: Sequence[bytes], *bounds: int) -> list[bytes | None]:
        """Return stored values, aligned with ``keys``, by a statement on several keys of a partition."""
        space, values = self._space, dict[bytes, bytes]()
        distinct = [key for key in dict.fromkeys(keys) if len(key) <= KEY_MAX]
        groups = by_group(distinct, space.made.identity.key_groups, KEYS_AT_ONCE, at.stride)
        requests = (
            (
                space.session.bind(
                    name,
                    (space.made.space, at.table, group, [distinct[index] for index in some], *bounds),
                    space.read_at,
                ),
                sum(len(distinct[index]) for index in some),
            )
            for group, some in groups
        )
        for answer in space.session.each(requests):
            values.update((key, _stored(value)) for key, value in answer)
        return [values.get(key) for key in keys]

    def scan(self, at: ReadAt, group: int) -> Iterator[Any]:
        """Yield rows of a key group, page by page; each page is a separate request."""
        last, limit = None, PAGE_FIRST
        while True:
            of = (at.table, group) if last is None else (at.table, group, last)
            name = "first_page" if last is None else "page"
            answer = self._space.rows(name, *of, at.version, at.start, limit)
            page = [(key, _stored(value)) for key, value in answer]
            self._space.check_after(at.version)  # rows missing in the page may have been retired
            if page:
                last = page[-1][0]
                yield batch_of([key for key, _ in page], [value for _, value in page])
            if len(page) < limit:
                return
            limit = _next_limit(page)

    # -- retirement ----------------------------------------------------------------------------

    def retire(self, stamp: Stamp, changes: Iterable[Chunk], stopped: Stopped) -> bool:
        """Delete what these changes have replaced: one tombstone per key, bounded by the version.

        Return False if stopped between two chunks.
        """
        version = bound(bigint(stamp.version))
        below, until = self._start_of("drop_below", 5), self._start_of("drop_until", 5)
        for chunk in changes:
            if stopped():
                return False
            tables = _tables(chunk.runs)
            for head, deleted in ((below, False), (until, True)):
                parts = self._parts(head, version, [_only(table, deleted=deleted) for table in tables])
                self._send(self._batches(stamp, itertools.chain.from_iterable(parts)))
        return True

    def retire_replaced(self, stamp: Stamp, table: str) -> None:
        """Delete everything written before the version to a table that it emptied.

        Whole partitions: a read that a limit ends within a range tombstone over all keys, before the first
        row, fails on the server (5.0.6, "has an open RT bound as its last item").
        """
        self._each_group("drop_rows", stamp.decided_at_us - 1, table)

    def drop_expired(
        self, table: str, group: int, last: bytes | None, most: int, entry: CatalogEntry
    ) -> SweepPage:
        """Delete what had expired when the entry's version was decided, of some keys after ``last``.

        The version is at or below the horizon. Expired rows are deleted as a delete marker there
        is, with all older rows.
        """
        limit = min(most, self._expiry_rows)
        of = (table, group) if last is None else (table, group, last)
        page = self._space.rows("first_newest" if last is None else "newest", *of, entry.version, limit)
        old: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        for key, version, value, written_us in page:
            if is_hidden(_stored(value), entry.decided_at_us):
                old[version, written_us].append(key)
        head = self._start_of("drop_until", 5) + bound(*self._partition(table, group))
        self._send(
            self._batch(self._partition(table, group), packed, Stamp(version, written_us))
            for (version, written_us), keys in old.items()
            for packed in rows(head, pa.array(keys, pa.binary()), bound(bigint(version)))
        )
        if page:
            self._expiry_rows = _next_limit([(key, _stored(value)) for key, _, value, _ in page])
        following = page[-1][0] if len(page) == limit else None
        return SweepPage(len(page), sum(map(len, old.values())), following)

    def drop_lost(self, lost: Sequence[Stamp]) -> None:
        """Delete every row that these attempts have written, by their times, which no other rows have.

        All nodes must answer: rows that only one of them received would come back otherwise.
        """
        lowest, times = min(stamp.version for stamp in lost), {stamp.decided_at_us for stamp in lost}
        head = self._start_of("drop_version", 5)
        for table, group, key, versions in self.each_key(level=ConsistencyLevel.ALL):
            of = self._partition(table, group)
            written = [(v, at_us) for v, (_, at_us) in versions.items() if v >= lowest and at_us in times]
            self._send(
                self._batch(of, single(head, *of, key, bigint(version)), Stamp(version, at_us))
                for version, at_us in written
            )

    def drop_noted(self, stamp: Stamp, notes: Iterable[tuple[int, str, int]]) -> None:
        """Delete these notes of the attempt: key group, name, chunk."""
        of = self._space.made.space.bytes, bigint(stamp.version)
        head = self._start_of("drop_note", 5)
        encoded = [single(head, *of, _int(group), name.encode(), _int(chunk)) for group, name, chunk in notes]
        self._send(self._batch(of, packed, stamp) for packed in _joined(encoded))

    def drop_notes(self, version: int, timestamp_us: int) -> None:
        """Delete the notes of a version below the horizon: it is whole, and its notes are not read
        any more.
        """
        self._space.write("drop_notes", timestamp_us, self._space.made.space, version)

    # -- vacuum and drop -------------------------------------------------------------------------

    def vacuum(self, horizon: int, entry: CatalogEntry | None, *, dry_run: bool) -> int:
        """Delete rows that no reader at or above the horizon can reach; return their number."""
        starts, at_us = (entry.starts, entry.decided_at_us) if entry else ({}, 0)
        no_table = horizon if entry else 0  # no row of a table that the horizon lacks can be read
        dropped = 0
        for table, group, key, versions in self.each_key():
            stored = {version: value for version, (value, _) in versions.items()}
            old = collectable_versions(stored, horizon, starts.get(table, no_table), at_us)
            dropped += len(old)
            if old and not dry_run:
                # One tombstone for all: a reader that is too late finds none of them, and is refused.
                timestamp_us = max(versions[version][1] for version in old)
                packed = single(
                    self._start_of("drop_until", 5),
                    *self._partition(table, group),
                    key,
                    bigint(old[-1]),
                )
                stamp = Stamp(old[-1], timestamp_us)
                self._send(iter([self._batch(self._partition(table, group), packed, stamp)]))
        return dropped

    def tables(self) -> list[str]:
        """Return every table that may have rows."""
        return sorted(table for (table,) in self._space.rows("tables"))

    def each_key(
        self, level: int | None = None
    ) -> Iterator[tuple[str, int, bytes, dict[int, tuple[bytes, int]]]]:
        """Yield every key with all its rows: (table, key group, key, version -> value and timestamp)."""
        space = self._space
        level = space.read_at if level is None else level
        for table in self.tables():
            for group in range(space.made.identity.key_groups):
                rows_of_group = space.session.stream("all_rows", space.made.space, table, group, level=level)
                for key, of_key in itertools.groupby(rows_of_group, lambda row: row[0]):
                    yield table, group, key, {row[1]: (_stored(row[2]), row[3] or 0) for row in of_key}

    # -- requests ------------------------------------------------------------------------------

    def _partition(self, table: str, group: int) -> tuple[bytes, ...]:
        return self._space.made.space.bytes, table.encode(), _int(group)

    def _start_of(self, name: str, values: int) -> bytes:
        return statement(self._space.session.prepared(name).query_id, values)

    def _parts(
        self, head: bytes, tail: bytes, tables: Iterable[_Table], *, with_values: bool = False
    ) -> Iterator[Iterator[Part]]:
        """Yield, per key group of each table, its parts: one statement for each row."""
        space = self._space.made.space.bytes
        for of in tables:
            table = of.name.encode()
            values = of.values if with_values else None
            for group, statements in rows_of_groups(
                head + bound(space, table), of.groups, of.keys, tail, values
            ):
                yield zip(itertools.repeat((space, table, _int(group))), statements, strict=False)

    def _batches(self, stamp: Stamp, parts: Iterable[Part]) -> Iterator[Request]:
        """Yield a request for each part; small ones whose partitions are on the same nodes are sent
        together.
        """
        session, waiting = self._space.session, defaultdict[Any, list[Part]](list)
        for of, packed in parts:
            if packed.weight > TOGETHER_BYTES // 2:
                yield self._batch(of, packed, stamp)
                continue
            together = waiting[session.replicas(routing_key(of))]
            weight = packed.weight + sum(other.weight for _, other in together)
            if weight > TOGETHER_BYTES or len(together) == TOGETHER:
                yield self._batch(together[0][0], joined(packed for _, packed in together), stamp)
                together.clear()
            together.append((of, packed))
        for together in waiting.values():
            yield self._batch(together[0][0], joined(packed for _, packed in together), stamp)

    def _batch(self, of: tuple[bytes, ...], packed: Packed, stamp: Stamp) -> tuple[Any, int]:
        space = self._space
        batch = PackedBatch(space.settings.keyspace, of, packed, stamp.decided_at_us, space.write_at)
        return batch, packed.weight

    def _send(self, requests: Iterator[tuple[Any, int]]) -> None:
        """Send the requests and wait for all acknowledgements."""
        for _ in self._space.session.each(requests):
            pass

    def _each_group(self, name: str, timestamp_us: int, table: str) -> None:
        space = self._space
        self._send(
            (space.session.bind(name, (timestamp_us, space.made.space, table, group), space.write_at), 1)
            for group in range(space.made.identity.key_groups)
        )


def noted_as(stamp: Stamp, table: str) -> str:
    """Return the name of a chunk's or seal's note: with its attempt, so that attempts are counted
    separately.
    """
    return f"{stamp.attempt}/{table}" if stamp.attempt else table


def _stored(value: bytes | None) -> bytes:
    """Return a row's stored value; that of an emptied column is no value of ours, and refused as damaged."""
    return b"" if value is None else value


def _in_turns(of_each: Iterable[Iterator[Part]]) -> Iterator[Part]:
    """Yield one part of each partition alternately: concurrent writes of one partition wait for
    each other.
    """
    for parts in itertools.zip_longest(*of_each):
        yield from (part for part in parts if part is not None)


def _tables(runs: Sequence[Run]) -> list[_Table]:
    """Return the rows of all runs, by table; short runs together."""
    together: list[list[Run]] = []
    rows = PACKED_ROWS
    for run in sorted(runs, key=lambda run: run.table):
        if rows + len(run.keys) > PACKED_ROWS or together[-1][0].table != run.table:
            together.append([])
            rows = 0
        together[-1].append(run)
        rows += len(run.keys)
    return [
        _Table(
            some[0].table,
            np.repeat([run.group for run in some], [len(run.keys) for run in some]),
            pa.concat_arrays([run.keys for run in some]),
            pa.concat_arrays([run.values for run in some]),
        )
        for some in together
    ]


def _only(table: _Table, *, deleted: bool) -> _Table:
    """Return a table's deletes alone, or everything else."""
    mask = pc.is_in(pc.binary_slice(table.values, 0, 1), pa.array(DELETES))
    mask = mask if deleted else pc.invert(mask)
    groups = table.groups[mask.to_numpy(zero_copy_only=False)]
    return _Table(table.name, groups, table.keys.filter(mask), table.values.filter(mask))


def _joined(statements: Sequence[Packed], at_once: int = 1_000) -> Iterator[Packed]:
    for start in range(0, len(statements), at_once):
        yield joined(statements[start : start + at_once])


def _next_limit(page: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the number of rows like these that fit into ``PAGE_BYTES``."""
    mean_bytes = sum(len(key) + len(value) for key, value in page) // len(page) + 1
    return max(1, min(PAGE_ROWS, PAGE_BYTES // mean_bytes))


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
