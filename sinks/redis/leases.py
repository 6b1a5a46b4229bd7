"""Leases in Redis: one hash beside the pointer, walked page by page: no call holds the server for long.

A reader's login may write anything there. An entry that is no lease holds nothing, and retirement removes it.
"""

from __future__ import annotations

import logging

from tidegate.sinks.redis.keys import beside
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import lease_args, number, readable
from tidegate.sinks.rules.leases import KeptLease, Lease, LeaseInfo, check_lease

logger = logging.getLogger("tidegate")

TOO_MANY = b"-1"
PAGES_MAX = 200
"""The most pages of leases that one call reads; a page has some hundred leases."""


class Leases:
    """The leases of one namespace. Guarantees and errors are those of ``Store``."""

    def __init__(self, space: RedisNamespace) -> None:
        self._space = space
        self._cursor = b"0"
        self._warned = False

    def lease(self, lease: Lease, ttl_s: float) -> None:
        """Take or renew a lease."""
        check_lease(self._space.where, lease, ttl_s)
        self._space.ask("lease", *lease_args(lease, ttl_s))

    def release(self, lease_id: str) -> None:
        """Release a lease."""
        self._space.ask("release", lease_id.encode())

    def held(self) -> list[LeaseInfo]:
        """List the leases that hold a version, by version."""
        return sorted(self._pages()[0], key=lambda info: info.version)

    def unheld(self) -> int:
        """Count the entries that hold nothing."""
        return self._pages()[1]

    def _pages(self) -> tuple[list[LeaseInfo], int]:
        leases, others, cursor = dict[str, LeaseInfo](), 0, b""
        for _ in range(PAGES_MAX):
            now_us, cursor, over, foreign, *rest = self._space.ask("leases", cursor or b"0")
            self._warn_of_foreign(int(foreign), cursor, "the next retirement removes")
            others += int(over) + int(foreign)
            for name, *numbers in zip(*(rest[field::4] for field in range(4)), strict=True):
                with readable(self._space.where, "a lease", (name, *numbers)):
                    lease = KeptLease(name.decode(), *(int(part) for part in numbers))
                leases[lease.lease_id] = lease.info(int(now_us))
            if cursor in (b"0", TOO_MANY):
                break
        return list(leases.values()), others

    def _warn_of_foreign(self, entries: int, cursor: bytes, removed: str) -> None:
        """Warn, once, that something other than ``lease`` wrote among the leases."""
        if self._warned or not (entries or cursor == TOO_MANY):
            return
        self._warned = True
        logger.warning(
            "%s: %s holds %s: a client with a reader's rights wrote there without tidegate; %s them",
            self._space.where,
            beside(self._space.namespace, "leases").decode(),
            f"{entries} entries that are no leases"
            if entries
            else "more leases than the store allows, or larger ones",
            removed,
        )

    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        """Move the horizon as far as the leases allow; where it is then."""
        longest = -1 if max_lease_s is None else int(max_lease_s * 1e6)
        limits = (longest, -1 if max_layers is None else max_layers, keep_versions or 0)
        most = b"" if max_leases is None else number(max_leases)
        for _ in range(PAGES_MAX):
            args = (number(horizon), *map(number, limits), most, self._cursor)
            moved, cursor, foreign = self._space.ask("announce", *args)
            self._warn_of_foreign(int(foreign), cursor, "this retirement removes")
            self._cursor, reached = b"0" if cursor == TOO_MANY else cursor, int(moved)
            if reached >= horizon or not int(foreign):
                break  # else what was no lease may have held it
        self._space.horizon = max(self._space.horizon, reached)
        return reached

    def drop_unheld(self) -> None:
        """Remove what holds nothing any more, a page in each call; the horizon stays where it is."""
        self._cursor = b"0"
        for _ in range(PAGES_MAX):
            self.announce(0)
            if self._cursor == b"0":
                return
