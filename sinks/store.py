"""The versioned store: the interface and its guarantees. No code that does I/O stands here.

A store keeps one namespace: rows by (table, key group, key, version), and a **pointer** with
the visible version. Rows of versions above the pointer are never shown. The store never
decides anything: what is applied was decided in the log before (I5).

Implementations: ``memory_store.py`` (the reference), ``sqlite_store.py`` (embedded), and the
servers'. All pass ``tidegate.testing.store_suite``.

Every method may raise StoreUnavailableError: no answer in time. From ``pointer`` and the
reads it proves nothing but that; from ``publish``, ``claim`` and ``announce`` the effect is
unknown; ``create, apply, seal, put_schemas, heartbeat, lease, retire, vacuum, drop`` may simply be
repeated.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.wal.frame import Chunk
from tidegate.wal.record import Origin, TableAt, TableSchema


class Identity(msgspec.Struct, frozen=True):
    """Which namespace a store holds. ``uuid`` is the log's; the same in every store."""

    uuid: str
    name: str
    key_groups: int
    format: int = 1


class Pointer(msgspec.Struct, frozen=True):
    """The one small record that readers look at first.

    ``visible`` is the visible version (0: none yet) and ``digest`` that version's digest;
    ``epoch`` the highest claimed; ``horizon`` the oldest version readers may ask for;
    ``heartbeat_age_s`` seconds since the writer's last sign of life by the store's clock, None
    when there was none.
    """

    visible: int = 0
    digest: str = ""
    epoch: int = 0
    writer: str = ""
    horizon: int = 0
    heartbeat_age_s: float | None = None


class CatalogEntry(msgspec.Struct, frozen=True):
    """What a store tells readers of one visible version (readers have no log).

    ``tables`` holds every table that exists at this version; ``changes`` counts this
    version's upserts and deletes per table. ``published_at_us`` is set by the store's clock.
    """

    version: int
    digest: str
    attempt: str
    origin: Origin
    decided_at_us: int
    tables: dict[str, TableAt]
    changes: dict[str, int]
    parallelism: dict[str, dict[str, int]] = {}
    published_at_us: int = 0


class Stamp(msgspec.Struct, frozen=True):
    """The version being applied and its write timestamp, the decision's (never the clock's)."""

    version: int
    decided_at_us: int


class Lease(msgspec.Struct, frozen=True):
    """A reader's pin on a version."""

    lease_id: str
    version: int


class LeaseInfo(msgspec.Struct, frozen=True):
    """A lease as it stands: seconds since it was first taken on this version, and until it runs out."""

    lease_id: str
    version: int
    age_s: float
    expires_in_s: float


