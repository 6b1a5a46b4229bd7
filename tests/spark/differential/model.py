"""A transaction's calls on dictionaries. A key's value is the set of those that ties allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Table = dict[Any, list[Row]]
"""By key: the values that may be stored. Several only where rows are tied."""


def rank(cell: Any) -> tuple[Any, ...]:
    """Return the place of a cell in Spark's order: nulls first, NaN last, -0.0 as 0.0."""
    if cell is None:
        return (0,)
    if isinstance(cell, float) and math.isnan(cell):
        return (2,)
    return (1, cell)


def signed(cell: Any) -> tuple[Any, ...]:
    """Return the place in the order of min and max, where -0.0 is below 0.0."""
    return (*rank(cell), math.copysign(1, cell) if isinstance(cell, float) and cell == 0 else 0)


def last_rows(rows: Sequence[Row], key: str, order_by: Sequence[str]) -> Table:
    """Return each key's last rows by these columns."""
    tables: dict[Any, list[Row]] = {}
    for row in rows:
        tables.setdefault(row[key], []).append(row)
    last: Table = {}
    for name, tied in tables.items():
        top = max(tuple(rank(row[column]) for column in order_by) for row in tied)
        last[name] = [row for row in tied if tuple(rank(row[column]) for column in order_by) == top]
    return last


def without(row: Row, names: Sequence[str]) -> Row:
    """Return the row without these columns."""
    return {name: cell for name, cell in row.items() if name not in names}


def reduced(state: Row | None, rows: Sequence[Row], reducers: dict[str, str], order: str) -> Row:
    """Return a key's state combined with its rows."""
    result = dict(state) if state is not None else dict.fromkeys(reducers)
    for name, reducer in reducers.items():
        cells = [row[name] for row in sorted(rows, key=lambda row: rank(row[order])) if row[name] is not None]
        before = result[name]
        if reducer == "count":
            result[name] = (before or 0) + len(cells)
            continue
        every = [*([] if before is None else [before]), *cells]
        if not every:
            continue
        match reducer:
            case "sum":
                result[name] = sum(every)
            case "min":
                result[name] = min(every, key=signed)
            case "max":
                result[name] = max(every, key=signed)
            case "first":
                result[name] = every[0]
            case _:
                result[name] = every[-1]
    return result
