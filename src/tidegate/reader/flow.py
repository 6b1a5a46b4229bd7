"""The control flow of gates and snapshots, written once for threads and for event loops.

``reader/gate.py`` runs it in threads, ``aio/gate.py`` on an event loop. ``reader/table.py`` has ``Steps``.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.names import listed
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import Result, Steps
from tidegate.base.text import html_table
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    SnapshotExpiredError,
    TidegateError,
    WaitTimeoutError,
    is_final,
)
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.leases.active import Hold
from tidegate.reader.leases.keeper import LeaseKeeper
from tidegate.reader.rules import TRIES, VersionInfo
from tidegate.reader.table import (
    KeysByTable,
    TableHints,
    TableReader,
    TablesReader,
    TableView,
    ValuesByTable,
    keys_by_table,
    view_of,
)
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import REMOVAL_BEGINS, CatalogEntry, Identity, Pointer
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.version_ref import Version, VersionRef, number_of
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


def _ignored(_visible: int) -> None:
    pass


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


class GateFlow(TableHints):
    """A client of one namespace. It remembers the newest pointer that it has seen, and its entry (I9)."""

    snapshot_class: ClassVar[type[SnapshotFlow]]

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = forks.BriefLock()
        self._seen = Pointer()
        self._entry: CatalogEntry | None = None

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._reader.identity.name

    @property
    def key_groups(self) -> int:
        """The number of key groups of the namespace."""
        return self._reader.identity.key_groups

    @property
    def uuid(self) -> str:
        """The namespace's uuid."""
        return self._reader.identity.uuid

    @property
    def connected_as(self) -> str:
        """The name by which it was connected: the namespace's, or an alias."""
        return self.namespace

    @property
    def seen(self) -> Pointer:
        """The newest pointer that was seen, for ``SpacesFlow``."""
        return self._seen

    def remember(self, seen: Pointer) -> None:
        """Set the pointer that an earlier gate to this namespace has seen, if it is newer (I9)."""
        with self._lock:
            if seen.visible > self._seen.visible:
                self._seen = seen

    def __repr__(self) -> str:
        return f"<Gate to {self._reader.store.where}>"

    # -- reads of tables at the newest version ----------------------------------------------------------

    def read(self, table: Tables, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read of a table at the newest version, for ``Table``; or of several tables.

        The read is first done at the last seen version, together with the pointer, in one round trip. It
        is done again at the pointer's version if that is a newer one; and at the newest if ``fn`` needed no
        rows, or if it failed: an error at that version may be none at the newest, for example if a table is
        new.
        """
        reader, entry, before = self._reader, self._entry, self._seen
        shown: Pointer | None = None
        with events.Reading(self.namespace, named(table)) if events.observers else UNOBSERVED, one_call():
            if entry is not None and reader.reads_with_pointer and rules.is_of(entry, before):
                with contextlib.suppress(SnapshotExpiredError, ConfigError, BadRecordError):
                    rows = yield from opened(reader, entry, table, reader.check_open, optimistic=True)
                    answer = yield from fn(rows, *args)
                    if rows.pointer is not None:
                        shown = self._newest(before, rows.pointer)
                        if rules.is_of(entry, shown):
                            return answer
            if shown is not None:
                with contextlib.suppress(SnapshotExpiredError):
                    return (yield from self._read_at(shown, table, fn, *args))
            newest: Result = yield from self._retry(self._read_newest, table, fn, *args)
            return newest

    def get_many_steps(self, keys: KeysByTable) -> Steps[ValuesByTable]:
        by_table = keys_by_table(keys)
        return self.read(tuple(by_table), TablesReader.get_many, by_table)

    def _read_newest(self, table: Tables, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        pointer = yield from self._read_pointer()
        return (yield from self._read_at(pointer, table, fn, *args))

    def _read_at(
        self, pointer: Pointer, table: Tables, fn: Callable[..., Steps[Result]], *args: Any
    ) -> Steps[Result]:
        if not rules.newest_of(pointer, self._reader.store.where):
            raise visible.no_version_yet(self.namespace)
        entry = yield from self._entry_of(pointer)
        rows = yield from opened(self._reader, entry, table, self._reader.check_open)
        return (yield from fn(rows, *args))

    def _retry(self, steps: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Repeat steps if the newest version was retired between the pointer and the rows (T28)."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(SnapshotExpiredError):
                return (yield from steps(*args))
        return (yield from steps(*args))

    # -- versions ---------------------------------------------------------------------------------------

    def _read_pointer(self) -> Steps[Pointer]:
        """Read the store's pointer, never older than the one that this gate has seen (I9).

        It is compared with the pointer seen before the request: another thread may see a newer
        one while this one waits for its answer.
        """
        self._reader.check_open()
        before, entry = self._seen, self._entry
        known = entry.version if entry is not None and rules.is_of(entry, before) else 0
        with one_call():
            pointer = yield self._reader.pointer(known)
        return self._newest(before, pointer)

    def _newest(self, before: Pointer, pointer: Pointer) -> Pointer:
        """Check the pointer, and remember it if it is newer than the one seen."""
        if pointer.writer[:1] == REMOVAL_BEGINS:  # ``is_removed``, without a call in each read
            raise rules.removed(self._reader.store.where, pointer)
        if pointer.visible == before.visible and pointer.digest == before.digest:
            return pointer
        rules.check_seen(self._reader.store.where, before, pointer)
        with self._lock:
            if pointer.visible > self._seen.visible:
                self._seen = pointer
                self._entry = pointer.entry or self._entry
                events.seen(self.namespace, pointer.visible)
        return pointer

    def _entry_of(self, pointer: Pointer) -> Steps[CatalogEntry]:
        entry = pointer.entry or self._entry
        if entry is None or not rules.is_of(entry, pointer):
            entry = yield from self._reader.entry(pointer.visible)
            rules.check_entry(self._reader.store.where, entry, pointer)
        self._entry = entry
        return entry

    def version_steps(self) -> Steps[int]:
        return (yield from self._read_pointer()).visible

    def tables_steps(self) -> Steps[list[str]]:
        with one_call():
            return (yield from self._retry(self._list_tables))

    def _list_tables(self) -> Steps[list[str]]:
        pointer = yield from self._read_pointer()
        visible = rules.newest_of(pointer, self._reader.store.where)
        return listed((yield from self._entry_of(pointer)).tables) if visible else []

    def history_steps(self, limit: int | None) -> Steps[list[VersionInfo]]:
        if limit is not None:
            rules.check_whole_number("limit", limit)
        with one_call():
            visible = yield from self.version_steps()
            entries = yield self._reader.store.catalog(rules.oldest_of(limit, visible), visible)
        return [rules.info_of(entry) for entry in entries]

    # -- snapshots --------------------------------------------------------------------------------------

    def snapshot_steps(
        self, version: Version | None, as_of: datetime.datetime | None, lease_s: float
    ) -> Steps[Any]:
        rules.check_snapshot(version, as_of, lease_s)
        with one_call():
            if as_of is not None:
                version = yield from self._reader.version_as_of(as_of, (yield from self._read_pointer()))
            if version is None:
                return (yield from self._retry(self._pin_newest, lease_s))
            self._check_ref(version)
            number = number_of(version)
            rules.check_is_visible(number, (yield from self.version_steps()), self.namespace)
            return (yield from self._pin(number, lease_s, version))

    def _pin_newest(self, lease_s: float) -> Steps[SnapshotFlow]:
        version = rules.newest_of((yield from self._read_pointer()), self._reader.store.where)
        return (yield from self._pin(version, lease_s))

    def _check_ref(self, version: Version, digest: str = "") -> None:
        rules.check_ref(version, self._reader.store.where, self.uuid, digest)

    def _pin(self, version: int, lease_s: float, client_version: Version = 0) -> Steps[SnapshotFlow]:
        """Take a snapshot of the version, compared with ``client_version``, the one that the client has.

        The lease is first, then the horizon is read: a store without one atomic step for both announces the
        horizon before it reads the leases.
        """
        reader = self._reader
        hold = yield reader.leases.take(version, lease_s)
        try:
            pointer = yield from self._read_pointer()
            rules.check_kept(reader.store.where, version, pointer.horizon)
            is_newest = version == pointer.visible
            steps = self._entry_of(pointer) if is_newest else reader.entry(version)
            entry = (yield from steps) if version else None
            self._check_ref(client_version, entry.digest if entry is not None else "")
            return self.snapshot_class(reader, entry, hold)
        except GeneratorExit:
            raise  # an interrupt between two steps: the hold is collected, which releases the lease
        except BaseException:
            yield reader.leases.give_back(hold)
            raise

    # -- waiting ----------------------------------------------------------------------------------------

    def wait_steps(self, version: Version | None, timeout: float, offsets: Offsets | None) -> Steps[int]:
        awaited = rules.awaited(version, offsets, timeout)
        return (yield from self.wait_until(awaited, timeout, self._reader.clock.monotonic() + float(timeout)))

    def wait_until(
        self,
        awaited: rules.Awaited,
        timeout: float,
        end: float,
        looked: Callable[[int], None] = _ignored,
        ends: Callable[[TidegateError], bool] = is_final,
    ) -> Steps[int]:
        """Wait until a time; ``looked`` is called with the visible version after each look.

        An error that ``ends`` the wait is raised at once, any other one if the look at the end has it.
        """
        clock, pause = self._reader.clock, 0.0
        while True:
            looks = patiently(lambda: self._is_visible(awaited), end, clock, self._reader.sleep, ends)
            visible, is_visible = yield from looks
            looked(visible)
            if is_visible:
                return visible
            asked_at = clock.monotonic()
            left = end - asked_at
            if left <= 0:
                raise rules.waited(awaited, timeout, visible, self.namespace)
            try:
                notified = yield self._reader.store.await_newer(visible, left)
            except TidegateError as error:
                if ends(error):
                    raise
                notified = False  # the next look has the same error, or none
            pause = rules.pause_of(pause, clock.monotonic() - asked_at, notified=notified)
            if pause:
                yield self._reader.sleep(min(pause, left))

    def _is_visible(self, awaited: rules.Awaited) -> Steps[tuple[int, bool]]:
        """Read the visible version, and whether it is, or contains, the awaited one."""
        with one_call():
            pointer = yield from self._read_pointer()
            visible = pointer.visible
            if isinstance(awaited, Version):
                yield from self._compare(awaited, pointer)
                return visible, visible >= number_of(awaited)
            entries = yield self._reader.store.catalog(visible, visible)
            return visible, rules.have_passed(entries, awaited)

    def _compare(self, version: Version, pointer: Pointer) -> Steps[None]:
        """Compare a version with the store's of its number, if readers can still read that (I12)."""
        self._check_ref(version)
        if isinstance(version, VersionRef) and version.digest and version.version <= pointer.visible:
            digest = pointer.digest
            if version.version < pointer.visible:
                entries = yield self._reader.store.catalog(version.version, version.version)
                digest = entries[0].digest if entries else ""
            self._check_ref(version, digest)


class SnapshotFlow(TableHints):
    """One version for all reads, pinned by a lease."""

    def __init__(self, reader: Reader, entry: CatalogEntry | None, hold: Hold) -> None:
        self.version = hold.active.lease.version
        self._reader = reader
        self._entry = entry
        self._hold = hold
        self._closed = False

    @property
    def namespace(self) -> str:
        """The snapshot's namespace; for an alias, its target when the snapshot was taken."""
        return self._reader.identity.name

    @property
    def uuid(self) -> str:
        """The uuid of the snapshot's namespace."""
        return self._reader.identity.uuid

    @property
    def ref(self) -> VersionRef:
        """The version with its history, to be kept outside the process."""
        return VersionRef(self.version, self.uuid, "" if self._entry is None else self._entry.digest)

    def is_beside(self, other: SnapshotFlow) -> bool:
        """Whether both are of one namespace, read in one store by one gate."""
        return self._reader is other._reader

    @property
    def closed(self) -> bool:
        """Whether the snapshot was closed."""
        return self._closed

    @property
    def decided_at(self) -> datetime.datetime | None:
        """The time of the version's decision (UTC); None for version 0."""
        return None if self._entry is None else visible.moment(self._entry.decided_at_us)

    def tables(self) -> list[str]:
        """List the names of the tables at this version."""
        return [] if self._entry is None else listed(self._entry.tables)

    def __repr__(self) -> str:
        return f"<Snapshot of version {self.version}, {self._reader.store.where}>"

    def _repr_html_(self) -> str:
        return html_table(
            [
                *(("namespace", self.namespace), ("version", self.version), ("decided at", self.decided_at)),
                *(("tables", ", ".join(self.tables()) or "none"), ("closed", self.closed)),
            ]
        )

    def read(self, table: str, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read at this version, for ``Table``."""
        with events.Reading(self.namespace, table) if events.observers else UNOBSERVED, one_call():
            rows = yield from self._table(table)
            with self._noting():
                return (yield from fn(rows, *args))

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Note a read that finds the version retired: all further ones are refused."""
        try:
            yield
        except SnapshotExpiredError as error:
            self._hold.active.refused_read(error)
            raise

    def _table(self, table: str) -> Steps[TableReader]:
        self._check()
        return self._reader.table(self._entry_here(), table, self._check)

    def _entry_here(self) -> CatalogEntry:
        if self._entry is None:
            raise visible.no_version_yet(self.namespace)
        return self._entry

    def _check(self) -> None:
        self._reader.check_open()
        if self._closed:
            raise rules.snapshot_closed(self.version)
        self._hold.check(self._reader.clock)

    def _close(self) -> Steps[None]:
        if not self._closed:
            self._closed = True
            yield self._reader.leases.give_back(self._hold)
