"""Rows in the order of their keys, in bounded memory: the answers of a scan have no order."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import operator
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from tidegate.base.decoders import msgpack_decoder
from tidegate.errors import ConfigError
from tidegate.sinks.rules.reads import batch_of

MEMORY_BYTES = 8 * 1024 * 1024
"""The size of the rows of one key group that are held in memory; the rest is in a temporary file."""
ROW_BYTES = 200
"""The size of a row in a dictionary, apart from its key and value."""
BLOCK_ROWS = 128
"""The number of rows of each sorted run that are in memory while the runs are merged."""
BATCH_ROWS = 1_000

Row = tuple[bytes, bytes]
_block_in = msgpack_decoder(list[Row]).decode


class SortedRows:
    """Stored values by key; the first value of a key counts.

    Rows above ``MEMORY_BYTES`` are written into a temporary file without a name, in sorted runs.
    """

    def __init__(self, where: str) -> None:
        self._where, self._bytes = where, 0
        self._rows: dict[bytes, bytes] = {}
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, page: list[bytes]) -> None:
        """Add rows, as key and value alternately. Raises: ConfigError, the temporary folder takes no more."""
        for key, value in zip(page[::2], page[1::2], strict=True):
            if key not in self._rows:
                self._rows[key] = value
                self._bytes += ROW_BYTES + len(key) + len(value)
        if self._bytes > MEMORY_BYTES:
            try:
                self._write_run()
            except OSError as error:
                raise ConfigError(
                    f"{self._where}: the rows of a key group do not fit into the temporary folder: {error};"
                    " set TMPDIR to a folder with room for them"
                ) from error

    def batches(self) -> Iterator[Any]:
        """Yield the rows by key, as record batches."""
        in_memory = iter(sorted(self._rows.items()))
        if self._runs:
            runs = [self._read_run(blocks) for blocks in self._runs]
            in_memory = _first_of_each(heapq.merge(*runs, in_memory, key=operator.itemgetter(0)))
        while rows := list(itertools.islice(in_memory, BATCH_ROWS)):
            yield batch_of([key for key, _ in rows], [value for _, value in rows])

    def close(self) -> None:
        """Remove the rows."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what was not written yet is not needed any more
                self._file.close()
        self._rows, self._runs, self._file, self._bytes = {}, [], None, 0

    def _write_run(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        rows, blocks = iter(sorted(self._rows.items())), []
        while block := list(itertools.islice(rows, BLOCK_ROWS)):
            content = msgspec.msgpack.encode(block)
            blocks.append((self._file.tell(), len(content)))
            self._file.write(content)
        self._file.flush()  # here it fails with the name of the folder
        self._runs.append(blocks)
        self._rows, self._bytes = {}, 0

    def _read_run(self, blocks: list[tuple[int, int]]) -> Iterator[Row]:
        assert self._file is not None
        for place, size in blocks:
            self._file.seek(place)
            yield from _block_in(self._file.read(size))


def _first_of_each(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the first row of each key; rows are sorted by key, and a newer run precedes an older one."""
    last = None
    for row in rows:
        if row[0] != last:
            last = row[0]
            yield row
