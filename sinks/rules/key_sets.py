"""Which keys a version changes in a key group, as a digest: versions of one digest change the same keys.

For stores that merge: where a version writes every key that is there, what is there need not be looked at.
The digest is of the keys in order, each with its length, however they lie in frames, and whichever of these
comes first. It is only given for as many keys as were decided, of which none came twice: a store that counts
as many of that version has just these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.sinks.records import Counts
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.value_flags import DELETE

ROWS_LEAST = 24
"""Fewer rows of a key group are not worth it: their digest costs as much as to merge them."""
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
        if len(run.keys) == rows:
            self._digests[at] = b"" if _deletes(run.values) else _digest_of(run.keys)
            return
        keys = pa.concat_arrays([run.keys])  # a copy: the frame is not to be held
        pieces = [*self._pieces.pop(at, ()), _Piece(keys, _deletes(run.values))]
        self._held_bytes += keys.nbytes
        if sum(len(piece.keys) for piece in pieces) < rows and self._held_bytes <= HELD_BYTES_MAX:
            self._pieces[at] = pieces
            return
        self._held_bytes -= sum(piece.keys.nbytes for piece in pieces)
        self._digests[at] = _digest_of_all(pieces, rows)

    def digest(self, group: int, table: str) -> bytes:
        """Of a table's keys in a key group; empty: it is not known, or the version deletes some of them."""
        return self._digests.get((group, table), b"")


class _Piece(NamedTuple):
    """The keys of one run, and whether any of them is deleted."""

    keys: Any
    deletes: bool


def _digest_of_all(pieces: list[_Piece], rows: int) -> bytes:
    """Of so many keys; empty: these are not they, or some came twice or are deleted."""
    keys = pa.concat_arrays([piece.keys for piece in pieces])
    keys = keys.take(pc.sort_indices(keys))
    ascending = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()
    if len(keys) != rows or ascending is False or any(piece.deletes for piece in pieces):
        return b""
    return _digest_of(keys)


def _digest_of(keys: Any) -> bytes:
    """Of all lengths, then of all bytes."""
    offsets, content = _bytes_of(keys)
    digest = hashlib.blake2b(np.diff(offsets), digest_size=DIGEST_BYTES)
    digest.update(content[offsets[0] : offsets[-1]])
    return digest.hexdigest().encode()


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
