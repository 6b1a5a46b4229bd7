"""The lease keeper of a gate: a background thread that renews the leases of open snapshots and scans."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import weakref

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.errors import SnapshotExpiredError, TidegateError
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store

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


def alive_of(held: dict[str, weakref.ref[ActiveLease]], now: float) -> list[ActiveLease]:
    """List the leases that are still to be renewed, and remove the others from ``held``."""
    alive = []
    for lease_id, ref in list(held.items()):
        one = ref()
        if one is None or one.revoked is not None or one.deadline <= now:
            held.pop(lease_id, None)  # a scan that is collected meanwhile may have released it
        else:
            alive.append(one)
    return alive


class LeaseKeeper:
    """The lease keeper of one gate: it takes, renews and releases leases. Thread-safe.

    Its thread exists only while there are leases. It is a daemon, and does not survive a
    fork: a child process starts its own when it takes a lease (T13).
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._start_over()
        _all.add(self)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[str, weakref.ref[ActiveLease]] = {}  # by lease id
        self._left: collections.deque[str] = collections.deque()  # to be released
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, version: int, ttl_s: float) -> ActiveLease:
        """Take a new lease on a version, and renew it from now on. Raises: as ``Store.lease``."""
        lease = Lease(self._clock.new_id(), version)
        deadline = self._clock.monotonic() + ttl_s
        self._store.lease(lease, ttl_s)
        held = ActiveLease(lease, ttl_s, deadline)
        with self._changed:
            self._held[lease.lease_id] = weakref.ref(held)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="tidegate-leases", daemon=True)
                self._thread.start()
            self._changed.notify()
        return held

    def give_back(self, held: ActiveLease) -> None:
        """Stop the renewals of a lease, and release it if the store answers; else it expires by itself."""
        with self._changed:
            self._held.pop(held.lease.lease_id, None)
        if held.is_ours and not self._closed:
            with one_call(), contextlib.suppress(TidegateError):
                self._store.release(held.lease.lease_id)

    def leave(self, held: ActiveLease) -> None:
        """Do ``give_back`` soon, in the keeper's thread: this call makes no request."""
        with self._changed:
            if self._held.pop(held.lease.lease_id, None) is not None:
                self._left.append(held.lease.lease_id)
            self._changed.notify()

    def close(self) -> None:
        """Release all leases and end the thread. Repeatable."""
        with self._changed:
            held, thread = [one() for one in self._held.values()], self._thread
        with one_call():
            for one in held:
                if one is not None:
                    self.give_back(one)
        with self._changed:
            self._closed = True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def renew_due(self) -> None:
        """Renew the leases that are due."""
        for held in self._alive():
            if held.due <= self._clock.monotonic():
                self._renew(held)

    def _renew(self, held: ActiveLease) -> None:
        with one_call(anew=True):
            self._renew_once(held)

    def _renew_once(self, held: ActiveLease) -> None:
        asked_at = self._clock.monotonic()
        if asked_at >= held.deadline:
            return  # its owner is refused already, and stays so
        try:
            self._store.lease(held.lease, held.ttl_s)
        except Exception as error:  # noqa: BLE001 - one lease's error may not end the renewal of the others
            held.not_renewed(asked_at, error)
        else:
            held.renewed(asked_at)
            if (
                held.lease.lease_id not in self._held
            ):  # released meanwhile: this renewal may have landed after the release
                with contextlib.suppress(TidegateError):
                    self._store.release(held.lease.lease_id)

    def _alive(self) -> list[ActiveLease]:
        with self._changed:
            return alive_of(self._held, self._clock.monotonic())

    def _run(self) -> None:
        while True:
            self.renew_due()
            self._give_back_left()
            with self._changed:
                due = [held.due for held in self._alive()]
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
    for renewals in list(_all):
        renewals.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
