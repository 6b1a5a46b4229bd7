"""The leases of a gate's open snapshots and scans, and the thread that renews them.

Snapshots of one version share a lease: the requests for leases grow with versions, not with snapshots.
``aio/leases.py`` has the task that renews those of an event loop.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import threading
import weakref
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError, TidegateError
from tidegate.reader import rules
from tidegate.reader.table import Steps, run
from tidegate.sinks.rules.leases import Lease, check_leasable

logger = logging.getLogger("tidegate")

PER_TTL = 3
"""The number of renewals in a lease's time: two of them may be lost."""
RETRIES_PER_TTL = 12
"""The number of retries in a lease's time, after the reply of a renewal was lost."""
TOGETHER_PER_TTL = 60
"""Leases that are due within this part of their time are renewed together."""
SHARE_S = 5.0
"""The longest time after a lease was taken in which new snapshots share it. A writer's ``max_lease_s`` counts
from the time of taking, so a snapshot loses this part of it."""
CLOSE_S = 30.0
"""The longest time that a gate's close waits for leases that are being taken."""


def pin(store: Any, lease: Lease, ttl_s: float) -> Steps[TidegateError | None]:
    """Take or renew a lease. If the store refuses to write, only check that the version is readable.

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


class Hold:
    """One snapshot's share of a lease. A hold that is collected as garbage has ended."""

    __slots__ = ("__weakref__", "active")

    def __init__(self, active: ActiveLease) -> None:
        self.active = active
        active.holds.add(self)

    def check(self, clock: Clock) -> None:
        """Refuse reads when the lease may be gone (I8). Raises: as ``ActiveLease.check``."""
        self.active.check(clock)


