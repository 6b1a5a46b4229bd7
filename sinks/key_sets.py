"""Which keys a version changes in a key group, as a digest: versions of one digest change the same keys.

For stores that merge: where a version writes every key that is there, what is there need not be looked at.
The digest is of the keys in order, each with its length, so it does not matter how they were cut into frames,
nor which of these came first. It is only given for keys in strictly ascending order, and as many as were
decided: a store that counts as many of that version has just these.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tidegate.sinks.layout import DELETE
from tidegate.sinks.store import Counts
from tidegate.wal.frame import Chunk, Run

ROWS_LEAST = 128
"""Fewer rows of a key group are not worth it: to merge them is one short call."""
HELD_BYTES_MAX = 32 * 1024 * 1024
"""Of key groups that lie in several frames the keys are held until all have come; more are given up."""
DIGEST_BYTES = 16


class KeySets:
    """The key sets of one work; of ``least`` rows in a key group on."""

    def __init__(self, counts: Counts, least: int = ROWS_LEAST) -> None:
        self._rows = {
            (group, table): rows
            for group, tables in counts.items()
            for table, rows in tables.items()
            if rows >= least
        }
        self._pieces: dict[tuple[int, str], list[_Piece]] = {}
        self._held_bytes = 0
        self._digests: dict[tuple[int, str], bytes] = {}

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Some chunks of the work, in any order."""
        for chunk in chunks if self._rows else ():
            for run in chunk.runs:
                self._add((run.group, run.table), run)

    def _add(self, at: tuple[int, str], run: Run) -> None:
        rows = self._rows.get(at)
        if rows is None:
            return
        if at in self._digests:  # some came twice, or were given up
            self._digests[at] = b""
            return
        piece = _piece_of(run)
        pieces = [*self._pieces.pop(at, ()), piece]
        self._held_bytes += len(piece.keys)
        if sum(each.rows for each in pieces) < rows and self._held_bytes <= HELD_BYTES_MAX:
            self._pieces[at] = pieces
            return
        self._held_bytes -= sum(len(each.keys) for each in pieces)
        self._digests[at] = _digest_of(pieces, rows)

    def digest(self, group: int, table: str) -> bytes:
        """Of a table's keys in a key group; empty: it is not known, or the version deletes some of them."""
        return self._digests.get((group, table), b"")


class _Piece(NamedTuple):
    """The keys of one run; ``lengths`` and ``keys`` are copies, for a frame is not to be held."""

    rows: int
    first: bytes
    last: bytes
    lengths: bytes
    keys: bytes
    deletes: bool


def _piece_of(run: Run) -> _Piece:
    offsets, content = _bytes_of(run.keys)
    first, last = run.keys[0].as_py(), run.keys[-1].as_py()
    keys = bytes(content[offsets[0] : offsets[-1]])
    return _Piece(len(run.keys), first, last, np.diff(offsets).tobytes(), keys, _deletes(run.values))


def _digest_of(pieces: list[_Piece], rows: int) -> bytes:
    """Of so many keys; empty: these are not they, or some are deleted."""
    pieces = sorted(pieces, key=lambda piece: piece.first)
    ascending = all(one.last < other.first for one, other in itertools.pairwise(pieces))
    if sum(piece.rows for piece in pieces) != rows or not ascending or any(piece.deletes for piece in pieces):
        return b""
    both = [
        hashlib.blake2b(b"".join(content), digest_size=DIGEST_BYTES).digest()
        for content in ([piece.lengths for piece in pieces], [piece.keys for piece in pieces])
    ]
    return hashlib.blake2b(b"".join(both), digest_size=DIGEST_BYTES).hexdigest().encode()


def _deletes(values: Any) -> bool:
    offsets, content = _bytes_of(values)
    of_one_byte = offsets[:-1][np.diff(offsets) == len(DELETE)]
    if not len(of_one_byte):
        return False
    return bool(np.any(np.frombuffer(content, np.uint8)[of_one_byte] == DELETE[0]))


def _bytes_of(values: Any) -> tuple[Any, memoryview]:
    """The offsets of an Arrow binary array, and the bytes that they point into."""
    _, offsets, content = values.buffers()
    found = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return found, memoryview(content or b"")
