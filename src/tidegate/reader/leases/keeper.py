"""The thread of a gate that renews its leases, and the calls that take and release them."""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import threading
import time
import weakref
from typing import Any

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.steps import run
from tidegate.errors import StoreUnavailableError, TidegateError
from tidegate.reader.leases.active import ActiveLease, Asked, Hold
from tidegate.reader.leases.flow import CLOSE_S, LeaseFlow, is_final

logger = logging.getLogger("tidegate")

SHARED_S = 5.0
"""The longest wait for another call's request for the same lease; then this call sends its own."""
BEGIN_S = 1.0
"""The longest wait for the start of the thread."""


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


_all: weakref.WeakSet[LeaseKeeper] = weakref.WeakSet()


@forks.in_child
def _after_fork() -> None:
    for keeper in list(_all):
        keeper.leave_to_parent()
