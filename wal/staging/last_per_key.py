"""The last change of each key, after a sort by place alone.

A **place** is one number: key group, table, and a part of the key's hash
(``spark/calls/columns.py``). A sort by it alone is fast. It makes all changes of a key adjacent, in
any order, mixed at most with those of another key of the same place. The little that remains to be
sorted is sorted here, batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wal.staging.spec import CHANGES

PLACE = "place"
TABLE_BITS, HASH_BITS = 16, 32
HELD_ROWS_MAX = 20_000
HELD_BYTES_MAX = 64 * 1024 * 1024
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


def last_per_key(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the last change of each key, as ``CHANGES``.

    Batches with a column ``place`` are sorted by it. Their columns besides those of ``CHANGES``
    (the call, and its ordering) decide, before the value does, which change of a key is the last.
    In batches without it the changes of a key are already adjacent and in order.
    """
    return winners(_settled(batches))


def winners(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the last of each key's rows, which are adjacent. A batch's last row waits for the next batch."""
    held = None
    for batch in batches:
        rows = batch if held is None else pa.concat_batches([held, batch])
        end = rows.num_rows - 1
        held = rows.slice(end)
        here, following = rows.slice(0, end), rows.slice(1)
        differs = pc.or_(
            pc.or_(pc.not_equal(here["g"], following["g"]), pc.not_equal(here["t"], following["t"])),
            pc.not_equal(here["k"], following["k"]),
        )
        kept = here.filter(differs)
        if kept.num_rows:
            yield kept
    if held is not None:
        yield held


def _settled(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of ``CHANGES`` in which the rows of a key are adjacent and in order."""
    held = None
    for batch in batches:
        if PLACE not in batch.schema.names:
            if held is not None:
                yield _in_order(held).select(CHANGES.names)
                held = None
            yield batch
            continue
        rows = batch if held is None else pa.concat_batches([held, batch])
        places = rows[PLACE].to_numpy()
        start = int(np.searchsorted(places, places[-1]))
        if start:
            yield _in_order(rows.slice(0, start)).select(CHANGES.names)
        held = rows.slice(start)
        if held.num_rows > HELD_ROWS_MAX or held.nbytes > HELD_BYTES_MAX:
            held = pa.concat_batches(list(winners([_in_order(held)])))
    if held is not None:
        yield _in_order(held).select(CHANGES.names)


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
