"""The rows of a SQLite store: operations on its shard files. ``store.py`` has the pointer.

Besides one SQL table per user table, a shard file has ``floors``; ``applied``, the number of rows
of each chunk, so that a seal adds up a few numbers instead of counting rows (I11), and a repeated
chunk counts once; ``sealed``.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidegate.base.extras import pa, pc
from tidegate.base.names import escape
from tidegate.errors import CorruptError, SnapshotExpiredError
from tidegate.keys.groups import groups_of, key_group_of_each, task_of
from tidegate.sinks.records import Counts, Finding, Identity, ReadAt, Stamp, Stopped
from tidegate.sinks.rules.expiry import HEAD_BYTES, SweepPage, is_hidden
from tidegate.sinks.rules.seals import findings, is_whole, miscounted
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import NOTES, SHARD, SHARDS_MAX, TABLE, has_table, tables_in
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.value_flags import DELETES

INSERT = "INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)"
COUNT_CHUNK = "INSERT OR REPLACE INTO applied VALUES (?, ?, ?, ?, ?)"
COUNTED = "SELECT tbl, SUM(rows) FROM applied WHERE kg = ? AND version = ? GROUP BY tbl"
IS_SEALED = """SELECT 1 FROM sealed WHERE kg = ?1 AND version = ?2
    UNION ALL SELECT 1 FROM floors WHERE kg = ?1 AND floor >= ?2"""
SEAL = "INSERT INTO sealed VALUES (?, ?)"
RAISE_FLOOR = """INSERT INTO floors VALUES (?, ?)
    ON CONFLICT (kg) DO UPDATE SET floor = max(floor, excluded.floor)"""
FLOORS_ABOVE = "SELECT kg, floor FROM floors WHERE floor > ?"

LOOK_UP = """WITH asked(i, kg, key) AS (VALUES {asked})
    SELECT i, (SELECT value FROM {table} WHERE kg = asked.kg AND key = asked.key
               AND version BETWEEN ? AND ? ORDER BY version DESC LIMIT 1)
    FROM asked"""
# SQLite takes the other columns of a group from the row that has the MAX. The order of the primary key
# makes the groups, so that the LIMIT stops it early.
PAGE = """SELECT key, MAX(version), value FROM {table}
    WHERE kg = ? AND key >= ? AND version BETWEEN ? AND ? GROUP BY key ORDER BY key LIMIT ?"""

DROP_OLDER = "DELETE FROM {table} WHERE kg = ? AND key = ? AND version < ?"
DROP_MARKER = "DELETE FROM {table} WHERE kg = ? AND key = ? AND version = ?"
REPLACED = """SELECT key, version FROM {table} WHERE kg = ? AND key >= ? AND version < ?
    ORDER BY key, version LIMIT ?"""
# The newest row of each key up to the version, with enough of its value to determine whether it is live.
HEADS = """SELECT key, MAX(version), substr(value, 1, {head}) FROM {table}
    WHERE kg = ? AND key >= ? AND version <= ? GROUP BY key ORDER BY key LIMIT ?"""
ANY_ROW = "SELECT 1 FROM {table} LIMIT 1"
DROP_UNTIL = "DELETE FROM {table} WHERE kg = ? AND key = ? AND version <= ?"
COUNT_ROWS = "SELECT kg, COUNT(*) FROM {table} WHERE version = ? GROUP BY kg"

BEFORE_ALL = float("-inf")
"""SQLite sorts numbers before texts before bytes: a key changed to another type is found and reported."""
LOOK_UP_KEYS = 64
"""Keys per statement: three variables each, old builds allow 999; more was not faster."""
PAGE_ROWS = 1_000
PAGE_BYTES = 4 * 1024 * 1024
RETIRE_ROWS = 2_000
"""Rows per transaction of a retirement, so that an apply waits for milliseconds, not for all of it."""


Refuse = Callable[[sqlite3.Connection, str, Stamp], None]


class Asked(NamedTuple):
    """A key to look up: its position in the request, its key group, its bytes."""

    place: int
    group: int
    key: bytes


class Page(NamedTuple):
    """Rows of a scan, including delete markers, and the key to continue from (None at the end)."""

    keys: list[bytes]
    values: list[bytes]
    following: bytes | None


class Shards:
    """The shard files of one namespace."""

    def __init__(self, files: Files, identity: Identity) -> None:
        self._files = files
        self._identity = identity
        self.count = min(SHARDS_MAX, identity.key_groups)
        self._tables: dict[int, tuple[int, set[str]]] = {}  # by shard: known to exist at a schema's version
        files.uuid = identity.uuid
        for shard in range(self.count):
            files.expected[self._name(shard)] = (identity.uuid, shard, self.count)

    def create(self) -> None:
        """Create the files, or finish their creation. Repeatable.

        Rows that are there already are those of a store that lost ``meta.sqlite``. Nobody knows their
        horizon, so they are removed: the log has them.
        """
        for name, (uuid, number, shards) in self._files.expected.items():
            about = f"INSERT OR IGNORE INTO shard VALUES (1, '{uuid}', {number}, {shards});"
            existed = self._files.exists(name)
            self._files.make(name, SHARD + about)
            self._files.check(name)  # a file that existed already must be of this namespace
            if existed:
                self._clear(name)

    def _clear(self, name: str) -> None:
        with self._files.writing(name, durable=True) as connection:
            for table in tables_in(connection):
                connection.execute(f"DROP TABLE {table}")
            for notes in ("floors", *NOTES):
                connection.execute(f"DELETE FROM {notes}")

    # -- writing -------------------------------------------------------------------------------

    def apply(self, stamp: Stamp, chunk: Chunk, refuse: Refuse) -> None:
        """Write a chunk. ``refuse`` raises if the transaction's file has a discard of this attempt."""
        version = stamp.version
        for shard, runs in self._by_shard(chunk.runs):
            # No fsync here: the seal's makes it durable (see sinks/sqlite/disk).
            with self._files.writing(self._name(shard), durable=False) as connection:
                refuse(connection, self._files.where, stamp)
                floors = dict(connection.execute(FLOORS_ABOVE, (version - 1,)).fetchall())
                # A late zombie: its rows were replaced and dropped already.
                self._insert(connection, shard, version, [run for run in runs if run.group not in floors])
                counted: dict[tuple[int, str], int] = {}
                for run in runs:
                    if run.group not in floors:
                        group_table = run.group, run.table
                        counted[group_table] = counted.get(group_table, 0) + len(run.keys)
                connection.executemany(
                    COUNT_CHUNK,
                    [(group, version, table, chunk.ordinal, n) for (group, table), n in counted.items()],
                )

    def _insert(self, connection: sqlite3.Connection, shard: int, version: int, runs: list[Run]) -> None:
        for table, of_table in itertools.groupby(
            sorted(runs, key=lambda run: run.table), lambda run: run.table
        ):
            name = sql_name(table)
            if not self._has_table(connection, shard, name):
                connection.execute(TABLE.format(name=name))
            rows = itertools.chain.from_iterable(
                zip(
                    itertools.repeat(run.group),
                    run.keys.to_pylist(),
                    itertools.repeat(version),
                    run.values.to_pylist(),
                )
                for run in of_table
            )
            connection.executemany(INSERT.format(table=name), rows)

    def make_tables(self, tables: Iterable[str]) -> None:
        """Make the SQL tables of these tables in every file that lacks them. Durable: on return."""
        names = {sql_name(table) for table in tables}
        for shard in range(self.count):
            with self._files.connection(self._name(shard)) as connection:
                unknown = names - self._known(connection, shard)
                missing = sorted(name for name in unknown if not self._has_table(connection, shard, name))
            if missing:
                with self._files.writing(self._name(shard), durable=True) as connection:
                    for name in missing:
                        connection.execute(TABLE.format(name=name))

    def rewrite(self, version: int, runs: Sequence[Run]) -> None:
        """As ``Store.rewrite``. A floor above the version means that the horizon has moved.

        Rows that were replaced since are gone there, perhaps by a delete without a marker, and must
        not come back.
        """
        for shard, of_shard in self._by_shard(runs):
            with self._files.writing(self._name(shard), durable=True) as connection:
                floors = dict(connection.execute(FLOORS_ABOVE, (version,)).fetchall())
                self._insert(connection, shard, version, [run for run in of_shard if run.group not in floors])

    def seal(self, stamp: Stamp, counts: Counts, refuse: Refuse) -> list[str]:
        """Seal what is whole; describe what is not."""
        wrong, version = [], stamp.version
        for shard, groups in self._groups_by_shard(counts):
            # Durable even if everything was sealed before: the trap in sinks/sqlite/disk.
            with self._files.writing(self._name(shard), durable=True) as connection:
                refuse(connection, self._files.where, stamp)
                for group in groups:
                    if connection.execute(IS_SEALED, (group, version)).fetchone():
                        continue
                    counted = dict(connection.execute(COUNTED, (group, version)).fetchall())
                    if is_whole(counted, counts[group]):
                        connection.execute(SEAL, (group, version))
                    else:
                        wrong.append(miscounted(group, counted, counts[group]))
        return wrong

    # -- reading -------------------------------------------------------------------------------

    def look_up(self, at: ReadAt, keys: Sequence[bytes], *, retired_too: bool = False) -> list[bytes | None]:
        """Return the stored values of a table's keys, aligned with them; None: there is no row.

        Floors and rows are read in one transaction, as the retirement wrote them in one: rows found
        under a fitting floor are all that the version needs (T28). Raises: SnapshotExpiredError:
        unless ``retired_too``, if a floor is above the version.
        """
        name = sql_name(at.table)
        values: list[bytes | None] = [None] * len(keys)
        by_shard: dict[int, list[Asked]] = {}
        groups = key_group_of_each(keys, self._identity.key_groups, at.stride)
        for request in map(Asked, itertools.count(), groups, keys):
            by_shard.setdefault(self._shard_of(request.group), []).append(request)
        for shard, of_shard in sorted(by_shard.items()):
            rows = []
            with self._files.reading(self._name(shard)) as connection:
                if not retired_too:
                    self._check_floors(connection, {request.group for request in of_shard}, at.version)
                for first in range(
                    0, len(of_shard) if self._has_table(connection, shard, name) else 0, LOOK_UP_KEYS
                ):
                    part = of_shard[first : first + LOOK_UP_KEYS]
                    sql = LOOK_UP.format(table=name, asked=", ".join(["(?, ?, ?)"] * len(part)))
                    given = (*itertools.chain.from_iterable(part), at.start, at.version)
                    rows += connection.execute(sql, given).fetchall()
            for place, value in rows:
                if value is not None and type(value) is not bytes:
                    raise self._no_bytes(shard, at.table, value)
                values[place] = value
        return values

    def _no_bytes(self, shard: int, table: str, stored: object) -> CorruptError:
        return CorruptError(
            f"{self._files.where}: {self._files.folder / self._name(shard)}, table {table}: a value of type"
            f" {type(stored).__name__} is stored where bytes have to be: restore the store from a copy"
        )

    def page(self, at: ReadAt, group: int, first: bytes) -> Page:
        """Return some rows of a key group from the key ``first`` on. Raises: as ``look_up``."""
        shard, name = self._shard_of(group), sql_name(at.table)
        keys: list[bytes] = []
        values: list[bytes] = []
        with self._files.reading(self._name(shard)) as connection:
            self._check_floors(connection, {group}, at.version)
            if not self._has_table(connection, shard, name):
                return Page(keys, values, None)
            held_bytes = 0
            begin = first or BEFORE_ALL
            bounds = begin, at.start, at.version, PAGE_ROWS
            cursor = connection.execute(PAGE.format(table=name), (group, *bounds))
            for key, _, value in cursor:
                if type(key) is not bytes or type(value) is not bytes:
                    raise self._no_bytes(shard, at.table, value if type(key) is bytes else key)
                keys.append(key)
                values.append(value)
                held_bytes += len(key) + len(value)
                if held_bytes > PAGE_BYTES:
                    break
            cursor.close()
        full = held_bytes > PAGE_BYTES or len(keys) == PAGE_ROWS
        return Page(keys, values, keys[-1] + b"\0" if full else None)

    def _check_floors(self, connection: sqlite3.Connection, groups: set[int], version: int) -> None:
        for group, floor in connection.execute(FLOORS_ABOVE, (version,)).fetchall():
            if group in groups:
                raise SnapshotExpiredError(
                    f"{self._files.where}: version {version} was retired in key group {group}, the oldest"
                    f" that can be read there is {floor}"
                )

    # -- retirement ----------------------------------------------------------------------------

    def put_on_disk(self) -> None:
        """Make all drops durable, whatever the next announcement makes durable."""
        for name, _ in self.files():
            self._files.put_on_disk(name)

    def retire(self, version: int, changes: Iterable[Chunk], stopped: Stopped) -> bool:
        for chunk in changes:
            if stopped():
                return False
            for shard, runs in self._by_shard(chunk.runs):
                for some_runs in _at_most(runs, RETIRE_ROWS):
                    with self._files.writing(self._name(shard), durable=False) as connection:
                        for run in some_runs:
                            # One transaction: a reader that misses a row sees the floor that explains
                            # it (T28).
                            self._raise_floor(connection, run.group, version)
                            if self._has_table(connection, shard, sql_name(run.table)):
                                self._drop_replaced(connection, version, run)
        return True

    @staticmethod
    def _drop_replaced(connection: sqlite3.Connection, version: int, run: Run) -> None:
        # T27: a marker is dropped together with what it hides, never before.
        markers = run.keys.filter(pc.is_in(pc.binary_slice(run.values, 0, 1), pa.array(DELETES)))
        for sql, keys in ((DROP_OLDER, run.keys), (DROP_MARKER, markers)):
            rows = zip(itertools.repeat(run.group), keys.to_pylist(), itertools.repeat(version))
            connection.executemany(sql.format(table=sql_name(run.table)), rows)

    def retire_replaced(self, version: int, table: str, stopped: Stopped) -> bool:
        """Drop the older rows of a table that ``version`` emptied, whichever keys were added since.

        Return False if stopped.
        """
        name = sql_name(table)
        for shard in range(self.count):
            for group in self.groups_in(shard):
                first: bytes | None = b""
                while first is not None:
                    if stopped():
                        return False
                    with self._files.writing(self._name(shard), durable=False) as connection:
                        if not self._has_table(connection, shard, name):
                            break
                        old = connection.execute(
                            REPLACED.format(table=name), (group, first, version, RETIRE_ROWS)
                        ).fetchall()
                        if old:
                            self._raise_floor(connection, group, version)
                        connection.executemany(
                            DROP_MARKER.format(table=name), [(group, key, older) for key, older in old]
                        )
                    first = old[-1][0] if len(old) == RETIRE_ROWS else None
        return True

    def drop_if_empty(self, table: str) -> None:
        """Drop the SQL tables of a dropped table, where no later version has written rows."""
        name = sql_name(table)
        for shard in range(self.count):
            with self._files.writing(self._name(shard), durable=False) as connection:
                if (
                    has_table(connection, name)
                    and not connection.execute(ANY_ROW.format(table=name)).fetchone()
                ):
                    connection.execute(f"DROP TABLE {name}")

    def drop_expired(
        self, table: str, group: int, first: bytes, rows: int, version: int, at_us: int
    ) -> SweepPage:
        """Drop what had expired at ``at_us``, the version's time, of some keys from ``first`` on."""
        shard, name = self._shard_of(group), sql_name(table)
        with self._files.reading(self._name(shard)) as connection:
            if not self._has_table(connection, shard, name):
                return SweepPage(0, 0, None)
            sql = HEADS.format(table=name, head=HEAD_BYTES)
            heads = connection.execute(sql, (group, first, version, rows)).fetchall()
        old = [(group, key, newest) for key, newest, head in heads if is_hidden(head, at_us)]
        if old:
            with self._files.writing(self._name(shard), durable=False) as connection:
                # One transaction: a reader that misses a row sees the floor that explains it (T28).
                connection.execute(RAISE_FLOOR, (group, version))
                if self._has_table(connection, shard, name):  # another driver may have dropped it meanwhile
                    connection.executemany(DROP_UNTIL.format(table=name), old)
        return SweepPage(len(heads), len(old), heads[-1][0] + b"\0" if len(heads) == rows else None)

    @staticmethod
    def _raise_floor(connection: sqlite3.Connection, group: int, version: int) -> None:
        connection.execute(RAISE_FLOOR, (group, version))
        connection.execute("DELETE FROM applied WHERE kg = ? AND version <= ?", (group, version))
        connection.execute("DELETE FROM sealed WHERE kg = ? AND version <= ?", (group, version))

    # -- verification --------------------------------------------------------------------------

    def verify(self, version: int, counts: Counts) -> list[Finding]:
        misfits: list[Finding] = []
        for shard, groups in self._groups_by_shard(counts):
            tables = sorted({table for group in groups for table in counts[group]})
            with self._files.reading(self._name(shard)) as connection:
                # Merged groups are left out: their rows cannot be distinguished from newer ones.
                merged = dict(connection.execute(FLOORS_ABOVE, (version - 1,)).fetchall())
                sealed = {
                    kg for (kg,) in connection.execute("SELECT kg FROM sealed WHERE version = ?", (version,))
                }
                rows = {
                    table: dict(
                        connection.execute(COUNT_ROWS.format(table=sql_name(table)), (version,)).fetchall()
                    )
                    if self._has_table(connection, shard, sql_name(table))
                    else {}
                    for table in tables
                }
            for group in (group for group in groups if group not in merged):
                where = f"{self._files.folder / self._name(shard)}, version {version}, key group {group}"
                counted = {table: rows[table].get(group, 0) for table in counts[group]}
                misfits += findings(where, counts[group], counted, is_sealed=group in sealed)
        return misfits

    # -- layout --------------------------------------------------------------------------------

    def _shard_of(self, group: int) -> int:
        if not 0 <= group < self._identity.key_groups:
            raise CorruptError(f"{self._files.where}: there is no key group {group}")
        return task_of(group, self.count, self._identity.key_groups)

    def file_of(self, group: int) -> str:
        """Return the name of the file of a key group."""
        return self._name(self._shard_of(group))

    def groups_in(self, shard: int) -> range:
        """Return the key groups of one file."""
        return groups_of(shard, self.count, self._identity.key_groups)

    def files(self) -> Iterator[tuple[str, range]]:
        """Yield the name of each file, and its key groups."""
        return ((self._name(shard), self.groups_in(shard)) for shard in range(self.count))

    @staticmethod
    def _name(shard: int) -> str:
        return f"shard-{shard:02d}.sqlite"

    def _by_shard(self, runs: Sequence[Run]) -> list[tuple[int, list[Run]]]:
        by_shard: dict[int, list[Run]] = {}
        for run in runs:
            by_shard.setdefault(self._shard_of(run.group), []).append(run)
        return sorted(by_shard.items())

    def _groups_by_shard(self, counts: Counts) -> list[tuple[int, list[int]]]:
        by_shard: dict[int, list[int]] = {}
        for group in sorted(counts):
            by_shard.setdefault(self._shard_of(group), []).append(group)
        return sorted(by_shard.items())

    def _known(self, connection: sqlite3.Connection, shard: int) -> set[str]:
        """Return SQL tables that are known to exist."""
        (schema,) = connection.execute("PRAGMA schema_version").fetchone()
        known_at, known = self._tables.get(shard, (None, set[str]()))
        if known_at != schema:  # a table was added or dropped since
            known = set()
            self._tables[shard] = schema, known
        return known

    def _has_table(self, connection: sqlite3.Connection, shard: int, name: str) -> bool:
        known = self._known(connection, shard)
        if name not in known and has_table(connection, name):
            known.add(name)
        return name in known


def _at_most(runs: Iterable[Run], rows_max: int) -> Iterator[list[Run]]:
    """Yield the same runs in lists of at most ``rows_max`` rows; longer runs in pieces."""
    pending: list[Run] = []
    pending_rows = 0
    for run in runs:
        for row in range(0, len(run.keys), rows_max):
            piece = run._replace(keys=run.keys.slice(row, rows_max), values=run.values.slice(row, rows_max))
            if pending and pending_rows + len(piece.keys) > rows_max:
                yield pending
                pending, pending_rows = [], 0
            pending.append(piece)
            pending_rows += len(piece.keys)
    if pending:
        yield pending


def sql_name(table: str) -> str:
    """Return the SQL table of a user table: ``t_`` and the escaped name."""
    return "t_" + escape(table)
