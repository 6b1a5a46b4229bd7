"""Leases in Cassandra, where no step covers two partitions: their rows, and a mark on the pointer.

A lease is written first. Then one conditional write on the pointer checks that the horizon has not
passed it, and changes ``leases_at``. A move of the horizon reads ``leases_at``, then the leases,
and takes effect only if ``leases_at`` is still the same. So of a lease and an announce that race,
the later one on the pointer sees the other: the announce is repeated with the lease, or the lease
is refused.

Times are the coordinators' clocks, in milliseconds.
"""

from __future__ import annotations

import datetime
import logging
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from tidegate.base.names import NAME
from tidegate.errors import StoreUnavailableError
from tidegate.options import LEASES_MAX
from tidegate.sinks.cassandra.namespace import CassandraNamespace, Seen
from tidegate.sinks.rules.leases import (
    LEASE_MAX_S,
    KeptLease,
    Lease,
    LeaseInfo,
    Limits,
    check_leasable,
    horizon_allowed,
    too_many_leases,
)
from tidegate.sinks.rules.reads import dropped

logger = logging.getLogger("tidegate")

REMOVED_AT_ONCE = 500
"""The most rows of others that one ``announce`` removes: each is a request."""
WAIT_S = 0.05
"""The longest pause before a conditional write that lost against another is repeated."""


class Held(NamedTuple):
    """A stored lease."""

    lease_id: str
    version: int
    taken_ms: int
    expires_ms: int

    def kept(self) -> KeptLease:
        """Convert to the form of the rules of all stores."""
        return KeptLease(self.lease_id, self.version, self.taken_ms * 1_000, self.expires_ms * 1_000)


def lease(space: CassandraNamespace, lease: Lease, ttl_s: float) -> None:
    """Take or renew a lease; see ``Store.lease``."""
    seen = space.look()
    pointer = seen.pointer
    check_leasable(space.where, lease, ttl_s, pointer.visible, pointer.horizon)
    everything = _held(space, seen.now_ms)
    known = [held for held in everything if held.lease_id == lease.lease_id]
    if not known and len(everything) >= LEASES_MAX:
        raise too_many_leases(space.where, LEASES_MAX)
    same = [held.taken_ms for held in known if held.version == lease.version]
    taken_ms, expires_ms = min([seen.now_ms, *same]), seen.now_ms + int(ttl_s * 1e3)
    mine = Held(lease.lease_id, lease.version, taken_ms, expires_ms)
    _put(space, mine)
    held = space.decide(("hold", space.made.space, lease.version), again=True)
    if not held[0]:
        _drop(space, mine)
        if len(held) == 1 or held[1] is None:
            raise dropped(space.where)
        check_leasable(space.where, lease, ttl_s, pointer.visible, held[1])
    for old in known:
        if old.expires_ms != mine.expires_ms:
            _drop(space, old)


def release(space: CassandraNamespace, lease_id: str) -> None:
    """Release a lease."""
    for held in _held(space, space.look().now_ms):
        if held.lease_id == lease_id:
            _drop(space, held)


def leases(space: CassandraNamespace) -> list[LeaseInfo]:
    """Return the leases that have not run out."""
    now_ms = space.look().now_ms
    newest: dict[str, Held] = {}
    for held in sorted(_held(space, now_ms), key=lambda held: held.expires_ms):
        newest[held.lease_id] = held
    infos = [held.kept().told(now_ms * 1_000) for held in newest.values()]
    return sorted(infos, key=lambda info: info.version)


def announce(
    space: CassandraNamespace, horizon: int, limits: Limits, published_us: Callable[[int], int | None]
) -> int:
    """Move the horizon; see ``Store.announce``. ``published_us``: when a version became visible."""
    deadline, unknown = time.monotonic() + space.settings.timeout_s, False
    while True:
        seen = space.look(settle=unknown)
        rows = _rows(space, seen.now_ms)
        held = _decoded(rows)
        stands = _allowed(seen, held, horizon, limits, published_us)
        if stands > seen.pointer.horizon:
            step = ("announce", stands, space.made.space, seen.pointer.horizon, seen.leases_at)
            try:
                moved, unknown = space.decide(step)[0], False
            except StoreUnavailableError:
                moved, unknown = False, True  # the next read settles it
            if not moved:
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(
                        f"{space.where}: the horizon did not move within {space.settings.timeout_s} s:"
                        " leases were taken all the time, or the cluster did not answer"
                    )
                time.sleep(random.uniform(0, WAIT_S))
                continue
        space.horizon = max(space.horizon, stands)
        for old in held:
            if old.version < stands:
                _drop(space, old)  # revoked: the horizon has passed it
        _drop_ran_out(space, seen.now_ms)
        _drop_foreign(space, rows)
        return stands


