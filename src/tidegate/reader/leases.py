"""The leases of a gate's open snapshots and scans, and the thread that renews them.

Snapshots of one version share a lease: the requests for leases grow with versions, not with snapshots.
``aio/leases.py`` has the task that renews those of an event loop.

An exception may end a call at any line: a signal, a soft limit, a killed greenlet. So no lock is held here.
A record is complete before others can find it, each change is one step of the interpreter, each wait has a
limit, and what a call cleans up is cleaned up twice.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.steps import Steps, run
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError, TidegateError, VersionRegressedError
from tidegate.reader import rules
from tidegate.sinks.rules.leases import Lease, pin

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
SHARED_S = 5.0
"""The longest wait for another call's request for the same lease; then this call sends its own."""
BEGIN_S = 1.0
"""The longest wait for the start of the thread."""
CLOSE_S = 30.0
"""The longest time that a gate's close waits for leases that are being taken."""


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


class LeaseFlow:
    """The leases of one gate: the part that is the same in threads and on an event loop."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._reset()

    def _reset(self) -> None:
        self._leases: dict[str, ActiveLease] = {}  # that were granted, by lease id
        self._newest: dict[tuple[int, float], ActiveLease] = {}  # by version and time; a new hold shares it
        self._left: collections.deque[str] = collections.deque()  # ids of leases that are to be released
        self._wakes_at = -math.inf  # of the thread or task that renews; it looks at all leases until it waits
        self._warned = False  # of reads without leases
        self._closing = self._closed = False

    # -- holds ----------------------------------------------------------------------------------

    def _hold(self, version: int, ttl_s: float, *, share: bool, request: Any = None) -> tuple[Hold, bool]:
        """Return a new hold, and whether its lease has to be requested by this call."""
        if self._closing:
            raise rules.gate_closed(self._store.where)
        now, shared = self._clock.monotonic(), (version, ttl_s)
        active = self._newest.get(shared)
        if share and active is not None and active.request is not None and active.is_shared_at(now):
            hold = Hold(active)
            if self._newest.get(shared) is active:  # else its last hold may have ended just before
                return hold, False
            active.holds.discard(hold)
        new = ActiveLease(Lease(self._clock.new_id(), version), ttl_s, now + ttl_s, request)
        new.collected = self._collected
        hold = Hold(new)
        if request is not None:
            request.active = new
        if share and active is None and self._newest.setdefault(shared, new) is not new:
            return self._hold(*shared, share=share, request=request)  # another thread was first
        self._newest[shared] = new
        return hold, True

    def _collected(self) -> None:
        """Note that a hold was collected as garbage; its lease is released when the leases are looked at."""

    def _granted(self, active: ActiveLease) -> bool:
        """Note a lease that was taken, to be renewed; return False if it is to be released at once."""
        if self._closing:
            active.refused = rules.gate_closed(self._store.where)
        if self._closing or not active.holds:
            self._forget(active)
            active.granted = True
            return False
        self._leases[active.lease.lease_id] = active
        active.granted = True
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
        self._share_no_more(active)
        if active.holds:  # another call began to share it meanwhile
            return False
        known = self._forget(active)
        return active.granted and active.is_ours and not self._closed and (known or not self._closing)

    def _forget(self, active: ActiveLease) -> bool:
        """Renew a lease no more, and share it no more; return whether it was to be renewed."""
        self._share_no_more(active)
        return self._leases.pop(active.lease.lease_id, None) is not None

    def _share_no_more(self, active: ActiveLease) -> None:
        shared = active.lease.version, active.ttl_s
        if self._newest.get(shared) is active:
            self._newest.pop(shared, None)

    def _ours(self) -> list[str]:
        """List the ids of the leases that this process took."""
        return [active.lease.lease_id for active in list(self._leases.values()) if active.is_ours]

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
            if not active.holds:
                self._share_no_more(active)
            if not active.holds or active.revoked is not None or active.deadline <= now:
                if not active.holds and active.is_ours:
                    self._left.append(active.lease.lease_id)
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
                "%s is read without leases, since it gives none; a snapshot or scan ends with"
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
        self._asleep = threading.Lock()  # the thread sleeps by acquiring it again
        self._asleep.acquire()
        self._thread: threading.Thread | None = None

    def take(self, version: int, ttl_s: float) -> Hold:
        """Hold a lease on a version, which is renewed from now on. Raises: as ``Store.lease``.

        A snapshot of the same version shares the lease, and the request for it. If that request of another
        thread fails, this call sends its own.
        """
        forks.notice()
        hold = self._take(version, ttl_s, share=True)
        while hold is None:
            hold = self._take(version, ttl_s, share=False)
        return hold

    def _take(self, version: int, ttl_s: float, *, share: bool) -> Hold | None:
        request, hold = Asked(), None
        try:
            try:
                hold, is_first = self._hold(version, ttl_s, share=share, request=request)
                active = hold.active
                if is_first:
                    self._request(active, request)
                elif not active.request.wait(SHARED_S):
                    self.leave(hold)
                    return None
                if active.refused is None:
                    self._renew_later(active)
                    return hold
                if is_first or is_final(active.refused):
                    raise active.refused
                return None
            finally:
                self._settle(request)
        except BaseException:
            try:
                self._settle(request)
            finally:
                if hold is not None:
                    self.leave(hold)
            raise

    def _request(self, active: ActiveLease, request: Asked) -> None:
        try:
            request.sent = True
            run(self._pin(active))
            is_wanted = self._granted(active)
        except Exception as error:
            self._refused(active, error)
            raise
        if not is_wanted:
            with one_call(fresh=True):
                run(self._release(active.lease.lease_id))

    def _settle(self, request: Asked) -> None:
        """End a request, also one that was interrupted. Repeatable."""
        active = request.active
        if active is not None and not active.granted and active.refused is None:
            self._forget(active)
            if request.sent:  # perhaps it was taken
                self._leave(active.lease.lease_id)
            active.refused = StoreUnavailableError(f"{self._store.where}: the call was interrupted")
        request.end()

    def _renew_later(self, active: ActiveLease) -> None:
        """See to it that the thread runs, and wakes up in time."""
        if active.lease.lease_id in self._leases and not self._closing:
            self._start_thread()
        if self._closing or active.due < self._wakes_at or self._wakes_at == -math.inf:
            self._wake()  # -inf: it looks at the leases now, and perhaps did before this one was there

    def _is_stuck(self) -> bool:
        """Whether the thread sleeps on after its time, as in a gevent hub whose native thread has ended."""
        return -math.inf < self._wakes_at < self._clock.monotonic() - BEGIN_S

    def _start_thread(self) -> None:
        """Start the thread unless it runs, from another one: an interrupt here is none of its start."""
        if self._thread is None or not self._thread.is_alive() or self._is_stuck():
            signal = Asked()
            _thread.start_new_thread(self._begin_thread, (signal,))
            signal.wait(BEGIN_S)

    def _begin_thread(self, signal: Asked) -> None:
        threading.Thread(target=self._run, args=(signal,), name="tidegate-leases", daemon=True).start()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is to wake already
            self._asleep.release()

    def _collected(self) -> None:
        self._wake()

    def give_back(self, hold: Hold) -> None:
        """End a hold. The last one's lease is released if the store answers; else it expires by itself."""
        forks.notice()
        is_over = False
        try:
            if self._drop(hold):
                with one_call():
                    run(self._release(hold.active.lease.lease_id))
            is_over = True
        finally:
            if not is_over:
                self._drop_for_sure(hold)

    def leave(self, hold: Hold) -> None:
        """Do ``give_back`` soon, in the keeper's thread: this call makes no request."""
        is_over = False
        try:
            if self._drop(hold):
                self._leave(hold.active.lease.lease_id)
            is_over = True
        finally:
            if not is_over:
                self._drop_for_sure(hold)

    def _drop_for_sure(self, hold: Hold) -> None:
        """End a hold whose end was interrupted, perhaps just before its lease was released. Repeatable."""
        active = hold.active
        active.holds.discard(hold)
        if not active.holds and active.granted and active.is_ours:
            self._forget(active)
            self._leave(active.lease.lease_id)

    def _leave(self, lease_id: str) -> None:
        self._left.append(lease_id)
        if not self._closed:
            self._start_thread()
        self._wake()

    def close(self) -> None:
        """Take no leases any more, release all, and end the thread. Repeatable.

        It waits for leases that are being taken, since their calls release them.
        """
        forks.notice()
        self._closing = True
        pending = [active.request for active in list(self._newest.values()) if not active.granted]
        end = time.monotonic() + CLOSE_S
        unanswered = sum(not request.wait(end - time.monotonic()) for request in pending)
        if unanswered:
            logger.error("%s: %d leases were not answered in time", self._store.where, unanswered)
        self._left.extend(self._ours())
        self._forget_all()
        thread = self._thread
        with one_call():
            self._give_back_left()
        self._closed = True
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(BEGIN_S if self._is_stuck() else CLOSE_S)

    # -- the thread ------------------------------------------------------------------------------

    def renew_due(self) -> None:
        """Renew the leases that are due."""
        for active in self._due():
            run(self._renew(active))

    def _run(self, signal: Asked) -> None:
        self._thread = mine = threading.current_thread()  # by itself: it may end before another one sets it
        signal.end()
        while self._thread is mine:  # else another one was started at the same time
            self.renew_due()
            with one_call(fresh=True):
                self._give_back_left()
            due = [active.due for active in self._alive()]
            if self._left:
                continue
            if self._closed or not due:
                self._thread = None
                if not self._closed and (self._leases or self._left):  # of a call that saw this thread
                    self._thread = mine
                    continue
                return
            self._wakes_at = min(due)
            sleep_s = max(0.0, self._wakes_at - self._clock.monotonic())
            self._asleep.acquire(timeout=min(sleep_s, threading.TIMEOUT_MAX))
            self._wakes_at = -math.inf
        self._wake()  # the other one, whose wake this may have been

    def _give_back_left(self) -> None:
        """Release the leases that were left. Two threads may release one: that is repeatable."""
        while self._left:
            with contextlib.suppress(IndexError, ValueError):  # another thread was faster
                lease_id = self._left[0]
                try:
                    self._store.release(lease_id)
                except TidegateError:
                    pass  # it expires by itself
                except Exception:
                    logger.exception("lease %s was not given back", lease_id)
                self._left.remove(lease_id)

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


@forks.in_child
def _after_fork() -> None:
    for keeper in list(_all):
        keeper.leave_to_parent()
