"""Compaction of the runs of a cache of state: merge many into one, evict down to the room."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.sinks.cache.lookup import Places
from tidegate.sinks.cache.runs import ROWS, OpenPiece, Run, places_in
from tidegate.sinks.rules.layout import payloads
from tidegate.wal.value_flags import DELETE, WITH_EXPIRY

_WITH_EXPIRY = pa.array(WITH_EXPIRY, pa.large_binary())
NEARLY = 0.8
"""Runs of versions of equal size are never exactly equal."""


def newest(batches: Sequence[Any]) -> Any:
    """Merge these batches, the oldest first, into one sorted by place with the last row of each key."""
    rows = pa.concat_batches(batches)
    rows = rows.take(pa.array(np.argsort(places_in(rows), kind="stable")))
    alike = _alike(rows)
    if not alike.size:
        return rows
    same = pc.equal(rows["k"].take(pa.array(alike)), rows["k"].take(pa.array(alike + 1)))
    rows = _without(rows, alike[same.to_numpy(zero_copy_only=False)])
    # Different keys of one place remain, among which rows of one key need not be adjacent.
    alike = _alike(rows)
    last: dict[bytes, int] = {}
    older = []
    for place in sorted({*alike.tolist(), *(alike + 1).tolist()}):
        key = rows["k"][place].as_py()
        if key in last:
            older.append(last[key])
        last[key] = place
    return _without(rows, np.array(older, np.int64))


def _alike(rows: Any) -> Places:
    """Return the indices of rows whose place equals the next row's."""
    places = places_in(rows)
    return np.flatnonzero(places[1:] == places[:-1])


def _without(rows: Any, numbers: Places) -> Any:
    if not numbers.size:
        return rows
    mask = np.ones(len(rows), bool)
    mask[numbers] = False
    return rows.filter(pa.array(mask))


def without_expired(rows: Any, at_us: int) -> Any:
    """Replace the values that had expired by ``at_us`` by delete markers, which take a byte each.

    ``at_us`` is the time of a version's decision: no later version shows them, since the times of
    decisions only increase.
    """
    expiring = pc.is_in(pc.binary_slice(rows["v"], 0, 1), value_set=_WITH_EXPIRY)
    if not pc.any(expiring).as_py():
        return rows
    expired = pc.and_(expiring, pc.is_null(payloads(rows["v"].cast(pa.binary()), at_us)))
    values = pc.if_else(expired, pa.scalar(DELETE, pa.large_binary()), rows["v"])
    return rows.set_column(rows.schema.get_field_index("v"), ROWS.field("v"), values)


def merge(runs: Sequence[Run], open_piece: OpenPiece, piece_bytes: int) -> Iterator[Any]:
    """Merge the runs, the oldest first, into the pieces of one, of about ``piece_bytes`` each.

    Memory holds one piece and its inputs. Rows for which their run does not hold are left out.
    """
    slices = max(1, math.ceil(sum(run.bytes for run in runs) / piece_bytes))
    low, end = min(run.low for run in runs), max(run.end for run in runs)
    bounds = [low + (end - low) * number // slices for number in range(slices + 1)]
    for first, until in itertools.pairwise(bounds):
        parts = [part for run in runs for part in _slice(run, first, until, open_piece)]
        if parts and len(rows := newest(parts)):
            yield rows


def cut(rows: Any, piece_bytes: int) -> Iterator[Any]:
    """Cut rows into pieces of about ``piece_bytes``."""
    pieces = max(1, math.ceil(rows.nbytes / piece_bytes))
    bounds = [len(rows) * number // pieces for number in range(pieces + 1)]
    for start, end in itertools.pairwise(bounds):
        if start < end:
            yield rows.slice(start, end - start)


def _slice(run: Run, first: int, until: int, open_piece: OpenPiece) -> Iterator[Any]:
    """Yield the run's rows with places in [first, until), as far as it holds for them."""
    first, last = max(first, run.low), min(until, run.end) - 1
    if first > last:
        return  # it holds for none of them, even if its pieces have rows of other key groups
    for piece in run.pieces:
        if piece.first <= last and piece.last >= first:
            rows = open_piece(piece)
            places = places_in(rows)
            start = int(np.searchsorted(places, np.uint64(first)))
            end = int(np.searchsorted(places, np.uint64(last), side="right"))
            yield rows.slice(start, end - start)


def merge_from(sizes: Sequence[int], runs_max: int) -> int:
    """Return the first run, the oldest first, from which all are to be merged; ``len(sizes)``: none.

    A run is merged when the newer ones have grown to about its size. So sizes about double from run
    to run, and the cost of a version follows its changes (I11).
    """
    first, newer = len(sizes) - 1, sum(sizes[-1:])
    while first > 0 and newer >= NEARLY * sizes[first - 1]:
        first -= 1
        newer += sizes[first]
    first = first if first < len(sizes) - 1 else len(sizes)
    return 0 if min(first + 1, len(sizes)) > runs_max else first


def evict(runs: Sequence[Run], room: int) -> list[Run]:
    """Remove the oldest pieces of the runs, the oldest first, until they fit into ``room``.

    Only from the oldest run: without a newer run, an older value of its keys would be taken for the
    last.
    """
    left = list(runs)
    while left and sum(run.bytes for run in left) > room:
        pieces = left[0].pieces[1:]
        left[:1] = [msgspec.structs.replace(left[0], pieces=pieces)] if pieces else []
    return left
