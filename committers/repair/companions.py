"""Tables that only make sense together: queues are made of due times, and companions are compared (I13).

The copy of a rekey has no queue before its last version, and the queue of an export is of other key groups.
Which tables are companions: ``wal/staging/own_tables.py``. A version has both or neither: ``barrier.py``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.base.decoders import json_decoder
from tidegate.base.names import LOCAL
from tidegate.committers.repair.log_state import LogState
from tidegate.keys.groups import key_group_of_each
from tidegate.sinks.records import CatalogEntry, Finding, ReadAt
from tidegate.sinks.rules.reads import StoredRows, live_rows, windows
from tidegate.sinks.store import Store
from tidegate.values.decode import values_of
from tidegate.wal.record import UNREADABLE, TableAt, TableSchema
from tidegate.wal.staging.due_queue import (
    TIMES,
    KeysByTime,
    Parts,
    decoded,
    place_key,
    queue_of,
    queued_by_group,
)
from tidegate.wal.staging.own_tables import (
    INSTANCES_SCHEMA,
    ITEM_KEY,
    QUEUE_SCHEMA,
    InstanceRow,
    companions,
    queues_of,
)

PARTS_AT_ONCE = 16
NAMED_MAX = 3
ITEMS = TableSchema(ITEM_KEY, ())
QUEUED_AGAIN = (
    "stop the query, then `tidegate export FOLDER --table {table}` and `tidegate import FOLDER`: the import"
    " makes the queue again"
)
LIST_AGAIN = "`tidegate restore --to VERSION` of a version from before it makes the whole list again"


def live_dues(
    source: StoredRows, entry: CatalogEntry, table: str, key_groups: int
) -> Iterator[tuple[int, Any]]:
    """Yield the due times of a version by key group: record batches of key and value, without flags."""
    for groups in windows(range(key_groups)):
        read_at = entry.read_at(table)
        for group, batch in source.scan_groups_stored(read_at, groups):
            yield group, live_rows(batch, read_at, source.where)


def queue_rows(
    source: StoredRows, entry: CatalogEntry, dues: str, key_groups: int, value_bytes_max: int
) -> Iterator[Any]:
    """Yield the rows of the queue of these due times at a version: record batches of key and stored value.

    Raises: CorruptError: a due time cannot be read.
    """
    rows, where = live_dues(source, entry, dues, key_groups), f"{source.where}: table {dues}"
    return queue_of(queued_by_group(rows, where), value_bytes_max)


def queue_of_rows(batches: Iterable[Any], dues: str, at_us: int, value_bytes_max: int) -> Iterator[Any]:
    """Yield the rows of the queue of imported due times, as ``queue_rows``.

    ``batches`` are ordered by key group: the first column is the key group, the last two are key and stored
    value. ``at_us``: the time at which they live. Raises: as ``queue_rows``.
    """
    where, read_at = "the export", ReadAt(dues, 0, at_us=at_us)
    rows = ((group, live_rows(batch, read_at, where)) for group, batch in _by_group(batches))
    return queue_of(queued_by_group(rows, f"{where}: table {dues}"), value_bytes_max)


def _by_group(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        groups = batch.column(0).to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        for first, end in itertools.pairwise(bounds):
            part = batch.slice(first, end - first).columns[-2:]
            if end > first:
                yield int(groups[first]), pa.record_batch(part, ["key", "value"])


def add_queues(
    rows: LogState, source: StoredRows, entry: CatalogEntry, key_groups: int, value_bytes_max: int
) -> CatalogEntry:
    """Add the queues that a version lacks to ``rows``; return its entry with them.

    Raises: CorruptError: a due time cannot be read.
    """
    made = {queue: dues for queue, dues in queues_of(entry.tables).items() if queue not in entry.tables}
    for queue, dues in made.items():
        of_queue = queue_rows(source, entry, dues, key_groups, value_bytes_max)
        rows.put(queue, (_placed(batch, key_groups) for batch in of_queue))
        rows.schemas[QUEUE_SCHEMA.schema_id] = QUEUE_SCHEMA
    queues = dict.fromkeys(made, TableAt(QUEUE_SCHEMA.schema_id))
    return msgspec.structs.replace(entry, tables={**entry.tables, **queues})


def _placed(batch: Any, key_groups: int) -> Any:
    groups = np.array(key_group_of_each(batch["key"].to_pylist(), key_groups), np.int32)
    return pa.record_batch([pa.array(groups), batch["key"], batch["value"]], ["key_group", "key", "value"])


# -- the comparison --------------------------------------------------------------------------------


def parted_rows(store: Store, entry: CatalogEntry, key_groups: int) -> Iterator[Finding]:
    """Find rows of a readable version that lack rows of a companion.

    They are keys with a due time that are not in the queue, so that they never time out, and lists of local
    states without some of their items. Raises: CorruptError: a row cannot be read. SnapshotExpiredError.
    """
    for queue, dues in queues_of(entry.tables).items():
        yield from _Queue(store, entry, queue, dues, key_groups).findings()
    yield from _local_states(store, entry, key_groups)


class _Queue:
    """The queue of one table of due times."""

    def __init__(self, store: Store, entry: CatalogEntry, queue: str, dues: str, key_groups: int) -> None:
        self._store, self._entry, self._queue, self._dues = store, entry, queue, dues
        self._groups = range(0, key_groups, entry.tables[dues].apart)
        self._key_groups = key_groups

    def findings(self) -> Iterator[Finding]:
        rows = live_dues(self._store, self._entry, self._dues, self._key_groups)
        waiting = queued_by_group(rows, f"{self._store.where}: table {self._dues}")
        following = next(waiting, None)
        for group in self._groups:
            by_time: KeysByTime = {}
            if following is not None and following[0] == group:
                by_time, following = following[1], next(waiting, None)
            if lacking := [*self._lacking(group, by_time)]:
                where = f"{self._store.part_of(group)}, version {self._entry.version}, key group {group}"
                table = self._dues.partition(".")[2]
                yield Finding(
                    f"{where}, table {self._queue}",
                    f"the keys of {self._dues} at their times",
                    f"{len(lacking)} rows or keys are missing, such as {lacking[0]}: keys would not time out;"
                    f" {QUEUED_AGAIN.format(table=table)}",
                )

    def _lacking(self, group: int, by_time: KeysByTime) -> Iterator[str]:
        where = f"{self._store.where}: table {self._queue}"
        (content,) = self._stored([place_key(group, *TIMES)])
        listed = [] if content is None else decoded(content, list[Parts], where)
        for parts in listed:
            keys = set(by_time.pop(parts.due_us, ()))
            places = [(group, parts.due_us, part) for part in range(parts.first, parts.end)]
            for index in range(0, len(places), PARTS_AT_ONCE):
                some = places[index : index + PARTS_AT_ONCE]
                for place, content in zip(some, self._stored([place_key(*row) for row in some]), strict=True):
                    if content is None:
                        yield f"row {place}"
                    else:
                        keys -= set(decoded(content, list[bytes], where))
            yield from map(repr, sorted(keys))
        for left in by_time.values():
            yield from map(repr, left)

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._queue not in self._entry.tables:
            return [None] * len(keys)
        read_at = self._entry.read_at(self._queue)
        stored: list[bytes | None] = self._store.get_many(read_at, keys).to_pylist()
        return stored


def _local_states(store: Store, entry: CatalogEntry, key_groups: int) -> Iterator[Finding]:
    """Find local states whose lists do not have the items that their instances name."""
    lists: dict[str, dict[int, tuple[int, int]]] = {}
    for (name, instance), content in _live(store, entry, LOCAL, INSTANCES_SCHEMA, key_groups):
        try:
            row = json_decoder(InstanceRow).decode(content)
        except UNREADABLE:
            where = f"{store.where}, version {entry.version}, table {LOCAL}, key {(name, instance)!r}"
            yield Finding(where, "items and parallelism", f"a row that cannot be read: {LIST_AGAIN}")
            continue
        lists.setdefault(f"{LOCAL}.{name}", {})[instance] = row.items, row.parallelism
    for table in sorted(lists.keys() | companions({LOCAL}, entry.tables) - {LOCAL}):
        named, items, strays = lists.get(table, {}), Counter[int](), 0
        for (instance, item), _ in _live(store, entry, table, ITEMS, key_groups):
            of_list = item < named.get(instance, (0, 0))[0]
            items[instance] += of_list
            strays += not of_list
        _, parallelism = named.get(0, (0, 1))
        wrong = [f"{strays} items of no list"] * bool(strays)
        for instance in sorted({*named, *range(parallelism)}):
            count, of = named.get(instance, (0, 0))
            if of != parallelism:
                wrong.append(f"no row of instance {instance} of {parallelism}" if not of else f"one of {of}")
            elif items[instance] < count:
                wrong.append(f"{items[instance]} of {count} items of instance {instance}")
        if wrong:
            where = f"{store.where}, version {entry.version}, table {table}"
            actual = f"{'; '.join(wrong[:NAMED_MAX])}: the next batch of this state fails; {LIST_AGAIN}"
            yield Finding(where, f"the items whose number is in {LOCAL}", actual)


def _live(
    store: Store, entry: CatalogEntry, table: str, schema: TableSchema, key_groups: int
) -> Iterator[tuple[tuple[Any, Any], bytes]]:
    """Yield the live rows of a table whose key has two columns; none if there is no such table."""
    decode = values_of(schema).decode_key
    if table not in entry.tables:
        return
    for groups in windows(range(key_groups)):
        for _, batch in store.scan_groups(entry.read_at(table), groups):
            yield from zip(map(decode, batch["key"].to_pylist()), batch["value"].to_pylist(), strict=True)
