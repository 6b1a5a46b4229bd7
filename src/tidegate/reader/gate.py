"""The gate: a reader's client of one namespace."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.errors import BadRecordError, ConfigError, SnapshotExpiredError
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.diff import Diff, Sides
from tidegate.reader.rules import LEASE_S, TRIES, OptimisticRead, VersionInfo
from tidegate.reader.snapshot import Reader, Result, Side, Snapshot, Table, TableReader
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Pointer

if TYPE_CHECKING:
    from typing_extensions import Self


class Gate:
    """A client that reads one namespace: its newest visible version, and older ones that are still readable.

    Thread-safe. It remembers the newest version that it has seen, and raises VersionRegressedError when the
    store shows an older one (I9). It is a context manager.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = forks.Lock()
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

    def version(self) -> int:
        """Read the visible version; 0 before the first.

        Raises: VersionRegressedError: the store shows an older version than before, or another
        history. StoreUnavailableError: no answer.
        """
        return self._look().visible

    def tables(self) -> list[str]:
        """List the names of the tables at the visible version."""
        with one_call():
            pointer = self._look()
            return sorted(self._entry_of(pointer).tables) if pointer.visible else []

    def table(self, name: str) -> Table:
        """Return a table, which is read at the newest visible version each time.

        Several reads may see several versions: take a ``snapshot`` if they must be consistent.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://table", store="memory://table")
        >>> import tidegate
        >>> legs = tidegate.connect("memory://table", namespace="flights").table("legs")
        >>> legs.get(("EWR", 1545))
        {'dest': 'IAH'}
        >>> sorted(legs.scan())
        [(('EWR', 1545), {'dest': 'IAH'}), (('LGA', 1714), {'dest': 'IAH'})]
        """
        return Table(self, name)

    def snapshot(
        self,
        version: int | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> Snapshot:
        """Take one version for many reads: the newest, ``version``, or the newest decided by ``as_of``.

        The version is pinned until the snapshot is closed; use it as a context manager. Its lease
        is for ``lease_s`` seconds, and is renewed in the background. It outlives a reader that dies by that
        time, and a store may be unreachable for that time before the snapshot refuses. The
        writer's ``max_lease_s`` and ``max_layers`` limit the time that a version can be pinned.

        Raises: ConfigError: the version is not visible yet, or the arguments do not fit.
        SnapshotExpiredError: the version was retired.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://snapshot", store="memory://snapshot")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://snapshot", namespace="flights")
        >>> with gate.snapshot() as snap:
        ...     snap.version, snap.table("airports").scan().to_arrow().num_rows
        (3, 3)
        """
        with one_call():
            return self._take(version, as_of, lease_s)

    def _take(self, version: int | None, as_of: datetime.datetime | None, lease_s: float) -> Snapshot:
        rules.check_snapshot(version, as_of, lease_s)
        if as_of is not None:
            entries = self._reader.store.catalog(0, self._look().visible)
            version = rules.version_as_of(entries, as_of, self.namespace)
        if version is not None:
            rules.check_is_visible(version, self._look().visible, self.namespace)
            return self._pin(version, lease_s)
        return self._again(lambda: self._pin(rules.newest_of(self._look(), self.namespace), lease_s))

    def wait_for(
        self, version: int | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """Wait until ``version`` is visible, or a version that has read a Kafka topic up to ``offsets``.

        It returns the visible version, which may be a later one. ``offsets`` are those of records, as their
        producer got them, by topic and partition: ``{"orders": {0: 41}}``. They are visible once a visible
        batch of the writer's query has read past them, even if it wrote nothing of them.

        Raises: WaitTimeoutError: it was not visible within ``timeout`` seconds. StoreUnavailableError: a
        read of the store had no answer within its ``timeout_s``. ConfigError: give one of the two, and a
        ``timeout`` that ends.
        """
        wanted = rules.awaited(version, offsets, timeout)
        clock = self._reader.clock
        end, pause = clock.monotonic() + float(timeout), 0.0
        while True:
            visible, come = self._come(wanted)
            if come:
                return visible
            left = end - clock.monotonic()
            if left <= 0:
                raise rules.waited(wanted, timeout, visible, self.namespace)
            asked_at = clock.monotonic()
            told = self._reader.store.await_newer(visible, left)
            pause = rules.pause_of(pause, clock.monotonic() - asked_at, told=told)
            if pause:
                clock.sleep(min(pause, left))

    def _come(self, wanted: rules.Awaited) -> tuple[int, bool]:
        with one_call():
            visible = self.version()
            return visible, self._has_come(visible, wanted)

    def _has_come(self, visible: int, wanted: rules.Awaited) -> bool:
        if isinstance(wanted, int):
            return visible >= wanted
        return rules.have_passed(self._reader.store.catalog(*rules.offsets_stand_in(visible)), wanted)

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """List the visible versions that can still be read, oldest first; the newest ``limit`` of them.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://history", store="memory://history")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://history", namespace="flights")
        >>> [(info.version, info.batch, info.changes) for info in gate.history(limit=1)]
        [(3, 2, {'aircraft': 1, 'airports': 1})]
        """
        if limit is not None:
            rules.check_whole_number("limit", limit)
        with one_call():
            visible = self._look().visible
            entries = self._reader.store.catalog(rules.oldest_of(limit, visible), visible)
        return [rules.info_of(entry) for entry in entries]

    def diff(self, before: int, after: int | None = None, tables: Iterable[str] | None = None) -> Diff:
        """Compare two readable versions: an iterator of ``Change``, also with ``.counts()``.

        ``before`` 0 is the empty state before version 1; ``after`` is the newest version unless given, and
        may be the older one. ``tables``: only these. Both versions are pinned while rows are fetched. If
        rows do not expire and no table was replaced in between, the cost grows with the rows written between
        the versions.

        Raises: ConfigError: a version is not visible yet, or a table is in neither. SnapshotExpiredError: a
        version was retired.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://changes", store="memory://changes")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://changes", namespace="flights")
        >>> [(change.kind, change.key) for change in gate.diff(2, 3, tables=["airports"])]
        [('added', 'JFK')]
        """
        for version in (before, after):
            if version is not None and version != 0:
                rules.check_whole_number("version", version)
        return Diff(self._reader, lambda: self._both(before, after), tables)

    @property
    def clock(self) -> Clock:
        """The clock by which ``AliasGate`` waits."""
        return self._reader.clock

    @property
    def seen(self) -> Pointer:
        """The newest pointer that was seen, for ``AliasGate``."""
        return self._seen

    def remember(self, seen: Pointer) -> None:
        """Set the pointer that an earlier gate to this namespace has seen, for ``AliasGate`` (I9)."""
        self._seen = seen

    def close(self) -> None:
        """Release the connection; its tables and snapshots end with it. Repeatable."""
        if not self._reader.closed:
            self._reader.closed = True
            self._reader.renewals.close()
            self._reader.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Gate to {self._reader.store.where}>"

    # -- for tables: reads at the newest version ---------------------------------------------------

    def read(self, table: str, fn: Callable[[TableReader], Result]) -> Result:
        """Do one read at the newest version, for ``Table``."""

        def once() -> Result:
            pointer = self._look()
            if not pointer.visible:
                raise rules.no_version_yet(self.namespace)
            entry = self._entry_of(pointer)
            return fn(self._reader.held(entry, table, self._reader.check_open))

        with events.reading(self.namespace, table), one_call():
            answer = self._read_optimistically(table, fn)
            return self._again(once) if answer is None else answer[0]

    def _read_optimistically(self, table: str, fn: Callable[[TableReader], Result]) -> tuple[Result] | None:
        """Read at the last seen version, together with the pointer, in one round trip.

        None: there is a newer version by now, ``fn`` needed no rows, or the store lacks the capability.
        """
        entry, before, store = self._entry, self._seen, self._reader.store
        if entry is None or not rules.is_of(entry, before) or not isinstance(store, SupportsReadWithPointer):
            return None
        ahead = OptimisticRead(store)
        # An error at that version may be none at the newest: for example, a table may be new.
        with contextlib.suppress(SnapshotExpiredError, ConfigError, BadRecordError):
            answer = fn(self._reader.held(entry, table, self._reader.check_open, ahead))
            if ahead.pointer is not None and rules.is_of(entry, self._seen_now(before, ahead.pointer)):
                return (answer,)
        return None

    @contextlib.contextmanager
    def hold(self, table: str) -> Iterator[TableReader]:
        """Give the table at the newest version, under a lease of its own, for ``Scan``."""
        with self.snapshot() as snapshot, snapshot.hold(table) as held:
            yield held

    def _again(self, once: Callable[[], Result]) -> Result:
        """Repeat a read if the newest version was retired between the pointer and the rows (T28)."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(SnapshotExpiredError):
                return once()
        return once()

    @contextlib.contextmanager
    def _both(self, before: int, after: int | None) -> Iterator[Sides]:
        """Give two versions, each under a lease, for ``Diff``."""
        with contextlib.ExitStack() as held:
            # The older one first: it is the next to be retired.
            taken: dict[int | None, Side] = {0: Side(0, None, self._reader.check_open)}
            for version in sorted({before, after} - {0, None}, key=int):  # type: ignore[arg-type]
                taken[version] = held.enter_context(self.snapshot(version=version)).side()
            if after is None:
                taken[None] = held.enter_context(self.snapshot()).side()
            yield taken[before], taken[after]

    # -- versions ----------------------------------------------------------------------------------

    def _look(self) -> Pointer:
        """Read the store's pointer, never older than the one that this gate has seen (I9).

        It is compared with the pointer seen before the request: another thread may see a newer
        one while this one waits for its answer.
        """
        self._reader.check_open()
        before = self._seen
        with one_call():
            pointer = self._reader.store.pointer()
        return self._seen_now(before, pointer)

    def _seen_now(self, before: Pointer, pointer: Pointer) -> Pointer:
        """Check the pointer, and remember it if it is newer than the one seen."""
        rules.check_seen(self._reader.store.where, before, pointer)
        with self._lock:
            if pointer.visible > self._seen.visible:
                self._seen = pointer
                events.seen(self.namespace, pointer.visible)
        return pointer

    def _entry_of(self, pointer: Pointer) -> CatalogEntry:
        known = self._entry
        if known is None or not rules.is_of(known, pointer):
            known = self._reader.entry(pointer.visible)
            rules.check_entry(self._reader.store.where, known, pointer)
            self._entry = known
        return known

    def _pin(self, version: int, lease_s: float) -> Snapshot:
        """Take a snapshot of the version.

        The lease is first, then the horizon is read: a store without one atomic step for both announces the
        horizon before it reads the leases.
        """
        reader = self._reader
        held = reader.renewals.take(version, lease_s)
        try:
            rules.check_kept(reader.store.where, version, self._look().horizon)
            return Snapshot(reader, reader.entry(version) if version else None, held)
        except BaseException:
            reader.renewals.give_back(held)
            raise
