"""The leases of a gate's open snapshots and scans, and the thread that renews them.

``aio/leases.py`` has the task that renews those of an event loop.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import weakref
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.errors import SnapshotExpiredError, TidegateError
from tidegate.reader.table import Steps, run
from tidegate.sinks.rules.leases import Lease

logger = logging.getLogger("tidegate")

PER_TTL = 3
"""The number of renewals in a lease's time: two of them may be lost."""
RETRIES_PER_TTL = 12
"""The number of retries in a lease's time, after the reply of a renewal was lost."""


class ActiveLease:
    """A lease with an owner in this process; a thread or a task renews it.

    ``deadline`` is by this process's monotonic clock, and never later than the store's: it
    counts from before the request that was answered. When the owner is collected as garbage, so is the
    lease: it is no longer renewed, and expires.
    """

    def __init__(self, lease: Lease, ttl_s: float, deadline: float) -> None:
        self.lease = lease
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.due = deadline - ttl_s * (1 - 1 / PER_TTL)
        self.revoked: SnapshotExpiredError | None = None
        self._has_run_out = False
        self._process = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process took it; a child process does not touch its parent's leases."""
        return self._process == os.getpid()

    def renewed(self, asked_at: float) -> None:
        """Note that a renewal that was requested at this time was granted."""
        self.deadline = asked_at + self.ttl_s
        self.due = asked_at + self.ttl_s / PER_TTL

    def not_renewed(self, asked_at: float, error: Exception) -> None:
        """Note the error of a renewal: the lease was revoked, or its state is unknown."""
        if isinstance(error, SnapshotExpiredError):
            self.revoked = error
        else:
            if not isinstance(error, TidegateError):
                logger.error("lease %s was not renewed: %s", self.lease.lease_id, error, exc_info=error)
            # It may have been renewed or not: the deadline stays, and the same request is sent again.
            self.due = asked_at + self.ttl_s / RETRIES_PER_TTL

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


class LeaseFlow:
    """The leases of one gate: the part that is the same in threads and on an event loop."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._leases: dict[str, weakref.ref[ActiveLease]] = {}  # by lease id

    def _alive(self) -> list[ActiveLease]:
        """List the leases that are still to be renewed, and remove the others."""
        alive, now = [], self._clock.monotonic()
        for lease_id, ref in list(self._leases.items()):
            lease = ref()
            if lease is None or lease.revoked is not None or lease.deadline <= now:
                self._leases.pop(lease_id, None)  # a scan that is collected meanwhile may have released it
            else:
                alive.append(lease)
        return alive

    def _renew(self, active: ActiveLease) -> Steps[None]:
        with one_call(anew=True):  # no part of the call that took the lease
            asked_at = self._clock.monotonic()
            if asked_at >= active.deadline:
                return  # its owner is refused already, and stays so
            try:
                yield self._store.lease(active.lease, active.ttl_s)
            except Exception as error:  # noqa: BLE001 - one lease's error may not end the renewal of the others
                active.not_renewed(asked_at, error)
                return
            active.renewed(asked_at)
            if active.lease.lease_id not in self._leases:
                # Released meanwhile: this renewal may have taken effect after the release.
                yield from self._release(active.lease.lease_id)

    def _release(self, lease_id: str) -> Steps[None]:
        """Release a lease if the store answers; else it expires by itself."""
        with contextlib.suppress(TidegateError):
            yield self._store.release(lease_id)


class LeaseKeeper(LeaseFlow):
    """The lease keeper of one gate: it takes, renews and releases leases. Thread-safe.

    Its thread exists only while there are leases. It is a daemon, and does not survive a
    fork: a child process starts its own when it takes a lease (T13).
    """

    def __init__(self, store: Any, clock: Clock) -> None:
        super().__init__(store, clock)
        self._start_over()
        _all.add(self)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._leases = {}
        self._left: collections.deque[str] = collections.deque()  # to be released
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, version: int, ttl_s: float) -> ActiveLease:
        """Take a new lease on a version, and renew it from now on. Raises: as ``Store.lease``."""
        lease = Lease(self._clock.new_id(), version)
        deadline = self._clock.monotonic() + ttl_s
        self._store.lease(lease, ttl_s)
        active = ActiveLease(lease, ttl_s, deadline)
        with self._changed:
            self._leases[lease.lease_id] = weakref.ref(active)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="tidegate-leases", daemon=True)
                self._thread.start()
            self._changed.notify()
        return active

    def give_back(self, active: ActiveLease) -> None:
        """Stop the renewals of a lease, and release it if the store answers; else it expires by itself."""
        with self._changed:
            self._leases.pop(active.lease.lease_id, None)
        if active.is_ours and not self._closed:
            with one_call():
                run(self._release(active.lease.lease_id))

    def leave(self, active: ActiveLease) -> None:
        """Do ``give_back`` soon, in the keeper's thread: this call makes no request."""
        with self._changed:
            if self._leases.pop(active.lease.lease_id, None) is not None:
                self._left.append(active.lease.lease_id)
            self._changed.notify()

    def close(self) -> None:
        """Release all leases and end the thread. Repeatable."""
        with self._changed:
            leases, thread = [ref() for ref in self._leases.values()], self._thread
        with one_call():
            for active in leases:
                if active is not None:
                    self.give_back(active)
        with self._changed:
            self._closed = True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def renew_due(self) -> None:
        """Renew the leases that are due."""
        with self._changed:
            leases = self._alive()
        for active in leases:
            if active.due <= self._clock.monotonic():
                run(self._renew(active))

    def _run(self) -> None:
        while True:
            self.renew_due()
            self._give_back_left()
            with self._changed:
                due = [active.due for active in self._alive()]
                if self._left:
                    continue
                if self._closed or not due:
                    self._thread = None
                    return
                self._changed.wait(max(0.0, min(due) - self._clock.monotonic()))

    def _give_back_left(self) -> None:
        while self._left:
            lease_id = self._left.popleft()
            try:
                with one_call(anew=True):
                    self._store.release(lease_id)
            except TidegateError:
                pass  # it expires by itself
            except Exception:
                logger.exception("lease %s was not given back", lease_id)

    # -- forks -----------------------------------------------------------------------------------

    def leave_to_parent(self) -> None:
        """Forget the parent's leases and thread, in a child process."""
        closed = self._closed
        self._start_over()
        self._closed = closed


_all: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


def _after_fork() -> None:
    for keeper in list(_all):
        keeper.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
