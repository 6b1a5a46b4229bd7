"""The keys that a version changes in a key group, as a digest: versions of one digest change the same keys.

It is for stores that merge: if a version writes every existing key, the existing rows need not be read.
The digest is of the keys in order, each with its length. It does not depend on the frames that contain them,
nor on the order of these. It exists only for exactly the number of keys that was decided, without a repeated
one: a store that counts this number of rows of that version has exactly these keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidegate.base.extras import np, pa, pc
from tidegate.sinks.records import Counts
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.value_flags import DELETE

ROWS_LEAST = 24
"""The least rows of a key group for a digest: for fewer it costs as much as their merge."""
HELD_BYTES_MAX = 32 * 1024 * 1024
"""The most keys in memory, for key groups in several frames; beyond it a key group gets no digest."""
DIGEST_BYTES = 16


class KeySets:
    """The key sets of one work, for key groups with ``least`` rows or more."""

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
        """Add chunks of the work, in any order."""
        for chunk in chunks if self._rows else ():
            for run in chunk.runs:
                self._add((run.group, run.table), run)

    def _add(self, at: tuple[int, str], run: Run) -> None:
        rows = self._rows.get(at)
        if rows is None:
            return
        if at in self._digests:  # some are repeated, or were given up
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
        """Return the digest of a table's keys in a key group; empty: unknown, or some are deleted."""
        return self._digests.get((group, table), b"")


class _Piece(NamedTuple):
    """The keys of one run, and whether any of them is deleted."""

    keys: Any
    deletes: bool


def _digest_of_all(pieces: list[_Piece], rows: int) -> bytes:
    """Compute the digest of ``rows`` keys; empty: their number differs, or some are repeated or deleted."""
    keys = pa.concat_arrays([piece.keys for piece in pieces])
    keys = keys.take(pc.sort_indices(keys))
    ascending = pc.all(pc.less(keys.slice(0, len(keys) - 1), keys.slice(1))).as_py()
    if len(keys) != rows or ascending is False or any(piece.deletes for piece in pieces):
        return b""
    return _digest_of(keys)


def _digest_of(keys: Any) -> bytes:
    """Compute the digest of all lengths, then of all bytes."""
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
    """Return the offsets of an Arrow binary array, and the bytes that they point into."""
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return ends, memoryview(content or b"")
