"""The last change of each key, after a sort by place alone.

A **place** is one number: key group, table, and a part of the key's hash
(``spark/calls/columns.py``). A sort by it alone is fast. It makes all changes of a key adjacent, in
any order, mixed at most with those of another key of the same place. The little that remains to be
sorted is sorted here, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wal.staging.spec import CHANGES

PLACE = "place"
TABLE_BITS, HASH_BITS = 16, 32
WAITING_ROWS_MAX = 20_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""The most rows of one place, and their bytes, that wait for the rest of it. Above that the older
changes of each key are dropped at once (I11).
"""


def place_of(group: int, table: int, part: int = 0) -> int:
    """Return the place of a key whose hash ends in these 32 bits."""
    return (group << TABLE_BITS | table) << HASH_BITS | part


def groups_and_tables(places: Any) -> tuple[Any, Any]:
    """Return the key groups and tables of places (int64), as int32. A table of -1 is preserved."""
    most = (1 << TABLE_BITS) - 1
    groups = (places >> (TABLE_BITS + HASH_BITS)).astype(np.int32)
    tables = (places >> HASH_BITS & most).astype(np.int32)
    return groups, np.where(tables == most, -1, tables)


Superseded = Callable[[Any, Any], None]
"""Called with changes that do not count, and with the next change of the same key of each."""


def last_per_key(batches: Iterable[Any], superseded: Superseded | None = None) -> Iterator[Any]:
    """Yield the last change of each key, as ``CHANGES``.

    Batches with a column ``place`` are sorted by it. Their columns besides those of ``CHANGES``
    (the call, and its ordering) decide, before the value does, which change of a key is the last.
    In batches without it the changes of a key are already adjacent and in order.
    """
    return last_of_each_key(_sorted_within_keys(batches, superseded), superseded)


def last_of_each_key(batches: Iterable[Any], superseded: Superseded | None = None) -> Iterator[Any]:
    """Yield the last of each key's rows, which are adjacent. A batch's last row waits for the next batch."""
    waiting = None
    for batch in batches:
        rows = batch if waiting is None else pa.concat_batches([waiting, batch])
        end = rows.num_rows - 1
        waiting = rows.slice(end)
        current, following = rows.slice(0, end), rows.slice(1)
        differs = pc.or_(
            pc.or_(pc.not_equal(current["g"], following["g"]), pc.not_equal(current["t"], following["t"])),
            pc.not_equal(current["k"], following["k"]),
        )
        last_rows = current.filter(differs)
        if superseded is not None and last_rows.num_rows < current.num_rows:
            same = pc.invert(differs)
            superseded(current.filter(same), following.filter(same))
        if last_rows.num_rows:
            yield last_rows
    if waiting is not None:
        yield waiting


def _sorted_within_keys(batches: Iterable[Any], superseded: Superseded | None) -> Iterator[Any]:
    """Yield batches of ``CHANGES`` in which the rows of a key are adjacent and in order."""
    waiting = None
    for batch in batches:
        if PLACE not in batch.schema.names:
            if waiting is not None:
                yield _in_order(waiting).select(CHANGES.names)
                waiting = None
            yield batch
            continue
        rows = batch if waiting is None else pa.concat_batches([waiting, batch])
        places = rows[PLACE].to_numpy()
        start = int(np.searchsorted(places, places[-1]))
        if start:
            yield _in_order(rows.slice(0, start)).select(CHANGES.names)
        waiting = rows.slice(start)
        if waiting.num_rows > WAITING_ROWS_MAX or waiting.nbytes > WAITING_BYTES_MAX:
            waiting = pa.concat_batches(list(last_of_each_key([_in_order(waiting)], superseded)))
    if waiting is not None:
        yield _in_order(waiting).select(CHANGES.names)


def _in_order(rows: Any) -> Any:
    """Sort the rows within each place."""
    places = rows[PLACE].to_numpy()
    same = places[1:] == places[:-1]
    alike = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if not len(alike):
        return rows
    by = [name for name in rows.schema.names if name not in (*CHANGES.names, PLACE)]
    among = rows.select([PLACE, "k", *by, "v"]).take(pa.array(alike))
    order = np.arange(rows.num_rows)
    order[alike] = alike[sorted_by_all(among).to_numpy()]
    return rows.take(pa.array(order))


def sorted_by_all(rows: Any) -> Any:
    """Return the order of a batch or table by all of its columns, as Spark sorts: nulls first, NaN last.

    Arrow, too, sorts NaN after all numbers, but nulls last.
    """
    keys: dict[str, Any] = {}
    for name in rows.schema.names:
        if rows[name].null_count:
            keys[f"has {name}"] = pc.is_valid(rows[name])
        keys[name] = rows[name]
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
