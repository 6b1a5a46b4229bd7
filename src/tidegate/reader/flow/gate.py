"""The control flow of gates: reads at the newest version, the pointer, waits, the pin of a snapshot."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from typing import Any, ClassVar

from tidegate.base import forks
from tidegate.base.deadline import one_call
from tidegate.base.names import listed
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import Result, Steps
from tidegate.errors import BadRecordError, ConfigError, SnapshotExpiredError, TidegateError, is_final
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.flow.reader import UNOBSERVED, Reader, Tables, named, opened, patiently
from tidegate.reader.flow.snapshot import SnapshotFlow
from tidegate.reader.rules import TRIES, VersionInfo
from tidegate.reader.table import KeysByTable, TableHints, TablesReader, ValuesByTable, keys_by_table
from tidegate.sinks.records import REMOVAL_BEGINS, CatalogEntry, Pointer
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.version_ref import Version, VersionRef, number_of


def _ignored(_visible: int) -> None:
    pass


class GateFlow(TableHints):
    """A client of one namespace. It remembers the newest pointer that it has seen, and its entry (I9)."""

    _snapshot_class: ClassVar[type[SnapshotFlow]]

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

    def _get_many_steps(self, keys: KeysByTable) -> Steps[ValuesByTable]:
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

    def _version_steps(self) -> Steps[int]:
        return (yield from self._read_pointer()).visible

    def _tables_steps(self) -> Steps[list[str]]:
        with one_call():
            return (yield from self._retry(self._list_tables))

    def _list_tables(self) -> Steps[list[str]]:
        pointer = yield from self._read_pointer()
        visible = rules.newest_of(pointer, self._reader.store.where)
        return listed((yield from self._entry_of(pointer)).tables) if visible else []

    def _history_steps(self, limit: int | None) -> Steps[list[VersionInfo]]:
        if limit is not None:
            rules.check_whole_number("limit", limit)
        with one_call():
            visible = yield from self._version_steps()
            entries = yield self._reader.store.catalog(rules.oldest_of(limit, visible), visible)
        return [rules.info_of(entry) for entry in entries]

    # -- snapshots --------------------------------------------------------------------------------------

    def _snapshot_steps(
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
            rules.check_is_visible(number, (yield from self._version_steps()), self.namespace)
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
            return self._snapshot_class(reader, entry, hold)
        except GeneratorExit:
            raise  # an interrupt between two steps: the hold is collected, which releases the lease
        except BaseException:
            yield reader.leases.give_back(hold)
            raise

    # -- waiting ----------------------------------------------------------------------------------------

    def _wait_steps(self, version: Version | None, timeout: float, offsets: Offsets | None) -> Steps[int]:
        awaited = rules.awaited(version, offsets, timeout)
        return (
            yield from self._wait_until(awaited, timeout, self._reader.clock.monotonic() + float(timeout))
        )

    def _wait_until(
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
