"""Rows of any order, as a stream by key group, table and key: they are dealt into temporary files.

Rows are divided by key group into buckets, in temporary files, and sorted bucket by bucket. So one bucket is
in memory, whatever the number of rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError
from tidegate.keys.groups import key_group_of_each
from tidegate.wal.staging.spec import CHANGES

BUCKET_BYTES = 64 * 1024 * 1024
"""The approximate size of a bucket, in bytes of its source."""
BUCKETS_MAX = 500
"""The most files that are open at once."""
AT_ONCE_BYTES = 16 * 1024 * 1024
"""The bytes of rows that are gathered before they are dealt: small batches make large files."""


class TableRows(NamedTuple):
    """Some rows of the table with this index. ``groups`` None: their key groups are computed from the keys.

    ``keys`` and ``values`` are Arrow arrays; values are as they are stored.
    """

    table: int
    keys: Any
    values: Any
    groups: Any = None


def buckets_for(size: int, key_groups: int, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Return the number of buckets for rows of this many bytes."""
    return max(1, min(-(-size // bucket_bytes), key_groups, BUCKETS_MAX))


def deal(
    rows: Iterable[TableRows], strides: Sequence[int], key_groups: int, folder: Path, buckets: int
) -> list[Path]:
    """Write every row into the bucket of its key group, as ``CHANGES``; return the buckets' files in order.

    ``strides`` are those of the tables, by index. Raises: ConfigError: ``folder`` has no room for all rows.
    """
    places = [folder / str(index) for index in range(buckets)]
    try:
        with contextlib.ExitStack() as open_files:
            writers = [open_files.enter_context(pa.ipc.new_stream(str(place), CHANGES)) for place in places]
            for batch in _gathered(rows, strides, key_groups):
                of_each = batch["g"].to_numpy().astype(np.int64) * buckets // key_groups
                for bucket in np.unique(of_each).tolist():
                    writers[bucket].write_batch(batch.filter(pa.array(of_each == bucket)))
    except OSError as error:  # reading has errors of its own
        why = os.strerror(error.errno) if error.errno else error
        raise ConfigError(
            f"the temporary folder takes no copy of the rows of the export: {folder.parent}: {why}; free some"
            " room there, or set TMPDIR to another folder, and run the command again: nothing was decided"
        ) from error
    return places


def _gathered(rows: Iterable[TableRows], strides: Sequence[int], key_groups: int) -> Iterator[Any]:
    some: list[Any] = []
    some_bytes = 0
    for index, keys, values, given in rows:
        groups = given
        if groups is None:
            of_keys = key_group_of_each(keys.to_pylist(), key_groups, strides[index])
            groups = pa.array(np.array(of_keys, np.int32))
        of_table = pa.repeat(pa.scalar(index, pa.int32()), len(keys))
        some.append(pa.record_batch([groups, of_table, keys, values], schema=CHANGES))
        some_bytes += some[-1].nbytes
        if some_bytes >= AT_ONCE_BYTES:
            yield pa.concat_batches(some)
            some, some_bytes = [], 0
    if some:
        yield pa.concat_batches(some)


def sorted_rows(places: Iterable[Path]) -> Iterator[Any]:
    """Yield the dealt rows as record batches of ``CHANGES``, by key group, table and key."""
    for place in places:
        with pa.ipc.open_stream(str(place)) as stream:
            rows = stream.read_all()
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in "gtk"])
        yield from rows.take(order).to_batches(max_chunksize=1_000)
