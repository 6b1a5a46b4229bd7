"""Hold: keep one version of a store readable for as long as it is copied."""

from __future__ import annotations

import contextlib

from tidegate.base.clock import Clock
from tidegate.errors import TidegateError
from tidegate.sinks.rules.leases import Lease, of_writer
from tidegate.sinks.store import Store

EXPORT = "export"
LEASE_S = 60.0
PER_LEASE = 4
"""The lease is taken anew so often before it would run out."""


class VersionPin:
    """A version of the source, kept readable for as long as a copy of it lasts.

    Each renewal is a new lease, taken before the old one is given back. A fill or a restore has leases of the
    writer, which ``max_lease_s`` does not end, since a large store takes longer. An export reads with a
    reader's rights, and so has a reader's limits.
    """

    def __init__(self, source: Store, version: int, clock: Clock, purpose: str = "fill") -> None:
        self.version, self._source, self._clock, self._purpose = version, source, clock, purpose
        self._lease = self._take()

    def _take(self) -> Lease:
        name = f"{self._purpose}-{self._clock.new_id()}"
        lease = Lease(name if self._purpose == EXPORT else of_writer(name), self.version)
        self._again_at = self._clock.monotonic() + LEASE_S / PER_LEASE
        self._source.lease(lease, LEASE_S)
        return lease

    def keep(self) -> None:
        """Hold on, if it is time to. SnapshotExpiredError: the version was retired."""
        if self._clock.monotonic() >= self._again_at:
            before, self._lease = self._lease, self._take()
            self._source.release(before.lease_id)

    def give_back(self) -> None:
        """Let the version go."""
        with contextlib.suppress(TidegateError):  # it runs out by itself
            self._source.release(self._lease.lease_id)