class ActiveLease:
    """A lease with holds in this process; a thread or a task renews it.

    ``deadline`` is by this process's monotonic clock, and never later than the store's: it
    counts from before the request that was answered. When all holds are collected as garbage, it is no
    longer renewed, and expires.
    """

    def __init__(self, lease: Lease, ttl_s: float, deadline: float) -> None:
        self.lease = lease
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.due = deadline - ttl_s * (1 - 1 / PER_TTL)
        self.revoked: SnapshotExpiredError | None = None
        self.holds: weakref.WeakSet[Hold] = weakref.WeakSet()
        self.granted = False
        self.refused: BaseException | None = None
        self.request: Any = None  # of the keeper: the request that takes the lease
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
        self._reset()

    def _reset(self) -> None:
        self._leases: dict[str, ActiveLease] = {}  # that were granted, by lease id
        self._newest: dict[tuple[int, float], ActiveLease] = {}  # by version and time; a new hold shares it
        self._wakes_at = -math.inf  # of the thread or task that renews; it looks at all leases until it waits
        self._warned = False  # of reads without leases
        self._closing = self._closed = False

    # -- holds ----------------------------------------------------------------------------------

    def _hold(self, version: int, ttl_s: float, *, share: bool) -> tuple[Hold, bool]:
        """Return a new hold, and whether its lease has to be requested by this call."""
        if self._closing:
            raise rules.gate_closed(self._store.where)
        now = self._clock.monotonic()
        active = self._newest.get((version, ttl_s))
        if share and active is not None and active.is_shared_at(now):
            return Hold(active), False
        active = ActiveLease(Lease(self._clock.new_id(), version), ttl_s, now + ttl_s)
        self._newest[version, ttl_s] = active
        return Hold(active), True

    def _granted(self, active: ActiveLease) -> bool:
        """Note a lease that was taken, to be renewed; return False if it is to be released at once."""
        active.granted = True
        if self._closing:
            active.refused = rules.gate_closed(self._store.where)
        if self._closing or not active.holds:
            self._forget(active)
            return False
        self._leases[active.lease.lease_id] = active
        return True

    def _refused(self, active: ActiveLease, error: BaseException) -> None:
        active.refused = error
        self._forget(active)

    def _drop(self, hold: Hold) -> bool:
        """End a hold; return whether its lease is to be released."""
        active = hold.active
        if hold not in active.holds:
            return False
        active.holds.discard(hold)
        if active.holds:
            return False
        known = self._forget(active)
        return active.granted and active.is_ours and not self._closed and (known or not self._closing)

    def _forget(self, active: ActiveLease) -> bool:
        """Renew a lease no more, and share it no more; return whether it was to be renewed."""
        shared = active.lease.version, active.ttl_s
        if self._newest.get(shared) is active:
            del self._newest[shared]
        return self._leases.pop(active.lease.lease_id, None) is not None

    def _forget_all(self) -> list[str]:
        """Renew no lease any more; return the ids of those that are to be released."""
        leases = [active for active in list(self._leases.values()) if active.is_ours]
        for active in leases:
            self._forget(active)
        return [active.lease.lease_id for active in leases]

    # -- renewals -------------------------------------------------------------------------------

    def _alive(self) -> list[ActiveLease]:
        """List the leases that are still to be renewed, and forget the others."""
        alive, now = [], self._clock.monotonic()
        for active in list(self._leases.values()):
            if not active.holds or active.revoked is not None or active.deadline <= now:
                self._forget(active)  # a scan that is collected meanwhile may have released it
            else:
                alive.append(active)
        return alive

    def _due(self) -> list[ActiveLease]:
        """List the leases that are due now, or so soon that they are renewed together with these."""
        now = self._clock.monotonic()
        return [active for active in self._alive() if active.due <= now + active.ttl_s / TOGETHER_PER_TTL]

    def _renew(self, active: ActiveLease) -> Steps[None]:
        with one_call(fresh=True):  # no part of the call that took the lease
            asked_at = self._clock.monotonic()
            if asked_at >= active.deadline:
                return  # its owner is refused already, and stays so
            try:
                yield from self._pin(active)
            except Exception as error:  # noqa: BLE001 - one lease's error may not end the renewal of the others
                active.not_renewed(asked_at, error)
                return
            active.renewed(asked_at)
            if active.lease.lease_id not in self._leases:
                # Released meanwhile: this renewal may have taken effect after the release.
                yield from self._release(active.lease.lease_id)

    def _pin(self, active: ActiveLease) -> Steps[None]:
        """Take or renew a lease. A store that refuses to write is read without one, which is logged once."""
        refusal = yield from pin(self._store, active.lease, active.ttl_s)
        if refusal is not None and not self._warned:
            logger.warning(
                "%s is read without leases, since it refuses to write; a snapshot or scan ends with"
                " SnapshotExpiredError once its version is retired: %s",
                self._store.where,
                refusal,
            )
        self._warned = refusal is not None

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
        self._reset()
        self._changed = threading.Condition()
        self._requests = 0  # for leases, that have no answer yet
        self._left: collections.deque[str] = collections.deque()  # to be released
        self._thread: threading.Thread | None = None

    def take(self, version: int, ttl_s: float) -> Hold:
        """Hold a lease on a version, which is renewed from now on. Raises: as ``Store.lease``.

        A snapshot of the same version shares the lease, and the request for it. If that request of another
        thread fails, this call sends its own.
        """
        hold = self._take(version, ttl_s, share=True)
        while hold is None:
            hold = self._take(version, ttl_s, share=False)
        return hold

    def _take(self, version: int, ttl_s: float, *, share: bool) -> Hold | None:
        with self._changed:
            hold, is_first = self._hold(version, ttl_s, share=share)
            if is_first:
                hold.active.request = threading.Event()
                self._requests += 1
        active = hold.active
        try:
            if is_first:
                self._request(active)
            else:
                active.request.wait()  # that request has a limit of its own
        except BaseException:
            self.give_back(hold)
            raise
        if active.refused is None:
            return hold
        if is_first or is_final(active.refused):
            raise active.refused
        return None

    def _request(self, active: ActiveLease) -> None:
        try:
            run(self._pin(active))
            with self._changed:
                is_wanted = self._granted(active)
            if not is_wanted:
                with one_call(fresh=True):
                    run(self._release(active.lease.lease_id))
        except BaseException as error:
            with self._changed:
                self._refused(active, error)
            raise
        finally:
            with self._changed:
                self._requests -= 1
                self._renew_later(active)
                active.request.set()

    def _renew_later(self, active: ActiveLease) -> None:
        if self._thread is None and not self._closing and active.lease.lease_id in self._leases:
            self._thread = threading.Thread(target=self._run, name="tidegate-leases", daemon=True)
            self._thread.start()
        if self._closing or active.due < self._wakes_at:
            self._changed.notify_all()

    def give_back(self, hold: Hold) -> None:
        """End a hold. The last one's lease is released if the store answers; else it expires by itself."""
        with self._changed:
            is_last = self._drop(hold)
        if is_last:
            with one_call():
                run(self._release(hold.active.lease.lease_id))

    def leave(self, hold: Hold) -> None:
        """Do ``give_back`` soon, in the keeper's thread: this call makes no request."""
        with self._changed:
            if self._drop(hold):
                self._left.append(hold.active.lease.lease_id)
                self._changed.notify_all()

    def close(self) -> None:
        """Take no leases any more, release all, and end the thread. Repeatable.

        It waits for leases that are being taken, since their calls release them.
        """
        with self._changed:
            self._closing = True
            if not self._changed.wait_for(lambda: not self._requests, CLOSE_S):
                logger.error("%s: %d leases were not answered in time", self._store.where, self._requests)
            lease_ids, thread = self._forget_all(), self._thread
        with one_call():
            for lease_id in lease_ids:
                run(self._release(lease_id))
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the thread ------------------------------------------------------------------------------

    def renew_due(self) -> None:
        """Renew the leases that are due."""
        with self._changed:
            leases = self._due()
        for active in leases:
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
                self._wakes_at = min(due)
                self._changed.wait(max(0.0, self._wakes_at - self._clock.monotonic()))
                self._wakes_at = -math.inf

    def _give_back_left(self) -> None:
        while self._left:
            lease_id = self._left.popleft()
            try:
                with one_call(fresh=True):
                    self._store.release(lease_id)
            except TidegateError:
                pass  # it expires by itself
            except Exception:
                logger.exception("lease %s was not given back", lease_id)

    # -- forks -----------------------------------------------------------------------------------

    def leave_to_parent(self) -> None:
        """Forget the parent's leases and thread, in a child process."""
        closing = self._closing
        self._start_over()
        self._closing = self._closed = closing


def is_final(error: BaseException) -> bool:
    """Whether the refusal of another call's request for the same lease also holds for this call.

    A request without an answer does not count: the other call's deadline may have been earlier.
    """
    return isinstance(error, TidegateError) and not isinstance(error, StoreUnavailableError)


_all: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


def _after_fork() -> None:
    for keeper in list(_all):
        keeper.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
