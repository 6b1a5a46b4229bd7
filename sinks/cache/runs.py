"""The format of a cache of state: runs of sorted rows in immutable pieces.

A row is a key's place, the key and its stored value with flags. A key without a value is cached as
a delete marker, which is an answer as well. The **place** is a sort position: the key group, then
the key's hash. A **run** contains a key at most once, sorted by place and cut into **pieces**,
which ``pieces.py`` writes and opens. The runs of a table are ordered: the newest run with a key
determines its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.sinks.cache.lookup import Hashes, Places, find, hashes_of

ROWS = pa.schema(
    [
        pa.field("p", pa.uint64(), nullable=False),
        pa.field("k", pa.large_binary(), nullable=False),
        pa.field("v", pa.large_binary(), nullable=False),
    ]
)
HASH_BITS = 49
"""There are 32,768 key groups at most: the rest of a place's 64 bits is the hash."""


class PieceRef(msgspec.Struct, frozen=True, array_like=True):
    """One piece: its rows have places from ``first`` to ``last``."""

    name: str
    first: int
    last: int
    bytes: int
    checksum: str


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A run, as far as it holds for the key groups in [first_group, end_group).

    Its pieces may have rows of other groups at the ends, which do not count.
    """

    first_group: int
    end_group: int
    pieces: tuple[PieceRef, ...]

    @property
    def bytes(self) -> int:
        """The approximate size of the rows that count, by the part of each piece's places."""
        return math.ceil(sum(piece.bytes * self._part(piece) for piece in self.pieces))

    @property
    def low(self) -> int:
        return place_of(self.first_group)

    @property
    def end(self) -> int:
        return place_of(self.end_group)

    def within(self, groups: range) -> Run:
        """Restrict the run to these groups; it may have no piece left."""
        first, end = max(self.first_group, groups.start), min(self.end_group, groups.stop)
        low, until = place_of(first), place_of(end)
        pieces = tuple(piece for piece in self.pieces if piece.first < until and piece.last >= low)
        return Run(first, end, pieces if first < end else ())

    def _part(self, piece: PieceRef) -> float:
        counted = min(piece.last + 1, self.end) - max(piece.first, self.low)
        return counted / (piece.last + 1 - piece.first)


# -- rows ---------------------------------------------------------------------------------------------


def place_of(group: int) -> int:
    """Return the first place of a key group."""
    return group << HASH_BITS


def group_at(place: int) -> int:
    """Return the key group of a place."""
    return place >> HASH_BITS


def places_of(groups: npt.NDArray[np.int32], keys: Any) -> Hashes:
    """Return the place of each key."""
    places: Hashes = hashes_of(keys) >> np.uint64(64 - HASH_BITS)
    places |= groups.astype(np.uint64) << np.uint64(HASH_BITS)
    return places


def rows_of(places: Hashes, keys: Any, values: Any) -> Any:
    """Build a record batch of ``ROWS``; neither keys nor values may be null."""
    columns = [pa.array(places), keys.cast(pa.large_binary()), values.cast(pa.large_binary())]
    return pa.record_batch(columns, schema=ROWS)


def places_in(rows: Any) -> Hashes:
    """Return the column of places, without a copy."""
    places: Hashes = rows["p"].to_numpy()
    return places


# -- lookup -------------------------------------------------------------------------------------------

OpenPiece = Callable[[PieceRef], Any]


class Answers:
    """Keys of one batch, sorted by place, and the answers found so far."""

    def __init__(self, places: Hashes, keys: Any) -> None:
        self._order = np.argsort(places)
        self.places = places[self._order]
        self._keys = keys
        self._at = np.full(len(places), -1, np.int64)
        self._found: list[Any] = []
        self._count = 0

    @property
    def open(self) -> Places:
        """The rows without an answer."""
        return np.flatnonzero(self._at < 0)

    def look_in(self, run: Run, open_piece: OpenPiece) -> None:
        """Answer what the run can. Errors of ``open_piece`` pass through; earlier answers remain."""
        rows = self.open
        places = self.places[rows]
        for piece in run.pieces:
            first, last = max(piece.first, run.low), min(piece.last, run.end - 1)
            start = np.searchsorted(places, np.uint64(first))
            end = np.searchsorted(places, np.uint64(last), side="right")
            if start < end:
                self._look_at(rows[start:end], open_piece(piece))

    def look_in_rows(self, rows: Any) -> None:
        """Answer what these rows can: a record batch of ``ROWS``, sorted by place."""
        self._look_at(self.open, rows)

    def _look_at(self, rows: Places, piece: Any) -> None:
        places = find(places_in(piece), piece["k"], self.places[rows], self._keys, self._order[rows])
        hit = places >= 0
        if hit.any():
            self._found.append(piece["v"].take(pa.array(places[hit])))
            self._at[rows[hit]] = np.arange(self._count, self._count + len(self._found[-1]))
            self._count += len(self._found[-1])

    def values(self) -> Any:
        """Return stored values in the given order of the keys; null where none was found."""
        indices = np.empty_like(self._at)
        indices[self._order] = self._at
        answers = pa.concat_arrays(self._found) if self._found else pa.nulls(0, pa.large_binary())
        return answers.take(pa.array(indices, mask=indices < 0)).cast(pa.binary())
