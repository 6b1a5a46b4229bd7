"""Commands as bytes on the wire (RESP), many rows at a time. Pure.

The client library packs a command argument by argument, 1 to 2 us each. Rows arrive as Arrow
arrays, so a few kernels build their part of an HSET for all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegate.base.extras import np, pa, pc
from tidegate.wal.frame import Run

FIELDS_MAX = 512
"""Rows in one HSET: about half a millisecond of the server, which serves no other client meanwhile."""
BYTES_MAX = 512 * 1024
LIST_ROWS_MAX = 128
"""An HSET with more rows gets a hash table at once, not a list that Redis searches for each row."""
TOO_LONG = b"!" * 65
"""A value that a list may not have (``hash-max-listpack-value`` is 64 by default)."""


class Rows(NamedTuple):
    """Rows of one run as the arguments of an HSET: their number and their bytes."""

    run: Run
    rows: int
    content: memoryview
    first: bytes


def rows_of(runs: list[Run]) -> Iterator[Rows]:
    """Yield every row of the runs, in pieces of at most one HSET."""
    if not runs:
        return
    keys = pa.concat_arrays([run.keys for run in runs])
    values = pa.concat_arrays([run.values for run in runs])
    crlf, dollar, nothing = (pa.scalar(part, pa.binary()) for part in (b"\r\n", b"$", b""))
    packed = pc.binary_join_element_wise(
        dollar, _lengths(keys), crlf, keys, crlf, dollar, _lengths(values), crlf, values, crlf, nothing
    )
    _, offsets_buffer, content = packed.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[packed.offset : packed.offset + len(packed) + 1]
    content, row = memoryview(content), 0
    for run in runs:
        end = row + len(run.keys)
        while row < end:
            by_bytes = int(np.searchsorted(offsets, offsets[row] + BYTES_MAX, side="right")) - 1
            last = min(end, row + FIELDS_MAX, max(by_bytes, row + 1))
            yield Rows(run, last - row, content[offsets[row] : offsets[last]], keys[row].as_py())
            row = last


def _lengths(values: Any) -> Any:
    return pc.cast(pc.cast(pc.binary_length(values), pa.string()), pa.binary())


def hset(key: bytes, rows: Rows) -> bytes:
    """Return one HSET of these rows.

    Redis would put up to 512 short rows into a list and search it for each row: up to 2 us a row,
    instead of 0.3 in a hash table. So in a large HSET the first key gets a value that no list may
    have, and then its own: no client sees a state between the two.
    """
    first = (rows.first, TOO_LONG) if rows.rows > LIST_ROWS_MAX else ()
    head = b"*%d\r\n$4\r\nHSET\r\n$%d\r\n%b\r\n" % (2 + 2 * rows.rows + len(first), len(key), key)
    return b"".join((head, *(b"$%d\r\n%b\r\n" % (len(part), part) for part in first), rows.content))