class Vacuumed(msgspec.Struct, frozen=True):
    """What a vacuum found that no reader can reach: rows of tables, delete markers among them;
    the writer's notes of what was applied and sealed; leases that ran out; catalog entries.
    """

    rows: int = 0
    notes: int = 0
    leases: int = 0
    entries: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One thing ``verify`` found wrong, in words: where, what was expected, what is there."""

    where: str
    expected: str
    found: str


Counts = Mapping[int, Mapping[str, int]]
"""Changes per key group and table."""


class Store(abc.ABC):
    """One namespace in one store. An instance may be used by several threads.

    ``where`` names the store in messages; it never shows a password.
    """

    where: str

    # -- identity ------------------------------------------------------------------------------

    @abc.abstractmethod
    def identity(self) -> Identity | None:
        """Which namespace is here; None when nothing was made. Writes nothing."""

    @abc.abstractmethod
    def create(self, identity: Identity) -> Identity:
        """Make the namespace if none is here; what stands here afterwards.

        Durable on return. May be repeated and raced: the first one wins, and the caller
        compares what is returned with what it wanted. ConfigError: it cannot be made here.
        """

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

        One atomic conditional write: visible v-1 -> v iff visible is exactly v-1 and the
        store's epoch <= ``epoch``; it sets visible, digest and epoch, and the catalog entry is
        readable whenever the version is. True: it happened and is durable. False: the
        condition did not hold, nothing changed. StoreUnavailableError: unknown, read back.
        """

    # -- writing a decided version ---------------------------------------------------------------

    @abc.abstractmethod
    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        """Keep these schemas under their ids. Durable before a later ``publish``. May be repeated."""

    @abc.abstractmethod
    def apply(self, stamp: Stamp, chunk: Chunk) -> None:
        """Write a chunk's changes, invisible, under ``stamp.version``.

        May be repeated any number of times, by anyone, at any time later: the same chunk
        leaves the same rows, and in a key group whose floor is at or above the version nothing
        at all. Durable no later than the seal of its key groups.
        """

    @abc.abstractmethod
    def seal(self, stamp: Stamp, counts: Counts) -> None:
        """Mark the version as whole in these key groups, after counting what was applied.

        Durable on return, with everything applied there. May be repeated: sealed already, or
        at or below the floor, is success. IncompleteError: some group holds other counts than
        ``counts`` says; nothing was sealed in it, apply again.
        """

    # -- reading -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        """Entries of visible versions in [oldest, newest], ascending; retired ones left out."""

    @abc.abstractmethod
    def schemas(self) -> dict[str, TableSchema]:
        """All schemas by id."""

    @abc.abstractmethod
    def get_many(self, table: str, keys: Sequence[bytes], version: int, start: int = 0) -> Any:
        """Values of keys at a version: an Arrow binary array aligned with ``keys``.

        Null where the key is absent or deleted; no flags byte. The newest row with
        ``start <= its version <= version`` counts, ``start`` being the table's start at that
        version. SnapshotExpiredError: the version is below the horizon or a floor (T28).
        VersionRegressedError: it is above the visible version; nothing half applied is shown.
        """

    @abc.abstractmethod
    def scan(self, table: str, group: int, version: int, start: int = 0) -> Iterator[Any]:
        """Live rows of one key group at a version, by key: record batches (key, value).

        Values have no flags byte. Nothing is held open in the store between batches.
        SnapshotExpiredError, VersionRegressedError: as ``get_many``, also in the middle of the scan.
        """

    # -- leases and retirement -----------------------------------------------------------------------

    @abc.abstractmethod
    def lease(self, lease: Lease, ttl_s: float) -> None:
        """Take or renew a lease for ``ttl_s`` from now, by the store's clock.

        Durable on return. May be repeated: a repeat renews, and the lease keeps the time it was
        first taken. With another version it is a new pin, first taken now.

        SnapshotExpiredError: the version is below the horizon. That is what a renewal meets
        after the lease was revoked, or when it ran out and the horizon has passed it; one that
        ran out and was not passed is good again. Atomic with ``announce``.
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
        self, horizon: int, *, max_lease_s: float | None = None, max_layers: int | None = None
    ) -> int:
        """Move the horizon up to ``horizon``, but not past the visible version nor past a version
        that a lease holds; the horizon that stands. Durable on return, before anything is deleted.

        A lease holds its version until it runs out by the store's clock, but no longer than
        ``max_lease_s`` since it was first taken (a lease that the clock says was taken so long
        from now does not hold either: the clock went back, T41), and only while it is at most
        ``max_layers`` versions behind the visible one. None: no such limit. Leases that the
        horizon passes are revoked in the same atomic step: from then on reads at their version
        and their renewal raise SnapshotExpiredError (I8). Limits revoke nothing by themselves:
        a lease at or above the horizon stays good.

        May be repeated, and may land late: the horizon never goes down, and never past what
        holds when the call takes effect.
        """

    @abc.abstractmethod
    def retire(self, version: int, changes: Iterable[Chunk]) -> None:
        """Drop what ``version`` has replaced; ``changes`` are all of that version's own changes,
        consumed one by one.

        Called in version order, only for versions at or below the horizon. In every key group
        that ``changes`` touch the floor becomes at least ``version``, before or together with
        the deletes; rows that a row of ``changes`` replaced are dropped, and its delete
        markers too. A table that ``version`` emptied loses all its older rows, whichever keys
        ``changes`` name. Catalog entries up to ``version`` and below the horizon go.

        May be repeated, also with a part of the changes, and may land late: what no reader at
        or above the horizon needs is all it ever drops.
        """

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

        Rows that another row at or below the horizon has replaced, delete markers with nothing
        left to hide, rows from before their table's start; notes of versions at or below the
        horizon; leases that ran out; catalog entries below the horizon. Floors go up to the
        horizon before anything is dropped. In small steps, beside readers and a writer; may be
        repeated and interrupted.
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
