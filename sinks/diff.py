"""The differences between two versions of a table, from its store alone: streamed, by key group.

There are two ways. If rows do not expire and the table was not emptied in between, only the rows written in
between are read, and looked up at the older version: the cost grows with the changes (I11). Otherwise both
versions are scanned, side by side.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidegate.base.extras import pa, pc, require_arrow
from tidegate.errors import ConfigError
from tidegate.sinks.records import CatalogEntry, ReadAt
from tidegate.sinks.rules.columns import batch_from
from tidegate.sinks.rules.reads import (
    NO_GROUP,
    GroupedRows,
    StoredRows,
    check_kept,
    values_at,
    windows,
)
from tidegate.sinks.store import Store
from tidegate.wal.record import TableAt
from tidegate.wal.value_flags import DELETE, DELETES

DIFFERENCES = ("key", "before", "after")
"""Binary columns, values without flags byte. ``before`` is null if a key is new, ``after`` if it is gone."""

KEYS_AT_ONCE, KEYS_FIRST, GROWTH = 500, 16, 16
"""The most keys that one call looks up at the older version, those of the first call, and the factor between
two calls: nobody knows how large the older values are."""
BYTES_AT_ONCE = 4 * 1024 * 1024
"""About the most bytes of the rows of one call, and of the older values that it finds."""


def stored_differences(
    store: Store, table: str, group: int, before: CatalogEntry | None, after: CatalogEntry | None
) -> Iterator[Any]:
    """Yield the rows of one key group that differ, by key: record batches of ``DIFFERENCES``, none empty.

    As ``differences_of_groups``.
    """
    return differences_of_groups(store, table, (group,), before, after)


def differences_of_groups(
    store: Store,
    table: str,
    groups: Sequence[int],
    before: CatalogEntry | None,
    after: CatalogEntry | None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Any]:
    """Yield the rows of several key groups that differ, by key group and key.

    They are record batches of ``DIFFERENCES``, none empty. ``check`` is called before each step through the
    key groups, and may raise. Either version may be the newer one; None is the empty state before the first
    version. A row that was written again with the same value does not differ. Values are compared as they
    are stored. Both versions must be pinned by leases, and nothing is held open in the store between
    batches. Raises: SnapshotExpiredError: a version was retired meanwhile. VersionRegressedError: one is not
    visible.
    """
    require_arrow("a diff")
    if before is None or (after is not None and before.version <= after.version):
        yield from _forward(store, table, groups, before, after, check)
        return
    for batch in _forward(store, table, groups, after, before, check):
        yield batch.select(["key", "after", "before"]).rename_columns(DIFFERENCES)


def untouched(store: Store, older: CatalogEntry | None, newer: CatalogEntry) -> frozenset[str]:
    """Find the tables that no version above ``older`` and up to ``newer`` changed, by the catalog alone."""
    if older is None:
        return frozenset()
    between = store.catalog(older.version + 1, newer.version)
    if len(between) != newer.version - older.version:
        return frozenset()  # unknown: some were retired
    written = {table for entry in between for table, changes in entry.changes.items() if changes}
    return frozenset(
        table
        for table, table_at in newer.tables.items()
        if table not in written and _follows(older.tables.get(table), table_at)
    )


def _follows(old: TableAt | None, new: TableAt | None) -> bool:
    """Whether the table was only written to in between: not emptied, and without expiry."""
    if old is None or new is None:
        return False
    return old.start == new.start and not old.expires and not new.expires


def _since(table: str, older: CatalogEntry, newer: CatalogEntry) -> ReadAt:
    """Return where the rows are read that the versions after the older one wrote, up to the newer one."""
    read_at = newer.read_at(table)
    return read_at._replace(start=max(read_at.start, older.version + 1))


def _forward(
    store: Store,
    table: str,
    groups: Sequence[int],
    older: CatalogEntry | None,
    newer: CatalogEntry | None,
    check: Callable[[], None],
) -> Iterator[Any]:
    if older is not None and newer is not None and _follows(older.tables.get(table), newer.tables.get(table)):
        yield from _written(store, table, groups, older, newer, check)
        return
    _refuse_other_stride(table, older, newer)
    for step in windows(groups):
        check()
        old, new = (GroupedRows(_live(store, table, step, side)) for side in (older, newer))
        while (group := min(old.group, new.group)) < NO_GROUP:
            yield from _side_by_side(old.take(group), new.take(group))


def _refuse_other_stride(table: str, older: CatalogEntry | None, newer: CatalogEntry | None) -> None:
    """Refuse tables of one name whose keys are in other key groups. Raises: ConfigError."""
    sides = [
        (entry.version, entry.tables[table].apart)
        for entry in (older, newer)
        if entry and table in entry.tables
    ]
    if len({stride for _, stride in sides}) > 1:
        raise ConfigError(
            f"table {table} of version {sides[1][0]} was made again, with another number of key groups than"
            f" that of version {sides[0][0]}: their rows are not compared. Read both versions whole"
        )


def changes_to(
    store: Store,
    table: str,
    groups: Sequence[int],
    now: CatalogEntry,
    target: CatalogEntry,
    source: StoredRows | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield the rows to write above version ``now`` so that readers see the older version ``target`` again.

    They are record batches (key, value) of stored values, by key group and key, each with its key group, none
    empty. Values are as they were stored, with their expiry and sequence; rows that have expired since stay
    absent. ``source`` has the rows of ``target`` if the store has retired it. The versions that are read from
    the store must be pinned. Raises: as ``stored_differences``.
    """
    if source is None and _follows(target.tables.get(table), now.tables.get(table)):
        pages = store.scan_groups_stored(_since(table, target, now), groups)
        lookups = Lookups()
        for waiting in lookups.parts(pages):
            check_kept(store.where, target.version, store.pointer().horizon)
            keys = [key for _, rows in waiting for key in rows["key"].to_pylist()]
            then, first = store.get_stored(target.read_at(table), keys), 0
            lookups.found(then)
            for group, rows in waiting:
                for batch in _back(rows["key"], rows["value"], then.slice(first, rows.num_rows)):
                    yield group, batch
                first += rows.num_rows
        check_kept(store.where, target.version, store.pointer().horizon)
        return
    now_rows = GroupedRows(_stored_live(store, table, groups, now))
    then_rows = GroupedRows(_stored_live(source or store, table, groups, target))
    while (group := min(now_rows.group, then_rows.group)) < NO_GROUP:
        for batch in _side_by_side(now_rows.take(group), then_rows.take(group)):
            for rows in _back(batch["key"], batch["before"], batch["after"]):
                yield group, rows


