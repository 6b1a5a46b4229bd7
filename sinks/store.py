"""The versioned store: the interface and its guarantees, without I/O.

A store contains one namespace: rows by (table, key group, key, version), and a **pointer** with
the visible version. Rows of versions above the pointer are never shown. The store never
decides anything: every version that is applied was decided in the log before (I5).

Implementations: ``sinks/memory/store.py`` (the reference), ``sinks/sqlite/store.py`` (embedded), and those on
servers. All pass ``tidegate.testing.store.suite``.

Every method may raise StoreUnavailableError: no answer in time. After ``pointer`` and the
reads it proves nothing else. After ``publish``, ``claim`` and ``announce`` the effect is unknown.
``create, begin, apply, seal, put_schemas, heartbeat, end_heartbeat, lease, retire, vacuum, drop`` may be
repeated.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.base.checks import ONLY_REDIS, Check
from tidegate.errors import ConfigError
from tidegate.options import VALUE_BYTES_MAX
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.records import (
    ABOVE_ALL,
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
    ReadAt,
    RowCount,
    Stamp,
    Stopped,
    Vacuumed,
    never,
)
from tidegate.sinks.rules.attempts import Attempts
from tidegate.sinks.rules.leases import Lease, LeaseInfo
from tidegate.sinks.rules.reads import live_rows, value_at, values_at
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import TableSchema


class Store(Attempts):
    """One namespace in one store. Thread-safe.

    ``where`` names the store in messages; it never contains a password.
    """

    where: str
    keep_versions_default = 100  # the versions that stay readable unless ``keep_versions`` is set
    value_bytes_max: int | None = None
    """The largest value that the store takes; None: any that the options allow. ``checks`` notes what the
    servers' settings allow.
    """
    value_limit = "the store allows no more, whatever value_bytes_max is"
    """Why it is ``value_bytes_max``, and the way to raise it."""
    driver_changes_max = 100_000  # of a version that one process applies faster than a Spark job does
    apply_bytes = 0
    """The best size of one ``apply``, in bytes of keys and values; 0: one frame."""
    size_counts = ""
    """The owner of the bytes that ``size`` counts, in words, when they are not this namespace's alone."""
    layers_default = 1_000
    """The further versions that leases may pin, unless ``max_layers`` is set.

    In a store whose reads cost the same with more versions, the limit protects the disk, not the reads.
    """
    unsearched = ""  # what ``vacuum`` and ``drop`` look for only if they are ``thorough``
    can_be_filled = False  # whether ``begin_fill`` and ``publish_filled`` work here
    can_rewrite = False  # whether ``rewrite`` works here

    # -- identity ------------------------------------------------------------------------------

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """Read which namespace is here; None when there is none. It writes nothing."""

    def prepare(self) -> list[str]:
        """Create the missing parts that all namespaces of the place share; return them in words.

        `tidegate init` and `tidegate store add` call it, a query never. Durable: on return. Repeatable: also
        concurrently. Raises: ConfigError: a part cannot be created here, or exists with other properties.
        """
        return []

    @abc.abstractmethod
    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        """Create the namespace if none is here; return the identity that is here afterwards.

        ``lost_at``: the store has lost the namespace, and is filled at this version again, by ``begin_fill``
        or ``SupportsRebuild``. Readers are refused from the creation on: they never take the loss for an
        empty namespace.

        Durable: on return. Repeatable: also concurrently; the first one wins, and the caller compares the
        result with the identity that it wanted. Raises: ConfigError: it cannot be created here.
        """

    @abc.abstractmethod
    def aliases(self) -> Aliases:
        """Return the aliases of the place that contains this namespace, or would; not its own alone."""

    def missing_place(self) -> str:
        """Return the folder that held the store and is gone with it; '': it is there, or nothing can tell.

        The folder may be on a disk that is not mounted. A query makes no store in its place.
        """
        return ""

    # -- the pointer ---------------------------------------------------------------------------

    @abc.abstractmethod
    def pointer(self) -> Pointer:
        """Read the pointer, as one consistent read of the newest acknowledged state."""

    @abc.abstractmethod
    def claim(self, epoch: int, writer: str) -> int:
        """Raise the store's epoch to at least ``epoch``, atomically; return the epoch afterwards.

        The caller is fenced when the returned epoch is above its own. From a claim on, no writer with a
        lower epoch can publish (I6). Durable: on return. Repeatable.

        A claim is not a heartbeat: the pointer keeps the age of the last one, an older writer's. A driver
        writes a heartbeat of its own after the claim.
        """

    @abc.abstractmethod
    def heartbeat(self, epoch: int) -> None:
        """Note the writer's heartbeat by the store's clock, if ``epoch`` is the claimed one."""

    def end_heartbeat(self, epoch: int) -> None:
        """Remove the heartbeat, if ``epoch`` is the claimed one: its writer is closed.

        The pointer's ``heartbeat_age_s`` is None then, and ``closed_age_s`` is counted until the next
        heartbeat. In a store without this method a closed writer counts as running until its heartbeat is
        30 s old. Repeatable.
        """

    @abc.abstractmethod
    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        """Make ``entry.version`` visible, if the version before it is and no higher epoch is claimed.

        One atomic conditional write: visible v-1 -> v iff visible is exactly v-1, the store is not being
        filled (horizon < v), and its epoch <= ``epoch``; it sets visible, digest and epoch, and the
        catalog entry is readable whenever the version is. True: it happened and is durable. False: the
        condition did not hold, nothing changed. Raises: StoreUnavailableError: unknown, read back.
        """

    # -- writing a decided version ---------------------------------------------------------------

    @abc.abstractmethod
    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        """Store these schemas under their ids. Durable: before a later ``publish``. Repeatable."""

    @abc.abstractmethod
    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        """Write the changes of chunks, invisible, under ``stamp.version``.

        Durable: no later than the seal of its key groups. Repeatable: any number of times, by any process, at
        any later time, and concurrently: the same chunk leaves the same rows, and none at all in a key group
        whose floor is at or above the version. Rows of another attempt than the one that was begun are
        never read or sealed. Raises: WalGapError: another attempt, if the store knows that at once.
        """

    @abc.abstractmethod
    def seal(self, stamp: Stamp, counts: Counts) -> None:
        """Mark the version as complete in these key groups, after counting the applied rows.

        Durable: on return, with everything applied there. Repeatable: a version that is sealed already, or
        at or below the floor, is success. Raises: IncompleteError: a group has other counts than ``counts``;
        nothing was sealed in it, apply again. WalGapError: the stamp is another attempt's.
        """

    # -- reading -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        """List the entries of visible versions in [oldest, newest], ascending, without retired ones."""

    @abc.abstractmethod
    def schemas(self) -> dict[str, TableSchema]:
        """Read all schemas, by id."""

    def schemas_of(self, ids: Collection[str]) -> dict[str, TableSchema]:
        """Read the schemas of these ids, by id; all schemas where a choice saves nothing."""
        del ids
        return self.schemas()

    @abc.abstractmethod
    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        """Read the stored values of keys at a version, with their flags byte.

        The result is an Arrow binary array aligned with ``keys``, null where there is no row. A deleted or
        expired row is returned as it is stored, or as null. The newest row with
        ``start <= its version <= version`` counts; the stride selects the key groups of the keys. Raises:
        SnapshotExpiredError: the version is below the horizon or a floor (T28). VersionRegressedError: it is
        above the visible version; nothing half applied is shown.
        """

    def get_stored_one(self, at: ReadAt, key: bytes) -> bytes | None:
        """Read the stored value of one key, as ``get_stored``."""
        stored: bytes | None = self.get_stored(at, [key]).to_pylist()[0]
        return stored

    def get_many(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        """Read values of keys at a version: an Arrow binary array aligned with ``keys``, without flags byte.

        A value is null if the key is absent, deleted, or expired at ``at_us``. Raises: as ``get_stored``.
        ValueError: a value expires and no time was given.
        """
        return values_at(self.where, at, keys, self.get_stored(at, keys))

    def get(self, at: ReadAt, key: bytes) -> bytes | None:
        """Read the value of one key, as ``get_many``."""
        return value_at(self.where, at, key, self.get_stored_one(at, key))

    @abc.abstractmethod
    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        """Yield the rows of one key group at a version, by key: record batches (key, value) of stored values.

        Nothing is held open in the store between batches. Raises: as ``get_stored``.
        """

    def scan(self, at: ReadAt, group: int) -> Iterator[Any]:
        """Yield the live rows of one key group at a version, by key: record batches (key, value), none empty.

        Values have no flags byte. A row is live if ``get_many`` returns its value. Raises: as ``get_many``.
        """
        for _, batch in self.scan_groups(at, (group,)):
            yield batch

    def scan_groups_stored(self, at: ReadAt, groups: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the rows of several key groups, as ``scan_stored``, each batch with its key group, in order.

        A store whose answers take long reads several key groups at once.
        """
        for group in groups:
            for batch in self.scan_stored(at, group):
                yield group, batch

    def scan_groups(self, at: ReadAt, groups: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the live rows of several key groups, as ``scan``, each batch with its key group, in order."""
        for group, batch in self.scan_groups_stored(at, groups):
            live = live_rows(batch, at, self.where)
            if live.num_rows:
                yield group, live

    # -- leases and retirement -----------------------------------------------------------------------

    @abc.abstractmethod
    def lease(self, lease: Lease, ttl_s: float) -> None:
        """Take or renew a lease for ``ttl_s`` from now, by the store's clock.

        It is atomic with ``announce``. Durable: on return. Repeatable: a repeat renews the lease, which keeps
        the time it was first taken. With another version it is a new pin, first taken now.

        Raises: SnapshotExpiredError: the version is below the horizon. A renewal raises it after the lease
        was revoked, or if it expired and the horizon has passed it; one that was not passed is valid
        again. VersionRegressedError: the version is above the visible one. StoreUnavailableError, which is
        ``writes_refused``: there are ``max_leases`` leases. ConfigError: the id or the time cannot be one's.
        """

    @abc.abstractmethod
    def release(self, lease_id: str) -> None:
        """Release a lease. Repeatable: one that reappears by a crash or a late renewal expires by itself."""

    @abc.abstractmethod
    def leases(self) -> list[LeaseInfo]:
        """List the leases that have not expired, the oldest version first. It writes nothing."""

    @abc.abstractmethod
    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        """Move the horizon up to ``horizon``, but not past the visible version nor a pinned one.

        The result is the horizon afterwards. Durable: on return, before anything is deleted; rows that
        ``retire`` has dropped until then are durably dropped before it, and are not dropped again.

        A lease pins its version until it expires by the store's clock, but no longer than ``max_lease_s``
        since it was first taken, and only while it is at most ``max_layers`` versions behind the visible one.
        A lease that was taken ``max_lease_s`` in the future does not pin either: the clock went back (T41).
        Readers together pin a version no longer than ``max_lease_s`` since the version ``keep_versions``
        above it became visible, with any number of leases. None: no such limit. Only ``max_layers`` limits a
        lease that ``of_writer`` named. Leases that the horizon passes are revoked in the same atomic step:
        from then on reads at their version and their renewal raise SnapshotExpiredError (I8). Limits alone
        revoke nothing: a lease at or above the horizon stays valid.

        ``max_leases``: above it ``lease`` refuses, from then on, in a store that can note it. An entry among
        the leases that is not a lease pins nothing and is removed, with a warning.

        Repeatable: it may also land late; the horizon never moves down, and never past a version that is
        pinned when the call takes effect.
        """

    @abc.abstractmethod
    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        """Drop the rows that this version has replaced.

        ``changes`` are all of the version's own changes, consumed one by one, or not at all if ``counts`` of
        them are enough. True: all is dropped. False: ``stopped`` ended it half-way, which is harmless.
        ``stopped`` is called between steps that each take a second at most while the store answers.

        It is called in version order, only for versions at or below the horizon. In every key group
        that ``changes`` touch the floor becomes at least that version, before or together with
        the deletes. Rows that a row of ``changes`` replaced are dropped, and its delete
        markers too. A table that the version emptied or dropped (``CatalogEntry.starts``) loses all its older
        rows, whichever keys ``changes`` name. Catalog entries up to it and below the horizon are removed, and
        schemas that no version names, sooner or later.

        Repeatable: also with a part of the changes, and it may land late: it never drops a row that a reader
        at or above the horizon needs.
        """

    @abc.abstractmethod
    def drop_expired(self, rows: int) -> int:
        """Check about ``rows`` rows of tables whose rows expire, and drop the expired ones.

        It starts where this instance's last call ended, and cycles through the tables. A row goes, with all
        older rows of its key, if it had expired when the horizon's version was decided: no reader at or above
        the horizon gets it. Where a row is dropped the floor becomes at least the horizon, before or
        together with it. The result is the number of keys that lost a row. The cost depends on ``rows``, not
        on the size of the tables. Repeatable: also after an interruption and concurrently, and it may land
        late.
        """

    # -- servers that lose what they acknowledged ----------------------------------------------------

    def unverified(self) -> bool:
        """Whether servers have to be compared with the log.

        A server restarted or was promoted since it was last compared, so that it may have lost its last
        writes; or a ``retire`` here met rows that were lost. It writes nothing. A store that loses nothing
        returns False.
        """
        return False

    @contextlib.contextmanager
    def comparing(self, epoch: int) -> Iterator[int]:
        """Rely on the servers as they are now, within the context, while the caller compares them.

        The caller compares every version from the given one on with the log, and applies ``missing`` parts.
        In a store that is being filled no version is to be compared: lost rows are filled again. At the
        context's end, without an error, the servers count as verified. Raises: FencedError: a higher epoch is
        claimed. StoreNotVerifiedError: the servers changed again meanwhile, and none counts as verified.
        WalGapError: they lost rows of the fill, which no log has.
        """
        pointer = self.pointer()
        yield ABOVE_ALL if pointer.filling_at else max(pointer.horizon, 1)

    def missing(self, stamp: Stamp, counts: Counts) -> dict[int, Mapping[str, int]]:
        """Return the part of ``counts`` whose key groups do not have the complete version. It writes nothing.

        A key group whose floor is at or above the version is left out: the version is merged there.
        """
        if self.can_rewrite and stamp.version <= self.pointer().horizon:
            return {}  # some rows were dropped, others rewritten: compared by keys (repair/below_horizon.py)
        return {group: counts[group] for group in counts if self.verify(stamp, {group: counts[group]})}

    def stamp(self, version: int) -> None:
        """Note with the data that every version up to this one is sealed everywhere, for ``comparing``.

        A server that has this note can only have lost later versions. It is called before the log is trimmed.
        Repeatable; the note may be lost.
        """

    def checks_of_confirm(self, *, replicas: int, aof: bool) -> list[Check]:
        """Check whether ``confirm`` can ever work with these arguments, for an open. It writes nothing."""
        if not replicas and not aof:
            return []
        return [Check("waiting", "fail", ONLY_REDIS, "durable before visible (I3)", may_be_allowed=False)]

    def confirm(self, version: int, *, replicas: int, aof: bool) -> None:
        """Wait until everything sealed so far is on ``replicas`` of every server, and with ``aof`` fsynced.

        Raises: StoreUnavailableError: it is not, within the store's time-out; repeat. ConfigError: the store
        has no replicas or fsync to wait for.
        """
        if replicas or aof:
            raise ConfigError(f"{self.where}: {ONLY_REDIS}")

    def checks(self, *, thorough: bool = False, value_bytes_max: int = VALUE_BYTES_MAX) -> list[Check]:
        """Check the store's set-up, as far as promises depend on it. It writes nothing there.

        A driver that opens makes the checks that take a round trip or two; ``thorough`` is for
        `tidegate doctor`. A setting that the servers do not report is a warning, never an error.
        ``value_bytes_max``: the largest value that the options allow. Where the servers allow less, the
        store's own ``value_bytes_max`` is that afterwards.
        """
        return []

    def await_newer(self, version: int, timeout_s: float) -> bool:
        """Sleep until a version above this one may be visible, at most ``timeout_s``.

        False, at once: this store cannot notify, poll it.
        """
        return False

    # -- checking ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        """Find missing or miscounted parts of a sealed version. It writes nothing."""

    @abc.abstractmethod
    def size(self) -> int:
        """Estimate the bytes that the store takes up, garbage included. It writes nothing."""

    def used_shares(self) -> dict[str, float]:
        """Return the used share of each server's memory, or of the disk; empty: not known."""
        return {}

    def may_evict(self) -> str | None:
        """Return why servers may drop rows by themselves, with the way out; empty: they keep all.

        None: it is not known.
        """
        return ""

    @abc.abstractmethod
    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        """Read the rows of exactly this version, whatever its start: an Arrow binary array of stored values.

        It is aligned with ``keys``. Values have their flags byte; null where there is no such row. For
        checking and repair, never for reading: rows are returned if visible or not, retired or not.
        """

    @abc.abstractmethod
    def self_check(self) -> Iterator[Finding]:
        """Find faults of the store without a log: in files, pages, indexes.

        It writes nothing, and may read everything.
        """

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        """Count the rows of every version by key group and table, of any table and any version.

        ``tables`` are those of the log; any other table is named as it is stored. It writes nothing, and may
        read everything. Rows that no reader would get at any version may be left out. A store that cannot
        count yields nothing.
        """
        return iter(())

    def part_of(self, group: int) -> str:
        """Name the part of the store that contains a key group, for messages: a file, a server."""
        return self.where

    # -- mending and ending -----------------------------------------------------------------------------

    @abc.abstractmethod
    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        """Drop everything that no reader at or above the horizon can reach and retirement has missed.

        The result counts the dropped things; with ``dry_run`` nothing is written, and it counts those that
        would be dropped. They are: rows that another row at or below the horizon has replaced, delete
        markers with nothing left to hide, rows that have expired there, rows from before their table's
        start; notes of versions at or below the horizon; expired leases; catalog entries below the horizon.
        Floors move up to the horizon before anything is dropped. ``thorough``: also ``unsearched``.
        Repeatable: in small steps, also after an interruption, while readers and a writer run.
        """

    def foreign_entry(self) -> str:
        """Return a file or folder at the store's place that is not the store's; ``''``: there is none.

        A store with such a one is not dropped. Raises: ConfigError: this user may not remove what is there.
        """
        return ""

    @abc.abstractmethod
    def drop(self, *, thorough: bool = False) -> bool:
        """Remove everything of the namespace permanently; return whether there was anything.

        The identity is removed first: after a crash in between, the namespace does not exist (and can be
        created again) or is refused, but is never half there. Repeatable: also after such a crash. Durable:
        on return nothing is left but, unless ``thorough``, ``unsearched``; another instance that still has it
        open is refused. Raises: ConfigError, nothing was removed: it has a ``foreign_entry``.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. Repeatable; nothing durable changes."""

    # -- filling from another store, which a store may leave out ---------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        """Prepare to be filled at the entry's version, while nothing is visible; return the marked version.

        One atomic conditional write marks the store: the horizon becomes that version iff nothing
        is visible, the horizon is below it, and the store's epoch <= ``epoch``. A horizon above a
        visible version of 0 means: only this version, complete, may become visible first. Then, in
        every key group, the floor becomes at least the version before the marked one, and rows at
        or below it are dropped: late rows of an older filler, or of an apply of version 1, are not written.

        The result 0 means: a version is visible here already, or a higher epoch is claimed; nothing was
        changed. Durable: on return. Repeatable: it may also land late; the horizon never moves down, and
        nothing of the marked version is touched. Raises: ConfigError: this kind of store cannot be filled; it
        can only follow a log that reaches back to version 1. StoreNotVerifiedError: a server was not compared
        with the log. WalGapError: it lost rows, and has to be dropped first. ValueError: see ``FILLED_FROM``.
        """
        raise ConfigError(
            f"{self.where}: a store of this kind cannot be filled from another one; it can follow a log that"
            " reaches back to version 1, or a new namespace from its start"
        )

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        """Make ``entry.version``, which the store was filled at and sealed, the first visible one.

        First the floor of every key group becomes that version: the applied rows are all versions up
        to it, merged. Then one atomic conditional write, as ``publish``: visible 0 -> version iff
        nothing is visible, the horizon is exactly this version and the store's epoch <= ``epoch``.
        ``newer``: the versions that follow it, all applied and sealed. The last of them becomes visible
        instead, in the same write, so no reader sees an older one as the newest. A store that
        ``SupportsRebuild`` takes none.
        Raises: StoreNotVerifiedError: servers changed since the fill began; begin it again.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot be filled from another one")

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        """Write rows again that readers at the horizon's version lack, as rows of that version, the stamp's.

        A row is the key's newest one at or below that version, as the log has it; for a key without one
        it is a delete marker. So a row that was replaced or retired never becomes visible again.

        Durable: on return. Repeatable: yes, and it may land late, after the horizon moved on: readers at
        and above the new horizon get the same rows as before. Raises: ConfigError when ``can_rewrite`` is
        False.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot write single rows of its base again")
