"""The check of a SQLite store without a log: its files, its floors, and the rows of each version, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.errors import TidegateError
from tidegate.sinks.records import Finding, RowCount
from tidegate.sinks.rules.floors import floor_found
from tidegate.sinks.sqlite.files import Files, tables_in
from tidegate.sinks.sqlite.rows import sql_name

FINDINGS_MAX = 20
"""The most lines of SQLite's own check per file: later lines seldom add anything."""
FLOORS = "SELECT kg, floor FROM floors ORDER BY kg"
COUNT_ALL = "SELECT kg, version, COUNT(*) FROM {table} GROUP BY kg, version ORDER BY kg, version"


def check_file(files: Files, name: str) -> Iterator[Finding]:
    """Run SQLite's own check of a file: pages, indexes, and that it is this namespace's."""
    where = str(files.folder / name)
    try:
        with files.reading(name) as connection:
            lines = [line for (line,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})")]
    except TidegateError as error:
        yield Finding(where, "a whole SQLite file of this namespace", str(error))
        return
    for line in lines:
        if line != "ok":
            yield Finding(where, "a whole SQLite file", line)


def floors_of(files: Files, name: str) -> list[tuple[int, int]]:
    """Return key group and floor of each floor in a file."""
    with files.reading(name) as connection:
        return list(connection.execute(FLOORS))


def check_floors(
    files: Files, floors: list[tuple[str, int, int]], horizon: int, visible: int
) -> Iterator[Finding]:
    """Yield floors above the horizon, which is announced before any floor moves.

    ``floors`` are file, key group and floor; ``horizon`` was read after them.
    """
    for name, group, floor in floors:
        if type(floor) is not int or floor > horizon:
            place = f"{files.folder / name}, floors, key group {group}"
            yield Finding(place, f"at most the horizon, {horizon}", floor_found(floor, visible))


def row_counts(files: Files, name: str, tables: Iterable[str]) -> Iterator[RowCount]:
    """Count the rows of each version in a file, by key group and table."""
    where, names = str(files.folder / name), {sql_name(table): table for table in tables}
    with files.reading(name) as connection:
        for table in tables_in(connection):
            for group, version, rows in connection.execute(COUNT_ALL.format(table=f'"{table}"')):
                yield RowCount(where, names.get(table, table), group, version, rows)