class Lookups:
    """Cut rows into the parts whose keys one call looks up: by rows and bytes, of both versions."""

    def __init__(self) -> None:
        self._most = KEYS_FIRST

    def parts(self, pages: Iterator[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
        """Yield lists of batches, each with its key group. ``found`` is called after each."""
        waiting, rows, size = list[tuple[int, Any]](), 0, 0
        for group, batch in pages:
            offset = 0
            while offset < batch.num_rows:
                part = batch.slice(offset, max(self._most - rows, 1))
                while part.num_rows > 1 and size + part.nbytes > BYTES_AT_ONCE:
                    part = part.slice(0, part.num_rows // 2)
                if rows and (rows + part.num_rows > self._most or size + part.nbytes > BYTES_AT_ONCE):
                    yield waiting
                    waiting, rows, size = [], 0, 0
                    continue
                waiting.append((group, part))
                rows, size = rows + part.num_rows, size + part.nbytes
                offset += part.num_rows
        if waiting:
            yield waiting

    def found(self, values: Any) -> None:
        """Learn from the older values of one call how many keys the next one may look up."""
        row_bytes = max(values.nbytes / max(len(values), 1), 1)
        self._most = max(1, min(KEYS_AT_ONCE, GROWTH * self._most, int(BYTES_AT_ONCE / row_bytes)))


def _back(keys: Any, now: Any, then: Any) -> Iterator[Any]:
    """Yield the rows that turn ``now`` into ``then`` again; nulls and delete markers are absent rows."""
    value = pc.fill_null(then, DELETE)
    both_absent = pc.and_(_is_absent(now), _is_absent(then))
    needed = pc.and_(_differ(now, then), pc.invert(both_absent))
    yield from _non_empty(batch_from(keys, value).filter(needed))


def _is_absent(stored: Any) -> Any:
    flags = pc.binary_slice(stored, 0, 1)
    return pc.fill_null(pc.is_in(flags, value_set=pa.array(DELETES, pa.binary())), fill_value=True)


def _stored_live(
    store: StoredRows, table: str, groups: Sequence[int], entry: CatalogEntry
) -> Iterator[tuple[int, Any]]:
    """Yield the rows that are live at their version, as they are stored."""
    if table in entry.tables:
        read_at = entry.read_at(table)
        for group, batch in store.scan_groups_stored(read_at, groups):
            live = values_at(store.where, read_at, batch["key"].to_pylist(), batch["value"]).is_valid()
            for rows in _non_empty(batch.filter(live)):
                yield group, rows


# -- the rows written in between ------------------------------------------------------------------


def _written(
    store: Store,
    table: str,
    groups: Sequence[int],
    older: CatalogEntry,
    newer: CatalogEntry,
    check: Callable[[], None],
) -> Iterator[Any]:
    """Yield the newest rows above the older version, with their keys' values at that version.

    None of these rows is dropped, delete markers included, while the horizon is not above the older
    version. The horizon moves before anything is dropped, so it is checked after the rows were read.
    """

    def pages() -> Iterator[tuple[int, Any]]:
        for step in windows(groups):
            check()
            yield from store.scan_groups_stored(_since(table, older, newer), step)

    lookups = Lookups()
    for waiting in lookups.parts(pages()):
        yield from _looked_up(store, table, [rows for _, rows in waiting], older, newer, lookups)
    check_kept(store.where, older.version, store.pointer().horizon)


def _looked_up(
    store: Store,
    table: str,
    pages: list[Any],
    older: CatalogEntry,
    newer: CatalogEntry,
    lookups: Lookups,
) -> Iterator[Any]:
    """Yield those of the newest rows that differ from the older version."""
    check_kept(store.where, older.version, store.pointer().horizon)
    for rows in pa.Table.from_batches(pages).combine_chunks().to_batches():  # one, below 2 GiB
        keys = rows["key"].to_pylist()
        now = values_at(store.where, newer.read_at(table), keys, rows["value"])
        then = store.get_many(older.read_at(table), keys)
        lookups.found(then)
        differences = pa.record_batch([rows["key"], then, now], names=DIFFERENCES)
        yield from _non_empty(differences.filter(_differ(then, now)))


def _differ(left: Any, right: Any) -> Any:
    """Mark the places at which two columns differ; two nulls are equal."""
    one_is_null_only = pc.xor(left.is_null(), right.is_null())
    return pc.or_(one_is_null_only, pc.fill_null(pc.not_equal(left, right), fill_value=False))


# -- both versions, side by side ------------------------------------------------------------------


def _live(
    store: Store, table: str, groups: Sequence[int], entry: CatalogEntry | None
) -> Iterator[tuple[int, Any]]:
    if entry is not None and table in entry.tables:
        yield from store.scan_groups(entry.read_at(table), groups)


class _Side:
    """The rows of one version, by key: a batch at a time, whose head can be taken."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.batch: Any = next(batches, None)

    @property
    def last(self) -> bytes:
        """The last key of the current batch."""
        last: bytes = self.batch["key"][-1].as_py()
        return last

    def take(self, bound: bytes) -> Any:
        """Take the current batch's rows up to the key ``bound``."""
        if self.batch is None:
            return _empty()
        keys = self.batch["key"]
        end = bisect.bisect_right(range(len(keys)), bound, key=lambda index: keys[index].as_py())
        taken, self.batch = self.batch.slice(0, end), self.batch.slice(end)
        if not self.batch.num_rows:
            self.batch = next(self._batches, None)
        return taken


@functools.cache
def _empty() -> Any:
    # Not pa.array: it imports pandas if that is installed, which takes half a second.
    return batch_from(pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()))


def _side_by_side(olds: Iterator[Any], news: Iterator[Any]) -> Iterator[Any]:
    """Merge two streams of rows by key: only a batch of each is in memory."""
    old, new = _Side(olds), _Side(news)
    while sides := [side for side in (old, new) if side.batch is not None]:
        bound = min(side.last for side in sides)
        yield from _non_empty(_joined(old.take(bound), new.take(bound)))


def _joined(old: Any, new: Any) -> Any:
    """Find the rows of two batches that differ, by key; both contain all keys of the same span."""
    indices = pc.index_in(old["key"], value_set=new["key"])
    common = old.filter(indices.is_valid())
    now = new["value"].take(indices.drop_null())
    differs = pc.not_equal(common["value"], now)
    removed = old.filter(indices.is_null())
    come = new.filter(pc.invert(pc.is_in(new["key"], value_set=old["key"])))
    parts = [
        [common["key"].filter(differs), common["value"].filter(differs), now.filter(differs)],
        [removed["key"], removed["value"], pa.nulls(removed.num_rows, pa.binary())],
        [come["key"], pa.nulls(come.num_rows, pa.binary()), come["value"]],
    ]
    columns = [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]
    joined = pa.record_batch(columns, names=DIFFERENCES)
    return joined.take(pc.sort_indices(joined["key"]))


def _non_empty(batch: Any) -> Iterator[Any]:
    if batch.num_rows:
        yield batch
