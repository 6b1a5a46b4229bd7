"""The pin of one version of a store, which stays readable while it is copied."""

from __future__ import annotations

import contextlib

from tidegate.base.clock import Clock
from tidegate.base.steps import run
from tidegate.errors import TidegateError
from tidegate.sinks.rules.leases import Lease, of_writer, pin
from tidegate.sinks.store import Store

EXPORT = "export"
LEASE_S = 60.0
PER_LEASE = 4
"""The number of renewals in the time of a lease."""


class VersionPin:
    """A lease that pins a version of the source while it is copied.

    Each renewal is a new lease, taken before the old one is released. A fill or a restore has leases of the
    writer, which ``max_lease_s`` does not end, since a large store takes longer. An export has a reader's
    leases, and a reader's limits.
    """

    def __init__(self, source: Store, version: int, clock: Clock, purpose: str = "fill") -> None:
        self.version, self._source, self._clock, self._purpose = version, source, clock, purpose
        self._lease = self._take()

    def _take(self) -> Lease:
        name = f"{self._purpose}-{self._clock.new_id()}"
        lease = Lease(name if self._purpose == EXPORT else of_writer(name), self.version)
        self._again_at = self._clock.monotonic() + LEASE_S / PER_LEASE
        run(pin(self._source, lease, LEASE_S))
        return lease

    def keep(self) -> None:
        """Renew the lease if that is due. Raises: SnapshotExpiredError: the version was retired."""
        if self._clock.monotonic() >= self._again_at:
            before, self._lease = self._lease, self._take()
            self._release(before)

    def give_back(self) -> None:
        """Release the lease."""
        self._release(self._lease)

    def _release(self, lease: Lease) -> None:
        with contextlib.suppress(TidegateError):  # it expires by itself
            self._source.release(lease.lease_id)
