"""The leases of one gate: which are held, which are due, and their renewal; in threads and on an event loop.

``keeper.py`` has the thread that renews them, ``aio/leases.py`` the task of an event loop.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.steps import Steps
from tidegate.errors import StoreUnavailableError, TidegateError
from tidegate.reader import rules
from tidegate.reader.leases.active import ActiveLease, Hold
from tidegate.sinks.rules.leases import Lease, pin

logger = logging.getLogger("tidegate")

TOGETHER_PER_TTL = 60
"""Leases that are due within this part of their time are renewed together."""
CLOSE_S = 30.0
"""The longest time that a gate's close waits for leases that are being taken."""


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


def is_final(error: BaseException) -> bool:
    """Whether the refusal of another call's request for the same lease also holds for this call.

    A request without an answer does not count: the other call's deadline may have been earlier.
    """
    return isinstance(error, TidegateError) and not isinstance(error, StoreUnavailableError)
