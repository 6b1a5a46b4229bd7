"""Leases: their records, the versions that they pin, and the checks of new ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from tidegate.base.names import NAME
from tidegate.base.steps import Steps
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
    StoreUnavailableError,
    TidegateError,
    VersionRegressedError,
    refused_to_write,
)

LEASE_MAX_S = 86_400.0
OF_WRITER = "writer-"
"""The prefix of the ids of the writer's own leases."""


class Lease(msgspec.Struct, frozen=True):
    """A reader's pin on a version."""

    lease_id: str
    version: int


class LeaseInfo(msgspec.Struct, frozen=True):
    """The state of a lease: seconds since it was first taken on this version, and until it expires."""

    lease_id: str
    version: int
    age_s: float
    expires_in_s: float


class KeptLease(NamedTuple):
    """A stored lease: times are microseconds by the store's clock."""

    lease_id: str
    version: int
    taken_us: int
    expires_us: int

    def info(self, now_us: int) -> LeaseInfo:
        """Return the lease's state at a time."""
        age_s, left_s = max(0.0, (now_us - self.taken_us) / 1e6), (self.expires_us - now_us) / 1e6
        return LeaseInfo(self.lease_id, self.version, age_s, left_s)


class Limits(NamedTuple):
    """The limits of leases; see ``Store.announce``."""

    max_lease_s: float | None = None
    max_layers: int | None = None
    keep_versions: int | None = None


def of_writer(name: str) -> str:
    """Build the id of a writer's lease, for a fill or a restore: ``max_lease_s`` does not end it.

    On Redis readers cannot take one.
    """
    return OF_WRITER + name


def horizon_allowed(
    horizon: int,
    leases: Iterable[KeptLease],
    limits: Limits,
    visible: int,
    now_us: int,
    published_us: Callable[[int], int | None],
) -> int:
    """Return ``horizon``, or the oldest version below it that a lease pins.

    ``leases`` have not expired; ``published_us`` returns the time at which a version became visible, None if
    it did not.
    """

    def young(since_us: int) -> bool:
        # Both ways from now: a time far ahead is of a clock that went back since (T41).
        return limits.max_lease_s is None or abs(now_us - since_us) < limits.max_lease_s * 1e6

    def fresh(version: int) -> bool:
        if limits.max_lease_s is None or limits.keep_versions is None:
            return True
        since_us = published_us(version + limits.keep_versions)
        return since_us is None or young(since_us)

    for lease in sorted(leases, key=lambda lease: lease.version):
        if lease.version >= horizon:
            break
        near = limits.max_layers is None or lease.version >= visible - limits.max_layers
        limited = not lease.lease_id.startswith(OF_WRITER)
        if near and not (limited and not (young(lease.taken_us) and fresh(lease.version))):
            return lease.version
    return horizon


def check_leasable(where: str, lease: Lease, ttl_s: float, visible: int, horizon: int) -> None:
    """Refuse a lease that would pin nothing, or is none.

    Raises: SnapshotExpiredError below the horizon, VersionRegressedError above the visible version,
    ConfigError as ``check_lease``.
    """
    check_lease(where, lease, ttl_s)
    if lease.version < horizon:
        raise SnapshotExpiredError(
            f"{where}: no lease on version {lease.version}, the oldest that can be read is {horizon}"
        )
    if lease.version > visible:
        raise VersionRegressedError(
            f"{where}: no lease on version {lease.version}, the visible one is {visible}"
        )


def check_lease(where: str, lease: Lease, ttl_s: float) -> None:
    """Refuse an id or a time that no lease can have. Raises: ConfigError."""
    if NAME.fullmatch(lease.lease_id) is None or not 0 < ttl_s <= LEASE_MAX_S:
        raise ConfigError(
            f"{where}: {lease.lease_id[:80]!r} for {ttl_s} s cannot be a lease: use an id of 1 to 64 of the"
            f" characters A-Z a-z 0-9 _ . -, and at most {LEASE_MAX_S:,.0f} s"
        )


def too_many_leases(where: str, most: int) -> TidegateError:
    """Build the error of ``lease`` when no more of them may be taken: ``pin`` continues without one."""
    return refused_to_write(
        StoreUnavailableError(
            f"{where}: {most:,} leases pin versions, the most that the store allows: close snapshots that are"
            " not read any more, or share one among threads"
        )
    )


def pin(store: Any, lease: Lease, ttl_s: float) -> Steps[TidegateError | None]:
    """Take or renew a lease. If the store refuses to write one, only check that the version is readable.

    Without a lease nothing holds the version, and a read of a retired one detects that itself (I8). The
    result is the store's refusal, None for a lease. Raises: as ``Store.lease``.
    """
    try:
        yield store.lease(lease, ttl_s)
    except TidegateError as refusal:
        if not refusal.writes_refused:
            raise
        pointer = yield store.pointer()
        check_leasable(store.where, lease, ttl_s, pointer.visible, pointer.horizon)
        return refusal
    return None
