"""Which keys a version changes in a key group, as a digest: versions of one digest change the same keys.

For stores that merge: where a version writes every key that is there, what is there need not be looked at.
The digest is of the keys in order, each with its length, so it does not matter how they were cut into frames.
It is only given for keys that came in strictly ascending order, and as many as were decided: a store that
counts as many of that version has just these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from tidegate.sinks.layout import DELETE
from tidegate.sinks.store import Counts
from tidegate.wal.frame import Chunk, Run

ROWS_LEAST = 128
"""Fewer rows of a key group are not worth it: to merge them is one short call."""
DIGEST_BYTES = 16


class KeySets:
    """The key sets of one work, whose chunks are given in order; of ``least`` rows in a key group on."""

    def __init__(self, counts: Counts, least: int = ROWS_LEAST) -> None:
        self._of = {
            (group, table): _KeySet()
            for group, tables in counts.items()
            for table, rows in tables.items()
            if rows >= least
        }

    def add(self, chunks: Iterable[Chunk]) -> None:
        """The next chunks."""
        for chunk in chunks if self._of else ():
            for run in chunk.runs:
                of_run = self._of.get((run.group, run.table))
                if of_run is not None:
                    of_run.add(run)

    def digest(self, group: int, table: str, rows: int) -> bytes:
        """Of so many keys; empty: it is not known, or the version deletes some of them."""
        of_run = self._of.get((group, table))
        return b"" if of_run is None or of_run.rows != rows or not of_run.known else of_run.digest()


class _KeySet:
    """Keys in ascending order, so far."""

    def __init__(self) -> None:
        self.known = True
        self.rows = 0
        self._last = b""
        self._lengths = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._keys = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def add(self, run: Run) -> None:
        first, last = run.keys[0].as_py(), run.keys[-1].as_py()
        self.known = self.known and (not self.rows or first > self._last) and not _deletes(run.values)
        if self.known:
            offsets, content = _bytes_of(run.keys)
            self._lengths.update(np.diff(offsets))
            self._keys.update(content[offsets[0] : offsets[-1]])
        self.rows, self._last = self.rows + len(run.keys), last

    def digest(self) -> bytes:
        both = self._lengths.digest() + self._keys.digest()
        return hashlib.blake2b(both, digest_size=DIGEST_BYTES).hexdigest().encode()


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
