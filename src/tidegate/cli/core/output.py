"""Output of results: a table on a terminal, tab-separated lines elsewhere, or JSON.

rich is imported for a terminal only: no command waits for it elsewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tidegate.base.text import cell, json_of

ROWS_AT_ONCE = 500
"""A terminal shows many rows as tables of this many rows: memory stays bounded."""

AMOUNT = re.compile(r"[-+]?\d[\d,.]*(e[-+]?\d+)?( ?(%|x|[A-Za-z]+(/s)?))?")
"""A number, with or without its unit."""
ABSENT = frozenset({"-", "null", "none yet", "not known"})
"""The cells of an amount that there is not."""

T = TypeVar("T")


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def first_of(rows: Iterable[T], limit: int | None) -> Iterator[T]:
    """Return at most ``limit`` rows; None: all."""
    return itertools.islice(rows, None if limit is None else min(limit, sys.maxsize))


def print_json(value: Any) -> None:
    """Print one JSON value on one line. Binary is base64, times are RFC 3339, NaN is the text NaN."""
    print(json_of(value).decode())


# -- text -------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Rows under a heading; ``styles`` are those of the rows on a terminal."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    styles: Sequence[str] = ()


class Pairs(NamedTuple):
    """Names and values, one pair per line."""

    pairs: Iterable[tuple[str, Any]]


Part = Rows | Pairs


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under a heading."""
    print_parts([Rows(columns, rows)])


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair per line."""
    print_parts([Pairs(pairs)])


def print_parts(parts: Sequence[Part]) -> None:
    """Print several parts, with an empty line between two."""
    if on_terminal():
        from rich.console import Console

        Console().print(_rich(parts))
        return
    for number, part in enumerate(parts):
        if number:
            print()
        if isinstance(part, Rows):
            print("\t".join(map(cell, part.columns)))
        for row in part.rows if isinstance(part, Rows) else part.pairs:
            print("\t".join(map(cell, row)))


@contextlib.contextmanager
def showing(*, json: bool) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows successive states: in place on a terminal, elsewhere one below the other.

    With ``json`` it prints a line for each; otherwise it takes parts, as ``print_parts``.
    """
    if json or not on_terminal():

        def show(state: Any) -> None:
            if json:
                print_json(state)
            else:
                print_parts(state)
                print()
            sys.stdout.flush()

        yield show
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda parts: live.update(_rich(parts), refresh=True)


def _are_amounts(cells: Sequence[str]) -> bool:
    """Whether a column has amounts, and nothing else but absent ones."""
    present = [each for each in cells if each not in ABSENT]
    return bool(present) and all(map(AMOUNT.fullmatch, present))


def _rich(parts: Sequence[Part]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    for part in parts:
        shown += [""] if shown else []
        if isinstance(part, Pairs):
            grid = Table.grid(padding=(0, 2))
            for name, value in part.pairs:
                grid.add_row(Text(cell(name), style="bold"), Text(cell(value)))
            shown.append(grid)
        else:
            table = Table(header_style="bold")
            rows = [[cell(one) for one in row] for row in part.rows]
            for column, cells in itertools.zip_longest(part.columns, zip(*rows, strict=True)):
                table.add_column(
                    Text(cell(column)),
                    overflow="fold",
                    justify="right" if _are_amounts(cells or ()) else "left",
                )
            for row, style in itertools.zip_longest(rows, part.styles):
                table.add_row(*map(Text, row), style=style)
            shown.append(table)
    return Group(*shown)
