"""The parts of groups on their way from staging tasks to the tasks that derive: totals and entries as bytes.

Totals are the bytes of their columns, side by side. No pyspark is imported here.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.wal.staging.derived import DerivedTable, Part
from tidegate.wal.staging.derived_order import Entry, entry_of

WIDE = 76
"""The digits of sums in a task: rows of decimal(38,s) never overflow them."""


def totals_in(columns: Any) -> list[str]:
    """Return the names of the columns of totals, in the order of ``Part``."""
    return [name for name in columns.schema.names if name[0] in "ncs"]


def packed(totals: Any) -> Any:
    """Return the columns of totals of a record batch as one binary array."""
    sides = [_bytes_of(totals[name]) for name in totals_in(totals)]
    rows = np.concatenate(sides, axis=1)
    width = pa.binary(rows.shape[1])
    return pa.Array.from_buffers(width, len(rows), [None, pa.py_buffer(rows.tobytes())]).cast(pa.binary())


def _bytes_of(column: Any) -> Any:
    """Return the values of an array of fixed width without nulls: one row of bytes each."""
    width = column.type.bit_width // 8
    content = np.frombuffer(column.buffers()[1], np.uint8, (column.offset + len(column)) * width)
    return content.reshape(-1, width)[column.offset :]


def unpacked(table: DerivedTable, values: Any) -> dict[str, Any]:
    """Return the columns of totals of packed ones."""
    types = types_of(table)
    rows = _bytes_of(values.cast(pa.binary(sum(kind.bit_width // 8 for kind in types.values()))))
    made, start = {}, 0
    for name, kind in types.items():
        end = start + kind.bit_width // 8
        content = pa.py_buffer(rows[:, start:end].tobytes())
        made[name], start = pa.Array.from_buffers(kind, len(rows), [None, content]), end
    return made


def types_of(table: DerivedTable) -> dict[str, Any]:
    """Return the Arrow types of the columns of totals, in the order of ``Part``."""
    types = {"n": pa.int64()}
    for place, (is_summed, scale) in enumerate(zip(table.summed, table.scales, strict=True)):
        types[f"c{place}"] = pa.int64()
        if is_summed:
            types[f"s{place}"] = pa.decimal256(WIDE, scale)
    return types


Changes: TypeAlias = dict[bytes, tuple[dict[Entry, int], ...]]
"""The changes of entries in each order, by group."""


def changes_of(table: DerivedTable, parts: Any) -> Changes:
    """Return the changes of entries, from batches of ``PARTS``, added up."""
    changes: Changes = {}
    for batch in parts:
        for key, content in zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True):
            place, count, entry = content.split(b",", 2)
            of_group = changes.get(key)
            if of_group is None:
                of_group = changes[key] = tuple([{} for _ in table.orders])
            entries = of_group[int(place)]
            entries[entry] = entries.get(entry, 0) + int(count)
    return changes


def parts_of(table: DerivedTable, totals: Any, changes: Changes) -> list[Part]:
    """Return the change of each group of a record batch."""
    pairs = []
    for place, is_summed in enumerate(table.summed):
        counts = totals[f"c{place}"].to_pylist()
        sums = [0] * len(counts)
        if is_summed:
            sums = [
                int.from_bytes(number, sys.byteorder, signed=True)
                for number in _bytes_of(totals[f"s{place}"])
            ]
        pairs.append(list(zip(counts, sums, strict=True)))
    of_each = zip(*pairs, strict=True) if pairs else [()] * len(totals)
    none: tuple[dict[Entry, int], ...] = tuple([{} for _ in table.orders])
    orders = [changes.get(key, none) for key in totals["k"].to_pylist()] if changes else [none] * len(totals)
    return [Part(*each) for each in zip(totals["n"].to_pylist(), of_each, orders, strict=True)]


def zeros(table: DerivedTable, rows: int) -> Any:
    """Return packed totals that change nothing."""
    width = sum(kind.bit_width // 8 for kind in types_of(table).values())
    return pa.array([bytes(width)] * rows, pa.binary())


def packed_entries(place: int, changed: Any) -> Any:
    """Return the changes of entries of the order at this place: its number, that of rows, and the entry."""
    of_order = [changed[name].to_pylist() for name in changed.schema.names if name[0] == "o"]
    pieces = [
        b"%d,%d,%b" % (place, count, entry_of(values))
        for count, *values in zip(changed["n"].to_pylist(), *of_order, strict=True)
    ]
    return pa.array(pieces, pa.binary())
