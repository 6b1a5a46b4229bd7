"""The differences between two readable versions of a namespace, row by row, as ``Gate.diff`` returns them.

>>> import tidegate
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://diff", store="memory://diff")
>>> gate = tidegate.connect("memory://diff", namespace="flights")
>>> for change in gate.diff(2, 3):
...     change.kind, change.table, change.key, change.before, change.after
('removed', 'aircraft', 'N24211', {'carrier': 'UA', 'flights': 1}, None)
('added', 'airports', 'JFK', None, {'departures': 1, 'delay': -1.0})
>>> gate.diff(1, 3).counts()["airports"]
DiffCounts(added=1, removed=0, changed=1)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.base.extras import pc
from tidegate.base.names import listed
from tidegate.base.steps import run
from tidegate.base.text import brief, html_table
from tidegate.errors import ConfigError
from tidegate.reader.flow.reader import Reader
from tidegate.reader.rules import tables_of
from tidegate.reader.table import OfProcess, TableView
from tidegate.sinks.diff import differences_of_groups, untouched
from tidegate.sinks.records import CatalogEntry
from tidegate.values.decode import Value
from tidegate.wal.record import TableSchema
from tidegate.wal.value_flags import HIDDEN

if TYPE_CHECKING:
    from typing_extensions import Self


class Change(NamedTuple):
    """One row that differs. ``before`` is None if the key is new, ``after`` if it is gone."""

    table: str
    key: Any
    before: Value | None
    after: Value | None

    @property
    def kind(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


class DiffCounts(NamedTuple):
    """The numbers of differing rows of one table."""

    added: int = 0
    removed: int = 0
    changed: int = 0


class Side(NamedTuple):
    """One of two versions that are compared.

    ``entry`` None: version 0, which is empty. ``check`` raises when the version is no longer pinned.
    """

    version: int
    entry: CatalogEntry | None
    check: Callable[[], None]


Sides = tuple[Side, Side]


def as_shown(batch: Any) -> Any:
    """Leave out the rows of a derived table that differ only in the field that readers do not see."""
    shown = (
        pc.replace_substring_regex(batch[side], rf',?"{HIDDEN}":\[.*', "") for side in ("before", "after")
    )
    return batch.filter(pc.invert(pc.fill_null(pc.equal(*shown), False)))  # noqa: FBT003


class Diff(OfProcess, Iterator[Change]):
    """The rows that differ between two versions, in no particular order of tables and keys.

    Rows are fetched on demand. Both versions are pinned until the last row was returned, or until
    ``close``; it is a context manager, too. One thread at a time. Values are compared as they are
    stored, and decoded by the schema of their own version. Raises: SnapshotExpiredError: one of the versions
    was retired, or could not be pinned.
    """

    def __init__(
        self,
        reader: Reader,
        pin: Callable[[], contextlib.AbstractContextManager[Sides]],
        tables: Iterable[str] | None = None,
        versions: tuple[int, int | None] = (0, None),
    ) -> None:
        self._reader = reader
        self._versions = versions
        self._pin = pin
        self._wanted = None if tables is None else tables_of(tables)
        self.closed = False
        self._exit = contextlib.ExitStack()
        self._sides: Sides | None = None
        self._changes: Iterator[Change] = iter(())

    # -- rows ----------------------------------------------------------------------------------

    def _asked(self) -> list[tuple[str, object]]:
        """Describe the comparison without a request."""
        before, after = self._versions
        if self._sides is not None:
            after = self._sides[1].version
        return [
            ("namespace", self._reader.identity.name),
            ("before", before),
            ("after", "the newest" if after is None else after),
            ("tables", "all" if self._wanted is None else ", ".join(self._wanted)),
            ("closed", self.closed),
        ]

    def __repr__(self) -> str:
        namespace, before, after, tables, closed = (value for _, value in self._asked())
        end = ", closed" if closed else ""
        return f"<Diff of versions {before} and {after} of {namespace}, tables: {tables}{end}>"

    def _repr_html_(self) -> str:
        return html_table(self._asked())

    def __next__(self) -> Change:
        if self.closed:
            raise StopIteration
        if self._sides is None:
            self._start()
            self._changes = self._decoded()
        try:
            return next(self._changes)
        except BaseException:
            self.close()
            raise

    def counts(self) -> dict[str, DiffCounts]:
        """Count the differing rows not yet returned, per table; no value is decoded."""
        counts = dict.fromkeys(self.tables(), DiffCounts())
        try:
            for table, batch in self._batches():
                new, removed = batch["before"].null_count, batch["after"].null_count
                so_far = counts[table]
                counts[table] = DiffCounts(
                    so_far.added + new,
                    so_far.removed + removed,
                    so_far.changed + batch.num_rows - new - removed,
                )
        finally:
            self.close()
        return counts

    def tables(self) -> list[str]:
        """List the tables that are compared: the requested ones, or all of both versions.

        Raises: ConfigError: a requested table is in neither version; it names those that are.
        """
        existing = self._existing()
        for name in self._wanted or ():
            if name not in existing:
                raise self._in_neither(name)
        return listed(existing) if self._wanted is None else self._wanted

    def _existing(self) -> set[str]:
        return {name for side in self._start() if side.entry is not None for name in side.entry.tables}

    def _in_neither(self, table: str) -> ConfigError:
        before, after = self._start()
        existing = ", ".join(listed(self._existing())) or "none"
        return ConfigError(
            f"there is no table {brief(table)} at version {before.version} nor at {after.version}"
            " of namespace"
            f" {self._reader.identity.name}; the tables there are: {existing}"
        )

    def schema(self, table: str) -> TableSchema:
        """Return the table's schema at the newer version that has it. Raises: ConfigError: neither has it."""
        before, after = sorted(self._start(), key=lambda side: side.version)
        view = self._view(after, table) or self._view(before, table)
        if view is None:
            raise self._in_neither(table)
        return view.values.schema

    def close(self) -> None:
        """Release the versions; no more rows are returned. Repeatable."""
        self.closed = True
        self._changes = iter(())
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the comparison --------------------------------------------------------------------------

    def _start(self) -> Sides:
        if self._sides is None:
            self._sides = self._exit.enter_context(self._pin())
        return self._sides

    def _batches(self) -> Iterator[tuple[str, Any]]:
        """Yield differing rows as they are stored: the table, and a batch of ``sinks.diff.DIFFERENCES``."""
        before, after = sides = self._start()
        older, newer = sorted(sides, key=lambda side: side.version)
        store = self._reader.store
        if newer.entry is None or newer.version == older.version:
            self.tables()
            return

        def check() -> None:
            before.check()
            after.check()

        same = untouched(store, older.entry, newer.entry)
        for table in self.tables():
            if table in same:
                continue
            groups = range(self._reader.identity.key_groups)
            batches = differences_of_groups(store, table, groups, before.entry, after.entry, check)
            views = [self._view(side, table) for side in sides]
            is_derived = all(view is None or view.values.schema.derived for view in views)
            for batch in batches:
                check()
                yield table, as_shown(batch) if is_derived else batch

    def _decoded(self) -> Iterator[Change]:
        before, after = self._start()
        for table, batch in self._batches():
            old_view, new_view = self._view(before, table), self._view(after, table)
            columns = (batch.column(name).to_pylist() for name in ("key", "before", "after"))
            for key, old, new in zip(*columns, strict=True):
                view = (
                    old_view if new is None else new_view
                )  # a table that was made again may have another key
                assert view is not None, f"table {table} differs, and the version with the row lacks it"
                yield Change(
                    table,
                    view.values.decode_key(key),
                    None if old_view is None or old is None else old_view.decode(key, old),
                    None if new_view is None or new is None else new_view.decode(key, new),
                )

    def _view(self, side: Side, table: str) -> TableView | None:
        if side.entry is None or table not in side.entry.tables:
            return None
        return run(self._reader.table(side.entry, table, side.check)).view
