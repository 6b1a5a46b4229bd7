"""The parts that a gate and its snapshots share: the store, the reader of a table, repeated tries."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from tidegate.base.clock import Clock
from tidegate.base.steps import Result, Steps
from tidegate.errors import TidegateError, WaitTimeoutError, is_final
from tidegate.reader import rules
from tidegate.reader.leases.keeper import LeaseKeeper
from tidegate.reader.table import TableReader, TablesReader, TableView, view_of
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.visible import no_schema
from tidegate.wal.record import TableSchema

UNOBSERVED = contextlib.nullcontext()
VIEWS_MAX = 1_000
"""The number of tables at a version whose views a gate remembers."""

Tables = str | tuple[str, ...]
"""The name of one table, or those of several that are read together."""


def named(table: Tables) -> str:
    """Return the names for observers."""
    return table if isinstance(table, str) else ",".join(table)


def opened(
    reader: Reader, entry: CatalogEntry, table: Tables, check: Callable[[], None], *, optimistic: bool = False
) -> Steps[Any]:
    """Return the reader of one table, or of several, at the entry's version. Raises: as ``Reader.table``."""
    if isinstance(table, str):
        return reader.table(entry, table, check, optimistic=optimistic)
    return reader.tables(entry, table, check, optimistic=optimistic)


def patiently(
    steps: Callable[[], Steps[Result]],
    end: float,
    clock: Clock,
    sleep: Callable[[float], Any],
    ends: Callable[[TidegateError], bool] = is_final,
) -> Steps[Result]:
    """Repeat steps until they succeed, or fail at the time ``end`` or with an error that ``ends`` them.

    A login that is refused during a rotation, a script of another tenant or a lost store passes.
    """
    pause = 0.0
    while True:
        try:
            return (yield from steps())
        except WaitTimeoutError:
            raise
        except TidegateError as error:
            left = end - clock.monotonic()
            if left <= 0 or ends(error):
                raise
        pause = rules.pause_of(pause, 0.0, notified=False)
        yield sleep(min(pause, left))


class Reader:
    """The parts that a gate and its snapshots share: the store, and its unchanging records.

    ``reads_with_pointer``: the store reads rows and the pointer in one round trip.
    """

    store_with_pointer: ClassVar[type] = SupportsReadWithPointer
    keeper: ClassVar[type] = LeaseKeeper

    def __init__(self, store: Any, identity: Identity, clock: Clock) -> None:
        self.store = store
        self.identity = identity
        self.clock = clock
        self.leases = self.keeper(store, clock)
        self.reads_with_pointer = isinstance(store, self.store_with_pointer)
        self.closed = False
        self._schemas: dict[str, TableSchema] = {}
        self._views: dict[tuple[int, str, str], TableView] = {}  # by version, digest and table

    def check_open(self) -> None:
        """Refuse reads after the gate was closed. Raises: ConfigError."""
        if self.closed:
            raise rules.gate_closed(self.store.where)

    def pointer(self, known: int) -> Any:
        """Read the store's pointer, with its entry if the store can return it: see ``pointer_with_entry``."""
        return self.store.pointer_with_entry(known) if self.reads_with_pointer else self.store.pointer()

    def sleep(self, seconds: float) -> Any:
        """Pause between two polls."""
        return self.clock.sleep(seconds)

    def entry(self, version: int) -> Steps[CatalogEntry]:
        """Read the catalog's entry of a visible version.

        Raises: SnapshotExpiredError: it was retired by now. VersionRegressedError: the store lost it by now.
        """
        for _ in range(rules.LOOKS):
            for entry in (yield self.store.catalog(version, version)):
                return entry  # type: ignore[no-any-return]
            rules.check_there(self.store.where, version, (yield self.store.pointer()))
        raise visible.no_entry(self.store.where, version)

    def version_as_of(self, as_of: datetime.datetime, pointer: Pointer) -> Steps[int]:
        """Find the newest visible version that was decided by ``as_of``: by some entries, not by all.

        Raises: as ``rules.version_as_of``.
        """
        oldest, newest = max(pointer.horizon, 1), pointer.visible
        entries: list[CatalogEntry] = []
        first, last = oldest, newest
        while first <= last:
            middle = (first + last) // 2
            page = yield self.store.catalog(middle, middle)
            if page and rules.is_after(page[0], as_of):
                last = middle - 1
            else:  # without an entry it was retired meanwhile
                first, entries = middle + 1, page or entries
        if not entries:
            entries = (yield self.store.catalog(0, oldest)) or (yield self.store.catalog(0, newest))
        return rules.version_as_of(entries, as_of, self.identity.name)

    def table(
        self, entry: CatalogEntry, table: str, check: Callable[[], None], *, optimistic: bool = False
    ) -> Steps[TableReader]:
        """Return the reader of a table at the entry's version.

        Raises: ConfigError: the table does not exist; it names those that do. VersionRegressedError: the
        store lost the version by now.
        """
        view = yield from self._view(entry, table)
        return TableReader(self.store, view, check, optimistic=optimistic)

    def tables(
        self,
        entry: CatalogEntry,
        tables: Iterable[str],
        check: Callable[[], None],
        *,
        optimistic: bool = False,
    ) -> Steps[TablesReader]:
        """Return the reader of several tables at the entry's version. Raises: as ``table``."""
        views = []
        for table in tables:
            view = yield from self._view(entry, table)
            views.append(view)
        with_pointer = self.reads_with_pointer
        return TablesReader(self.store, views, check, with_pointer=with_pointer, optimistic=optimistic)

    def _view(self, entry: CatalogEntry, table: Any) -> Steps[TableView]:
        known = entry.version, entry.digest, table
        view = self._views.get(known) if isinstance(table, str) else None
        if view is None:
            view = yield from self._view_of(entry, table)
            if len(self._views) >= VIEWS_MAX:
                self._views = {}
            self._views[known] = view
        return view

    def _view_of(self, entry: CatalogEntry, table: str) -> Steps[TableView]:
        where = self.store.where
        view = view_of(where, self.identity, entry, table, self._schemas)
        if view is None:
            ids = sorted({table_at.schema_id for table_at in entry.tables.values()})
            schemas = yield self.store.schemas_of(ids)
            self._schemas = schemas
            view = view_of(
                where, self.identity, entry, table, schemas
            )  # not those of another thread's version
        if view is None:
            rules.check_there(where, entry.version, (yield self.store.pointer()))
            raise no_schema(where, entry.version, table, entry.tables[table].schema_id)
        return view
