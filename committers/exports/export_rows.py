"""The rows of an exported file, in bounded memory, each of them checked: an export is not trusted.

Every row that this module yields can be decided: every reader can read it, and every store retire it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import json_decoder
from tidegate.committers.exports.parquet_pages import HugeError, batches
from tidegate.errors import CorruptError
from tidegate.keys.groups import key_group_of_each
from tidegate.options import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidegate.sinks.rules.layout import STORED_MORE, unpack
from tidegate.values.decode import cause_of
from tidegate.values.row_checks import row_checks
from tidegate.wal.record import UNREADABLE as UNREADABLE_VALUE
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.validate import shown_key

ROWS = pa.schema(
    [pa.field("key_group", pa.int32()), pa.field("key", pa.binary()), pa.field("value", pa.binary())]
)
NEXT_STEP = "export again; import no folder that somebody else has made up"
STORED_FACTOR, STORED_BYTES_MIN = 500, 4 * 1024 * 1024
"""The bytes of an export's rows, by default at most this many times those of its files; a small one may have
the second. Keys differ and compress less: a few values that repeat give a factor of 20 to 200."""
UNORDERED = "rows are by key group and key, and it is not in its place"
UNREADABLE = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, NotImplementedError)


class RowsOf(NamedTuple):
    """The manifest's description of a table's rows. ``expires``: they may have an expiry."""

    schema: TableSchema
    expires: bool
    key_groups: int | None
    """None: the key groups are not compared with the keys."""
    stride: int = 1
    own: Any = None
    """The type of the rows of a table of tidegate's own."""


class Place(NamedTuple):
    """The key group and key of a row: a table's rows are sorted by them, and no two are equal."""

    group: int
    key: bytes


def rows_of(source: BinaryIO, path: str, of: RowsOf, count: int, before: Place | None) -> Iterator[Any]:
    """Yield the ``count`` rows of one file, in order and after ``before``: record batches of ``ROWS``.

    Raises: CorruptError, with the file, the row (the first is row 1) and why none of it can be imported.
    """
    rows = 0
    try:
        for batch in batches(source, ROWS):
            fault = _first_unfit(batch, of, before)
            if fault is not None:
                row, cause = fault
                key = batch["key"][row].as_py()
                shown = "" if key is None else f", key {shown_key(key, of.schema.key_types)}"
                raise CorruptError(f"{path}, row {rows + row + 1}{shown}: {cause}; {NEXT_STEP}")
            rows += batch.num_rows
            if batch.num_rows:
                before = place_at(batch, -1)
                yield batch
    except HugeError as error:
        raise CorruptError(f"{path}: {error}; {NEXT_STEP}") from None
    except UNREADABLE as error:
        why = (str(error) or type(error).__name__).partition("\n")[0]
        raise CorruptError(f"{path} cannot be read: {why}; {NEXT_STEP}") from error
    if rows != count:
        raise CorruptError(f"{path} has {rows} rows, the manifest lists {count}; {NEXT_STEP}")


def stored_bytes_max(files: int) -> int:
    """Return the most bytes that the rows of an export take, by default; ``files``: those of its files."""
    return max(STORED_FACTOR * files, STORED_BYTES_MIN)


def check_stored_bytes(folder: object, stored: int, most: int) -> None:
    """Refuse an export whose rows take more than ``most`` bytes, decompressed. Raises: CorruptError."""
    if stored > most:
        raise CorruptError(
            f"{folder}: its rows take more than {most:,} bytes when they are decompressed, far more than its"
            " files, and log and store would keep all of them: import no folder that somebody else has made"
            " up; if you know its rows, give the limit that they need"
            " (`tidegate import FOLDER --bytes-max N`, bytes_max of import_folder)"
        )


def place_at(batch: Any, row: int) -> Place:
    """Return the place of a row of a batch."""
    return Place(batch["key_group"][row].as_py(), batch["key"][row].as_py())


def _first_unfit(batch: Any, of: RowsOf, before: Place | None) -> tuple[int, str] | None:
    """Find the first row that cannot be imported, and why."""
    faults = [one for one in (_unplaced(batch, of, before), _unfit(batch, of)) if one is not None]
    return min(faults, default=None)


def _unfit(batch: Any, of: RowsOf) -> tuple[int, str] | None:
    for column, most in (("key", KEY_BYTES_MAX), ("value", VALUE_BYTES_MAX + STORED_MORE)):
        sizes = pc.binary_length(batch[column])
        if (pc.max(sizes).as_py() or 0) > most:
            row = pc.index(pc.fill_null(pc.greater(sizes, most), False), True).as_py()  # noqa: FBT003
            return row, f"its {column} takes {sizes[row].as_py()} bytes, {most} are allowed"
    fault = row_checks(of.schema).first_unfit(batch["key"], batch["value"], expires=of.expires)
    if fault is None and of.own is not None:
        for row, value in enumerate(batch["value"].to_pylist()):
            try:
                json_decoder(of.own).decode(unpack(value).value or b"")
            except UNREADABLE_VALUE as error:
                return row, f"it is no row of tidegate's own: {cause_of(error)}"
    return fault


def _unplaced(batch: Any, of: RowsOf, before: Place | None) -> tuple[int, str] | None:
    """Find the first row that is not in its key group, or not in order."""
    if not batch.num_rows or batch["key_group"].null_count or batch["key"].null_count:
        return None if not batch["key_group"].null_count else (_first_null(batch), "its key group is null")
    groups, keys = batch["key_group"].to_numpy(), batch["key"]
    wrong = np.zeros(batch.num_rows, bool)
    if of.key_groups is not None:
        wrong = groups != np.array(key_group_of_each(keys.to_pylist(), of.key_groups, of.stride), np.int32)
    up = np.diff(groups)
    after = pc.greater(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    unordered = ~((up > 0) | ((up == 0) & after))
    first = before is not None and place_at(batch, 0) <= before
    rows = np.flatnonzero(wrong | np.concatenate(([first], unordered)))
    if not len(rows):
        return None
    row = int(rows[0])
    if wrong[row]:
        return row, f"its key group is not {groups[row]}"
    earlier = place_at(batch, row - 1) if row else before
    return row, "it is there twice" if earlier == place_at(batch, row) else UNORDERED


def _first_null(batch: Any) -> int:
    return int(pc.index(pc.is_null(batch["key_group"]), True).as_py())