def _allowed(
    seen: Seen, held: list[Held], horizon: int, limits: Limits, published_us: Callable[[int], int | None]
) -> int:
    """Return the horizon that the leases allow. Of more leases than ``lease`` admits none counts."""
    visible, now_us = seen.pointer.visible, seen.now_ms * 1_000
    leases = [] if len(held) > LEASES_MAX else [each.kept() for each in held]
    wanted = min(horizon, visible)
    allowed = horizon_allowed(wanted, leases, limits, visible, now_us, published_us)
    return max(seen.pointer.horizon, allowed)


# -- rows ----------------------------------------------------------------------------------------
# A row's timestamp is its end, so that no clock but the coordinators' orders what is written here.


def _held(space: CassandraNamespace, now_ms: int) -> list[Held]:
    """Return the leases that have not run out; more than ``LEASES_MAX``: rows came past ``lease``."""
    return _decoded(_rows(space, now_ms))


def _rows(space: CassandraNamespace, now_ms: int) -> list[tuple]:  # type: ignore[type-arg]
    last_ms = now_ms + int(LEASE_MAX_S * 1e3)
    return space.rows("leases", _moment(now_ms), _moment(last_ms), LEASES_MAX + 1)


def ran_out(space: CassandraNamespace) -> int:
    """Count expired leases that are still stored. For vacuum, since it reads past all deleted rows."""
    return len(space.rows("ran_out", _moment(space.look().now_ms), LEASES_MAX + 1))


def _drop_ran_out(space: CassandraNamespace, now_ms: int) -> None:
    space.write("drop_leases_until", now_ms * 1_000, space.made.space, _moment(now_ms))


def _drop_foreign(space: CassandraNamespace, rows: list[tuple]) -> None:  # type: ignore[type-arg]
    """Remove rows that are no leases; where there are more than ``LEASES_MAX`` rows, all: then none holds.

    A lease above the visible version stays: that version may have become visible meanwhile (I8).

    A row that was written with a later timestamp than its end stays until it runs out, and holds nothing.
    """
    foreign = [row for row in rows if len(rows) > LEASES_MAX or not _is_lease(row)]
    if not foreign:
        return
    if not space.warned_of_leases:
        space.warned_of_leases = True
        logger.warning(
            "%s: tidegate_leases has %d rows that are no leases, or more than %d in all: a client with a"
            " reader's rights wrote there without tidegate; retirement removes them",
            space.where,
            len(foreign),
            LEASES_MAX,
        )
    for name, _, _, expires_ms in foreign[:REMOVED_AT_ONCE]:
        space.write("drop_lease", expires_ms * 1_000, space.made.space, _moment(expires_ms), name)


def _decoded(rows: list[tuple]) -> list[Held]:  # type: ignore[type-arg]
    return [Held(*row) for row in rows if _is_lease(row)]


def _is_lease(row: tuple) -> bool:  # type: ignore[type-arg]
    name, version, taken, _ = row
    return bool(NAME.fullmatch(name)) and version is not None and taken is not None


def _put(space: CassandraNamespace, held: Held) -> None:
    space.write(
        "put_lease",
        space.made.space,
        _moment(held.expires_ms),
        held.lease_id,
        held.version,
        _moment(held.taken_ms),
        held.expires_ms * 1_000,
    )


def _drop(space: CassandraNamespace, held: Held) -> None:
    moment = _moment(held.expires_ms)
    space.write("drop_lease", held.expires_ms * 1_000, space.made.space, moment, held.lease_id)


def _moment(milliseconds_since_epoch: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=milliseconds_since_epoch)  # noqa: DTZ001
