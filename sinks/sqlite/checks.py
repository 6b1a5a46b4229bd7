"""The checks of a SQLite store without a log: files, floors, rows of each version, the disk that it takes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator

from tidegate.errors import TidegateError
from tidegate.sinks.records import Finding, RowCount, Usage
from tidegate.sinks.rules.visible import floor_found
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE, tables_in
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


# -- the disk -------------------------------------------------------------------------------------


def usage(files: Files) -> Iterator[Usage]:
    """Yield bytes by contents, then those of other files on the disk."""
    free = 0
    for name in (META_FILE, *files.expected):
        with files.connection(name) as connection:
            pages, page_bytes = (
                connection.execute(f"PRAGMA {of}").fetchone()[0] for of in ("freelist_count", "page_size")
            )
        free += pages * page_bytes
    main = files.size("*.sqlite")
    yield Usage("rows and notes", None, main - free, "a smaller keep_versions, then `tidegate vacuum`")
    if free:
        yield Usage("free pages inside the files", None, free, "the next versions use them")
    closed = "the last process that closes the store removes them"
    yield Usage("other files: -wal, -shm", None, files.size() - main, closed)
    disk = shutil.disk_usage(files.folder)
    rest = f"the disk's rest ({disk.used:,} of {disk.total:,} bytes used in all)"
    yield Usage(rest, None, max(disk.used - files.size(), 0), "other files on the disk of the store")


def refused_writes(files: Files) -> str:
    """Return why the folder takes no writes now; empty: it takes them."""
    if not os.access(files.folder, os.W_OK | os.X_OK):
        return f"{files.folder} is read-only for this user: a writer needs its rights, or another mount"
    if shutil.disk_usage(files.folder).free == 0:
        return f"the disk of {files.folder} is full: `tidegate vacuum --dry-run` lists what takes the room"
    return ""
