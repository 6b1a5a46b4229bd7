"""The versioned store: the interface and its guarantees. No code that does I/O stands here.

A store keeps one namespace: rows by (table, key group, key, version), and a **pointer** with
the visible version. Rows of versions above the pointer are never shown. The store never
decides anything: what is applied was decided in the log before (I5).

Implementations: ``sinks/memory/store.py`` (the reference), ``sinks/sqlite/store.py`` (embedded), and the
servers'. All pass ``tidegate.testing.store.suite``.

Every method may raise StoreUnavailableError: no answer in time. From ``pointer`` and the
reads it proves nothing but that; from ``publish``, ``claim`` and ``announce`` the effect is
unknown; ``create, begin, apply, seal, put_schemas, heartbeat, lease, retire, vacuum, drop`` may be repeated.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.base.checks import ONLY_REDIS, Check
from tidegate.errors import ConfigError
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.records import (
    ABOVE_ALL,
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
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
    """One namespace in one store. An instance may be used by several threads.

    ``where`` names the store in messages; it never shows a password.
    """

    where: str
    keep_versions_default = 100  # so many stay readable unless ``keep_versions`` says otherwise
    value_bytes_max: int | None = None
    """The largest value that the store takes; None: any that the options allow."""
    apply_bytes = 0
    """How much of a version ``apply`` is best given at once, as bytes of keys and values; 0: a frame."""
    size_counts = ""
    """Whose bytes ``size`` counts, in words, where they are not this namespace's alone."""
    layers_default = 1_000
    """So many versions beyond those may leases hold, unless ``max_layers`` says otherwise: where what a
    version costs grows with its rows only, the limit is there for the disk, not for the reads.
    """
    can_be_filled = False
    """Whether ``begin_fill`` and ``publish_filled`` work here."""
    can_rewrite = False
    """Whether ``rewrite`` works here."""

    # -- identity ------------------------------------------------------------------------------

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """Which namespace is here; None when nothing was made. Writes nothing."""

    def prepare(self) -> list[str]:
        """Make what all namespaces of the place share, where there is such a thing, as far as it is
        missing; what was made, in words. Called by `tidegate init` and `tidegate store add`, never by
        a query.

        Durable on return. May be repeated and raced. ConfigError: it cannot be made here, or what
        is there is made otherwise.
        """
        return []

    @abc.abstractmethod
    def create(self, identity: Identity) -> Identity:
        """Make the namespace if none is here; what stands here afterwards.

        Durable on return. May be repeated and raced: the first one wins, and the caller
        compares what is returned with what it wanted. ConfigError: it cannot be made here.
        """

    @abc.abstractmethod
    def aliases(self) -> Aliases:
        """The aliases of the place that this namespace lies in, or would; not its own."""

    # -- the pointer ---------------------------------------------------------------------------

    @abc.abstractmethod
    def pointer(self) -> Pointer:
        """The pointer, as one consistent read of the newest acknowledged state."""

    @abc.abstractmethod
    def claim(self, epoch: int, writer: str) -> int:
        """Raise the store's epoch to at least ``epoch``, atomically; the epoch that stands.

        Durable on return. May be repeated. The caller is fenced when the returned epoch is
        above its own. From a claim on, no writer with a lower epoch can publish (I6).

        A claim is not a heartbeat: the pointer keeps the age of the last one, an older
        writer's. Whoever claims beats once after it (``committers/epoch.claim_epoch``).
        """

    @abc.abstractmethod
    def heartbeat(self, epoch: int) -> None:
        """Note the writer's sign of life by the store's clock, if ``epoch`` is the claimed one."""

    @abc.abstractmethod
    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        """Make ``entry.version`` visible, if the version before it is and no higher epoch is claimed.

        One atomic conditional write: visible v-1 -> v iff visible is exactly v-1, the store is not being
        filled (horizon < v), and its epoch <= ``epoch``; it sets visible, digest and epoch, and the
        catalog entry is readable whenever the version is. True: it happened and is durable. False: the
        condition did not hold, nothing changed. StoreUnavailableError: unknown, read back.
        """

    # -- writing a decided version ---------------------------------------------------------------

    @abc.abstractmethod
    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        """Keep these schemas under their ids. Durable before a later ``publish``. May be repeated."""

    @abc.abstractmethod
    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        """Write the changes of chunks, invisible, under ``stamp.version``.

        May be repeated any number of times, by anyone, at any time later, with others beside it: the
        same chunk leaves the same rows, and in a key group whose floor is at or above the version nothing
        at all. Durable no later than the seal of its key groups. Of another attempt than the one that
        was begun nothing is ever read or sealed; WalGapError where that is known at once.
        """

    @abc.abstractmethod
    def seal(self, stamp: Stamp, counts: Counts) -> None:
        """Mark the version as whole in these key groups, after counting what was applied.

        Durable on return, with everything applied there. May be repeated: sealed already, or
        at or below the floor, is success. IncompleteError: some group holds other counts than
        ``counts`` says; nothing was sealed in it, apply again. WalGapError: of another attempt.
        """

    # -- reading -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        """Entries of visible versions in [oldest, newest], ascending; retired ones left out."""

    @abc.abstractmethod
    def schemas(self) -> dict[str, TableSchema]:
        """All schemas by id."""

    @abc.abstractmethod
    def get_stored(self, table: str, keys: Sequence[bytes], version: int, start: int = 0) -> Any:
        """Stored values of keys at a version, with their flags byte: an Arrow binary array aligned with
        ``keys``, null where there is no row. What is deleted or has expired is given as it lies, or null.

        The newest row with ``start <= its version <= version`` counts, ``start`` being the table's
        start at that version. SnapshotExpiredError: the version is below the horizon or a floor (T28).
        VersionRegressedError: it is above the visible version; nothing half applied is shown.
        """

    def get_stored_one(self, table: str, key: bytes, version: int, start: int = 0) -> bytes | None:
        """The stored value of one key, as ``get_stored`` gives it."""
        found: bytes | None = self.get_stored(table, [key], version, start)[0].as_py()
        return found

    def get_many(
        self, table: str, keys: Sequence[bytes], version: int, start: int = 0, at_us: int | None = None
    ) -> Any:
        """Values of keys at a version: an Arrow binary array aligned with ``keys``, without flags byte.

        Null where the key is absent, deleted, or expired at ``at_us``, the version's ``decided_at_us``.
        Errors as ``get_stored``; ValueError: a value expires and no time was given.
        """
        return values_at(self.where, table, keys, self.get_stored(table, keys, version, start), at_us)

    def get(
        self, table: str, key: bytes, version: int, start: int = 0, at_us: int | None = None
    ) -> bytes | None:
        """The value of one key, as ``get_many`` gives it."""
        return value_at(self.where, table, key, self.get_stored_one(table, key, version, start), at_us)

    @abc.abstractmethod
    def scan_stored(self, table: str, group: int, version: int, start: int = 0) -> Iterator[Any]:
        """Rows of one key group at a version, by key: record batches (key, value) of stored values, and
        errors as ``get_stored`` has them. Nothing is held open in the store between batches.
        """

    def scan(
        self, table: str, group: int, version: int, start: int = 0, at_us: int | None = None
    ) -> Iterator[Any]:
        """Live rows of one key group at a version, by key: record batches (key, value), none empty.

        Values have no flags byte. What is live, and errors: as ``get_many``.
        """
        for batch in self.scan_stored(table, group, version, start):
            live = live_rows(batch, at_us, self.where, table)
            if live.num_rows:
                yield live

    # -- leases and retirement -----------------------------------------------------------------------

    @abc.abstractmethod
    def lease(self, lease: Lease, ttl_s: float) -> None:
        """Take or renew a lease for ``ttl_s`` from now, by the store's clock.

        Durable on return. May be repeated: a repeat renews, and the lease keeps the time it was
        first taken. With another version it is a new pin, first taken now.

        SnapshotExpiredError: the version is below the horizon. That is what a renewal meets
        after the lease was revoked, or when it ran out and the horizon has passed it; one that
        ran out and was not passed is good again. Atomic with ``announce``.
        VersionRegressedError: the version is above the visible one. StoreUnavailableError: there are as many
        leases as ``max_leases`` allows. ConfigError: it cannot be a lease.
        """

    @abc.abstractmethod
    def release(self, lease_id: str) -> None:
        """Give a lease back. May be repeated. One that comes back by a crash or by a renewal that
        lands late only runs out later.
        """

    @abc.abstractmethod
    def leases(self) -> list[LeaseInfo]:
        """The leases that have not run out, the oldest version first. Writes nothing."""

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
        """Move the horizon up to ``horizon``, but not past the visible version nor past a version
        that a lease holds; the horizon that stands. Durable on return, before anything is deleted;
        and what ``retire`` has dropped until then is durable before it: nobody drops that again.

        A lease holds its version until it runs out by the store's clock, but no longer than
        ``max_lease_s`` since it was first taken (a lease that the clock says was taken so long
        from now does not hold either: the clock went back, T41), and only while it is at most
        ``max_layers`` versions behind the visible one. Readers together hold a version no longer than
        ``max_lease_s`` since the version ``keep_versions`` above it became visible, however many leases they
        take. None: no such limit. ``max_layers`` alone limits a lease that ``of_writer`` named. Leases
        that the horizon passes are revoked in the same atomic step: from then on reads at their version
        and their renewal raise SnapshotExpiredError (I8). Limits revoke nothing by themselves:
        a lease at or above the horizon stays good.

        ``max_leases``: above it ``lease`` refuses, from then on, in a store that can note it. What others
        put among the leases, and is none, holds nothing and is removed, with a warning.

        May be repeated, and may land late: the horizon never goes down, and never past what
        holds when the call takes effect.
        """

    @abc.abstractmethod
    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        """Drop what this version has replaced; ``changes`` are all of that version's own changes,
        consumed one by one, or not at all where ``counts`` of them say enough. True: all is dropped.
        False: ``stopped`` ended it half-way, which harms nobody. It is asked between steps that each take
        a second at most while the store answers.

        Called in version order, only for versions at or below the horizon. In every key group
        that ``changes`` touch the floor becomes at least that version, before or together with
        the deletes; rows that a row of ``changes`` replaced are dropped, and its delete
        markers too. A table that the version emptied loses all its older rows, whichever keys
        ``changes`` name. Catalog entries up to it and below the horizon go.

        May be repeated, also with a part of the changes, and may land late: what no reader at
        or above the horizon needs is all it ever drops.
        """

    @abc.abstractmethod
    def drop_expired(self, rows: int) -> int:
        """Look at about so many rows of tables whose rows expire, from where this instance's last call
        ended, round and round, and drop those that had expired when the horizon's version was
        decided, with all older rows of their keys; how many keys lost a row.

        No reader at or above the horizon gets them. Where something goes the floor becomes at
        least the horizon, before or together with it. Costs what ``rows`` says, however
        much the tables hold. May be repeated and interrupted, run beside another's, and land late.
        """

    # -- servers that lose what they acknowledged ----------------------------------------------------

    def unverified(self) -> bool:
        """Whether a server restarted or was promoted since it was last compared with the log, so that it may
        have lost its last writes; or a ``retire`` here met rows that were lost. Writes nothing. Stores that
        lose nothing: never.
        """
        return False

    @contextlib.contextmanager
    def comparing(self, epoch: int) -> Iterator[int]:
        """Rely on the servers as they are now, for as long as the context lasts, while the caller
        compares every version from the one given on with the log, and applies what is ``missing``.

        Of a store that is being filled no version is to be compared: what it lost is filled again.
        Left without an error: they count as verified from now on, unless a higher epoch is claimed
        (FencedError). StoreNotVerifiedError: they changed again meanwhile, nothing counts.
        WalGapError: they lost what no log has, of what the store was filled with.
        """
        pointer = self.pointer()
        yield ABOVE_ALL if pointer.filling_at else max(pointer.horizon, 1)

    def missing(self, stamp: Stamp, counts: Counts) -> dict[int, Mapping[str, int]]:
        """The part of ``counts`` whose key groups do not hold the version whole. Writes nothing.

        A key group whose floor is at or above the version is not named: it is merged there.
        """
        if self.can_rewrite and stamp.version <= self.pointer().horizon:
            return {}  # some rows were dropped, others rewritten: compared by keys (repair/below_horizon.py)
        return {group: counts[group] for group in counts if self.verify(stamp, {group: counts[group]})}

    def stamp(self, version: int) -> None:
        """Note beside the data that every version up to this one is sealed everywhere, for
        ``comparing``: what a server that shows this note has lost can only be later. Called
        before the log is trimmed. May be repeated and may be lost.
        """

    def checks_of_confirm(self, *, replicas: int, aof: bool) -> list[Check]:
        """What keeps ``confirm`` from ever working as it will be asked; for a driver that opens. Writes
        nothing.
        """
        if not replicas and not aof:
            return []
        return [Check("waiting", "fail", ONLY_REDIS, "durable before visible (I3)", may_be_allowed=False)]

    def confirm(self, version: int, *, replicas: int, aof: bool) -> None:
        """Wait until everything sealed so far is on so many replicas of every server, and fsynced
        where ``aof``. StoreUnavailableError: it is not, within the store's time-out; repeat.
        ConfigError: the store has no such thing.
        """
        if replicas or aof:
            raise ConfigError(f"{self.where}: {ONLY_REDIS}")

    def checks(self, *, thorough: bool = False) -> list[Check]:
        """How the store is set up, as far as promises rest on it. Writes nothing.

        A driver that opens asks for what a round trip or two can tell; ``thorough`` is for
        `tidegate doctor`. What the servers do not tell is a warning, never an error.
        """
        return []

    def await_newer(self, version: int, timeout_s: float) -> bool:
        """Sleep until a version above this one may be visible, at most so long. False, at once: this
        store cannot tell, look now and then.
        """
        return False

    # -- checking ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        """What of a sealed version is missing or miscounted here. Writes nothing."""

    @abc.abstractmethod
    def size(self) -> int:
        """About how many bytes the store takes up, garbage included. Changes nothing."""

    @abc.abstractmethod
    def rows_of(self, table: str, keys: Sequence[bytes], version: int) -> Any:
        """What was written at exactly this version: stored values with their flags byte, aligned
        with ``keys``, as an Arrow binary array; null where there is no such row.

        For checking and repair, never for reading: visible or not, retired or not.
        """

    @abc.abstractmethod
    def self_check(self) -> Iterator[Finding]:
        """What the store finds wrong with itself, without a log: files, pages, indexes. Writes
        nothing; may read everything there is.
        """

    def part_of(self, group: int) -> str:
        """The part of the store that a key group lies in, for messages: a file, a server."""
        return self.where

    # -- mending and ending -----------------------------------------------------------------------------

    @abc.abstractmethod
    def vacuum(self, *, dry_run: bool = False) -> Vacuumed:
        """Drop what no reader at or above the horizon can reach and retirement has missed; what
        went. With ``dry_run`` nothing is written, and the answer is what would go.

        Rows that another row at or below the horizon has replaced, delete markers with nothing left to
        hide, rows that have expired there, rows from before their table's start; notes of versions at or
        below the horizon; leases that ran out; catalog entries below the horizon. Floors go up to the
        horizon before anything is dropped. In small steps, beside readers and a writer; may be repeated
        and interrupted.
        """

    @abc.abstractmethod
    def drop(self) -> bool:
        """Remove everything of the namespace, for ever; whether there was anything.

        The identity goes first: after a crash in between, the namespace is not there (and can be
        made anew) or is refused, never half of it. May be repeated, also after such a crash.
        On return nothing is left; another instance that still has it open is refused.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. May be repeated; nothing durable changes."""

    # -- filling from another store, which a store may leave out ---------------------------------

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        """Make ready to be filled at the entry's version, while nothing is visible; the version that stands.

        One atomic conditional write marks the store: the horizon becomes that version iff nothing
        is visible, the horizon is below it, and the store's epoch <= ``epoch``. A horizon above a
        visible version of 0 means: nothing but this version, whole, may become visible first. Then, in
        every key group, the floor becomes at least the version before the one that stands, and what lies at
        or below it is dropped: what an older filler, or an apply of version 1, brings late is not written.

        Durable on return. May be repeated and may land late: the horizon never goes down, and nothing of the
        version that stands is touched. 0: something is visible here already, or a higher epoch is claimed;
        nothing was changed. ConfigError: this kind of store cannot be filled; it can only follow a log that
        reaches back to version 1. StoreNotVerifiedError: a server was not compared with the log.
        WalGapError: it lost what it had, and has to be dropped first. ValueError: see ``FILLED_FROM``.
        """
        raise ConfigError(
            f"{self.where}: a store of this kind cannot be filled from another one; it can follow a log that"
            " reaches back to version 1, or a new namespace from its start"
        )

    def publish_filled(self, entry: CatalogEntry, epoch: int) -> bool:
        """Make ``entry.version``, which the store was filled at and sealed, the first visible one.

        First the floor of every key group becomes that version: what was applied is all versions up
        to it, merged. Then one atomic conditional write, as ``publish``: visible 0 -> version iff
        nothing is visible, the horizon is exactly this version and the store's epoch <= ``epoch``.
        StoreNotVerifiedError: servers changed since the fill began; begin it again.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot be filled from another one")

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        """Write rows again that readers at the horizon's version lack, as rows of that version, the stamp's.

        A row is the key's newest one at or below that version, as the log has it; of a key that has none
        there, a delete marker. So a row that was replaced or retired never comes back.

        Durable: on return. Repeatable: yes, and it may land late, after the horizon moved on: readers at
        and above the new horizon get what they got before. Raises: ConfigError where ``can_rewrite`` is
        False.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot write single rows of its base again")
