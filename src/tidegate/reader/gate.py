"""The gate: a reader's client of one namespace, in threads. ``reader/flow/`` has its control flow."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import Steps, run
from tidegate.reader import changes, rules
from tidegate.reader.changes import Changes
from tidegate.reader.decided_log import DecidedLog
from tidegate.reader.diff import Diff, Side, Sides
from tidegate.reader.flow.gate import GateFlow
from tidegate.reader.flow.reader import Reader
from tidegate.reader.mirror.mirror import Mirror, PathLike
from tidegate.reader.mirror.view import MirrorView
from tidegate.reader.rules import LEASE_S, VersionInfo
from tidegate.reader.snapshot import Snapshot
from tidegate.reader.table import KeysByTable, Table, TableReader, ValuesByTable
from tidegate.sinks.rules.version_ref import Version, VersionRef, number_of
from tidegate.wal.log import Log
from tidegate.wal.manifest import Step

if TYPE_CHECKING:
    from typing_extensions import Self


class Gate(GateFlow):
    """A client that reads one namespace: its newest visible version, and older ones that are still readable.

    Thread-safe. It remembers the newest version that it has seen, and raises VersionRegressedError when the
    store shows an older one (I9). It is a context manager.
    """

    _snapshot_class = Snapshot

    def __init__(self, reader: Reader, log: Log | None = None) -> None:
        super().__init__(reader)
        self._decided = None if log is None else DecidedLog(log, reader.identity.uuid)

    def version(self) -> int:
        """Read the visible version; 0 before the first.

        Raises: VersionRegressedError: the store shows an older version than before, or another
        history. StoreUnavailableError: no answer.
        """
        return run(self._version_steps())

    def tables(self) -> list[str]:
        """List the names of the tables at the visible version."""
        return run(self._tables_steps())

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

    def get_many(self, keys: KeysByTable) -> ValuesByTable:
        """Read the values of keys of several tables, all at one version, the newest: by table and key.

        Absent keys are left out. On one Redis server it takes one round trip while no new version became
        visible, two after one. More than 100,000 keys are read in parts, each with a deadline of its own.

        Raises: as ``Table.get_many``.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://many", store="memory://many")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://many", namespace="flights")
        >>> gate.get_many({"legs": [("EWR", 1545)], "aircraft": ["N14228", "N00000"]})
        {'legs': {('EWR', 1545): {'dest': 'IAH'}}, 'aircraft': {'N14228': {'carrier': 'UA', 'flights': 2}}}
        """
        return run(self._get_many_steps(keys))

    def snapshot(
        self,
        version: Version | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> Snapshot:
        """Take one version for many reads: the newest, ``version``, or the newest decided by ``as_of``.

        ``version`` may be the ``ref`` of an earlier snapshot: its uuid and digest are compared, too.
        The version is pinned until the snapshot is closed; use it as a context manager. Its lease
        is for ``lease_s`` seconds, and is renewed in the background. It outlives a reader that dies by that
        time, and a store may be unreachable for that time before the snapshot refuses. The
        writer's ``max_lease_s`` and ``max_layers`` limit the time that a version can be pinned.

        Raises: ConfigError: the version is not visible yet, or the arguments do not fit.
        SnapshotExpiredError: the version was retired. VersionRegressedError: it is of another history.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://snapshot", store="memory://snapshot")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://snapshot", namespace="flights")
        >>> with gate.snapshot() as snap:
        ...     snap.version, snap.table("airports").scan().to_arrow().num_rows
        (3, 3)
        """
        snapshot: Snapshot = run(self._snapshot_steps(version, as_of, lease_s))
        return snapshot

    def wait_for(
        self, version: Version | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """Wait until ``version`` is visible, or a version that has read a Kafka topic up to ``offsets``.

        It returns the visible version, which may be a later one. A version that was kept outside this process
        is given as a ``VersionRef``, such as ``snapshot.ref``: its uuid is compared, and its digest while
        readers can read it. ``offsets`` are those of records, as their producer got them, by topic and
        partition: ``{"orders": {0: 41}}``. They are visible once a visible batch of the writer's query has
        read past them, even if it wrote nothing of them.

        Raises: WaitTimeoutError: it was not visible within ``timeout`` seconds. StoreUnavailableError: a
        read of the store had no answer within its ``timeout_s``. ConfigError: give one of the two, and a
        ``timeout`` that ends. VersionRegressedError: the version is of another history.
        """
        return run(self._wait_steps(version, timeout, offsets))

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """List the visible versions that can still be read, oldest first; the newest ``limit`` of them.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://history", store="memory://history")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://history", namespace="flights")
        >>> [(info.version, info.batch, info.changes) for info in gate.history(limit=1)]
        [(3, 2, {'aircraft': 1, 'airports': 1})]
        """
        return run(self._history_steps(limit))

    def diff(
        self, before: Version, after: Version | None = None, tables: Iterable[str] | None = None
    ) -> Diff:
        """Compare two readable versions: an iterator of ``Change``, also with ``.counts()``.

        ``before`` 0 is the empty state before version 1; ``after`` is the newest version unless given, and
        may be the older one. ``tables``: only these. Both versions are pinned while rows are fetched. If
        rows do not expire and no table was replaced in between, only the rows written between the versions
        are read. Each key group is asked for them: on Redis 64 key groups in one round trip.

        Raises: ConfigError: a version is not visible yet, or a table is in neither. SnapshotExpiredError: a
        version was retired. VersionRegressedError: a ``VersionRef`` is of another history.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://changes", store="memory://changes")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://changes", namespace="flights")
        >>> [(change.kind, change.key) for change in gate.diff(2, 3, tables=["airports"])]
        [('added', 'JFK')]
        """
        return run(self._diff_steps(before, after, tables))

    def _diff_steps(
        self, before: Version, after: Version | None, tables: Iterable[str] | None
    ) -> Steps[Diff]:
        yield from ()
        for version in (before,) if after is None else (before, after):
            if type(version) is not int or version != 0:
                rules.check_whole_number("version", number_of(version))
        of = number_of(before), None if after is None else number_of(after)
        return Diff(self._reader, lambda: self._both(before, after), tables, of)

    def changes(self, version: Version, table: str, key_group: int | None = None) -> Changes:
        """Read the rows that a visible version wrote into a table: an iterator of ``WrittenRow``.

        They come from the log, so the gate must be connected with ``wal``. Readers need not be able to read
        the version any more: the log keeps it for the writer's ``wal_retain_s``. ``key_group``: only rows of
        this one; only the frames that contain it are read. ``.to_arrow()`` returns them as a table.

        Raises: ConfigError: the gate has no log, the log is of another namespace, the version is not visible
        yet, or there is no such table or key group. WalGapError: the log no longer has the version.
        CorruptError: log and store are of two histories, or the log is damaged. VersionRegressedError:
        ``version`` is a ``VersionRef`` of another history.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://rows", store="memory://rows")
        >>> import tidegate
        >>> gate = tidegate.connect("memory://rows", namespace="flights", wal="memory://rows")
        >>> [(row.kind, row.key, row.value) for row in gate.changes(2, "aircraft")]
        [('upsert', 'N14228', {'carrier': 'UA', 'flights': 2})]
        """
        return run(self._changes_steps(version, table, key_group))

    def _changes_steps(self, version: Version, table: str, key_group: int | None) -> Steps[Changes]:
        decided = yield from self._log_of(version)
        return changes.changes_of(decided, number_of(version), table, key_group)

    def job(self, version: int) -> tuple[Step, ...]:
        """Read the steps of a visible version from the log: the calls of its transaction, in their order.

        Empty: it is no batch nor load of a transaction, or a release that noted no steps made it. Raises: as
        ``changes``.
        """
        return run(self._job_steps(version))

    def _job_steps(self, version: int) -> Steps[tuple[Step, ...]]:
        decided = yield from self._log_of(version)
        _, manifest = changes.manifest_at(decided, version)
        return manifest.steps or ()

    def _log_of(self, version: Version) -> Steps[DecidedLog]:
        """Return the log of a visible version, compared with the store. Raises: as ``changes``."""
        number = number_of(version)
        rules.check_whole_number("version", number)
        if self._decided is None:
            raise changes.no_log(self.namespace)
        with one_call():
            pointer = yield from self._read_pointer()
        where = self._reader.store.where
        self._check_ref(version)
        rules.check_is_visible(number, rules.newest_of(pointer, where), self.namespace)
        self._decided.check_same_history(pointer)
        if isinstance(version, VersionRef):
            self._check_ref(version, self._decided.ref(number).digest)
        return self._decided

    def mirror(
        self,
        tables: Iterable[str],
        *,
        path: PathLike | None = None,
        bytes_max: int | None = None,
        on_version: Callable[[MirrorView], None] | None = None,
    ) -> Mirror:
        """Read whole tables into memory, or into the file at ``path``, and keep them at the newest version.

        Use it as a context manager. Its reads take microseconds, answer from one version, and go on while
        the store is away. A thread of the mirror moves it: it reads the rows that differ between two
        versions, and switches the content as a whole. Versions in between may be left out. Its version is
        pinned by a lease; if that was revoked (``max_lease_s``, ``max_layers``), it reads the tables whole.

        In memory ``bytes_max`` (256 MiB) is the most that the rows may take: the bytes of keys and stored
        values, and 110 per row. A read of whole tables takes it twice while it lasts. In a file it is the
        most that its pages in use may take (16 GiB); a read of whole tables takes as much again in the
        ``-wal``.

        A file has the tables of one mirror at a time. A mirror that finds its tables there answers at once,
        without the store, and then moves on from that version; ``wait_for`` waits until it has moved. After a
        crash of the process the file has one version, whole.

        ``on_version`` is called in the mirror's thread with each content after the first; what it raises is
        logged. The mirror does not move meanwhile, so ``wait_for`` in it waits in vain. It may close the
        mirror. A mirror needs ``tidegate[arrow]``.

        Raises: ConfigError: there is no such table, or the rows take more than ``bytes_max``; the file is of
        another mirror, namespace, format or program, or is in use. CorruptError: the file is damaged. As
        ``scan``.
        """
        mirror = Mirror(self, tables, path=path, bytes_max=bytes_max, on_version=on_version)
        mirror.start()
        return mirror

    def close(self) -> None:
        """Release the connection; its tables and snapshots end with it. Repeatable."""
        self._reader.closed = True
        self._reader.leases.close()
        self._reader.store.close()
        if self._decided is not None:
            self._decided.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def pin(self, table: str) -> Iterator[TableReader]:
        """Give the table's reader at the newest version, under a lease of its own, for ``Scan``."""
        with self.snapshot() as snapshot, snapshot.pin(table) as reader:
            yield reader

    @contextlib.contextmanager
    def _both(self, before: Version, after: Version | None) -> Iterator[Sides]:
        """Give two versions, each under a lease, for ``Diff``."""
        with contextlib.ExitStack() as snapshots:
            # The older one first: it is the next to be retired.
            sides: dict[Version | None, Side] = {0: Side(0, None, self._reader.check_open)}
            for version in sorted({before, after} - {0, None}, key=number_of):  # type: ignore[arg-type]
                sides[version] = snapshots.enter_context(self.snapshot(version=version)).side()
            if after is None:
                sides[None] = snapshots.enter_context(self.snapshot()).side()
            yield sides[before], sides[after]
