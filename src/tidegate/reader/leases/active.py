"""A lease with its holds in this process: how long it is good, and when it is due."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tidegate.base.clock import Clock
from tidegate.errors import SnapshotExpiredError, TidegateError, VersionRegressedError
from tidegate.sinks.rules.leases import Lease

logger = logging.getLogger("tidegate")

PER_TTL = 3
"""The number of renewals in a lease's time: two of them may be lost."""
RETRIES_PER_TTL = 12
"""The number of retries in a lease's time, after the reply of a renewal was lost."""
SHARE_S = 5.0
"""The longest time after a lease was taken in which new snapshots share it. A writer's ``max_lease_s`` counts
from the time of taking, so a snapshot loses this part of it."""


def _nothing() -> None:
    pass


class Hold:
    """One snapshot's share of a lease. A hold that is collected as garbage has ended."""

    __slots__ = ("__weakref__", "active")

    def __init__(self, active: ActiveLease) -> None:
        self.active = active
        active.holds.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # incomplete; or the interpreter ends
            if self in self.active.holds:  # nobody ended it: the thread releases the lease
                self.active.holds.discard(self)
                self.active.collected()

    def check(self, clock: Clock) -> None:
        """Refuse reads when the lease may be gone (I8). Raises: as ``ActiveLease.check``."""
        self.active.check(clock)


class Asked:
    """A call's request for a lease, whose end others wait for."""

    def __init__(self) -> None:
        self.active: ActiveLease | None = None
        self.sent = False
        self._pending = threading.Lock()
        self._pending.acquire()

    def end(self) -> None:
        """Wake the calls that wait. Repeatable."""
        with contextlib.suppress(RuntimeError):
            self._pending.release()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the request; False: it did not come in time."""
        if not self._pending.acquire(timeout=max(seconds, 0.0)):
            return False
        self.end()
        return True


class ActiveLease:
    """A lease with holds in this process; a thread or a task renews it.

    ``deadline`` is by this process's monotonic clock, and never later than the store's: it
    counts from before the request that was answered. When all holds are collected as garbage, it is no
    longer renewed, and is released or expires. ``request``: of the keeper, what takes the lease.
    """

    def __init__(self, lease: Lease, ttl_s: float, deadline: float, request: Any = None) -> None:
        self.lease = lease
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.due = deadline - ttl_s * (1 - 1 / PER_TTL)
        self.revoked: TidegateError | None = None
        self.holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self.granted = False
        self.refused: BaseException | None = None
        self.request = request
        self.collected: Callable[[], None] = _nothing
        self._shared_until = deadline - ttl_s + min(SHARE_S, ttl_s / RETRIES_PER_TTL)
        self._has_run_out = False
        self._process = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process took it; a child process does not touch its parent's leases."""
        return self._process == os.getpid()

    def is_shared_at(self, now: float) -> bool:
        """Whether a new snapshot may hold it: only soon after it was taken."""
        ended = self._has_run_out or self.revoked is not None or self.refused is not None
        return not ended and now < self._shared_until

    def renewed(self, asked_at: float) -> None:
        """Note that a renewal that was requested at this time was granted."""
        self.deadline = asked_at + self.ttl_s
        self.due = asked_at + self.ttl_s / PER_TTL

    def not_renewed(self, asked_at: float, error: Exception) -> None:
        """Note the error of a renewal: the lease was revoked, or its state is unknown."""
        if isinstance(error, SnapshotExpiredError | VersionRegressedError):  # the store may have gone back
            self.revoked = error
        else:
            if not isinstance(error, TidegateError):
                logger.error("lease %s was not renewed: %s", self.lease.lease_id, error, exc_info=error)
            # It may have been renewed or not: the deadline stays, and the same request is sent again.
            self.due = asked_at + self.ttl_s / RETRIES_PER_TTL

    def refused_read(self, error: SnapshotExpiredError) -> None:
        """Note that a read was refused: the version was retired, whatever a server answers later."""
        if self.revoked is None and not self._has_run_out:
            self.revoked = error

    def check(self, clock: Clock) -> None:
        """Refuse reads after the deadline, when the lease may be gone (I8).

        Raises: SnapshotExpiredError: it has expired by this process's clock, or was revoked; from then on
        always.
        """
        if self.revoked is not None:
            raise SnapshotExpiredError(
                f"the lease of this snapshot on version {self.lease.version} was revoked: {self.revoked}"
            )
        if self._has_run_out or clock.monotonic() >= self.deadline:
            self._has_run_out = True  # even if a renewal in progress is granted later
            raise SnapshotExpiredError(
                f"the lease of this snapshot on version {self.lease.version} has run out: it was not renewed"
                f" for {self.ttl_s:g} s, because the store did not answer or this process stood still; take a"
                " new snapshot, or ask for a longer lease_s"
            )
