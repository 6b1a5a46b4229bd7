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

logger = logging.getLogger("tidegate")

REMOVED_AT_ONCE = 500
"""The most rows of others that one ``announce`` removes: each is a request."""
WAIT_S = 0.05
"""The longest pause before a conditional write that lost against another is repeated."""


def lease(space: CassandraNamespace, lease: Lease, ttl_s: float) -> None:
    """Take or renew a lease; see ``Store.lease``."""
    seen = space.look()
    pointer = seen.pointer
    check_leasable(space.where, lease, ttl_s, pointer.visible, pointer.horizon)
    active = _active(space, seen.now_ms)
    known = [stored for stored in active if stored.lease_id == lease.lease_id]
    if not known and len(active) >= LEASES_MAX:
        raise too_many_leases(space.where, LEASES_MAX)
    now_us = seen.now_ms * 1_000
    taken_us = min([now_us, *(stored.taken_us for stored in known if stored.version == lease.version)])
    mine = KeptLease(lease.lease_id, lease.version, taken_us, now_us + int(ttl_s * 1e3) * 1_000)
    _put(space, mine)
    made = space.made
    marked = space.decide(("hold", made.space, lease.version), again=True)
    if not marked[0]:
        _drop(space, mine)
        if len(marked) == 1 or marked[1] is None:
            raise space.lost(made)
        check_leasable(space.where, lease, ttl_s, pointer.visible, marked[1])
    for old in known:
        if old.expires_us != mine.expires_us:
            _drop(space, old)


def release(space: CassandraNamespace, lease_id: str) -> None:
    """Release a lease."""
    for stored in _active(space, space.look().now_ms):
        if stored.lease_id == lease_id:
            _drop(space, stored)


def leases(space: CassandraNamespace) -> list[LeaseInfo]:
    """Return the leases that have not run out."""
    now_ms = space.look().now_ms
    by_end = sorted(_active(space, now_ms), key=lambda stored: stored.expires_us)
    newest = {stored.lease_id: stored for stored in by_end}
    infos = [stored.info(now_ms * 1_000) for stored in newest.values()]
    return sorted(infos, key=lambda info: info.version)


def announce(
    space: CassandraNamespace, horizon: int, limits: Limits, published_us: Callable[[int], int | None]
) -> int:
    """Move the horizon; see ``Store.announce``. ``published_us``: when a version became visible."""
    deadline, unknown = time.monotonic() + space.settings.timeout_s, False
    while True:
        seen = space.look(settle=unknown)
        rows = _rows(space, seen.now_ms)
        active = _decoded(rows)
        allowed = _allowed(seen, active, horizon, limits, published_us)
        if allowed > seen.pointer.horizon:
            step = ("announce", allowed, space.made.space, seen.pointer.horizon, seen.leases_at)
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
        highest = space.made.highest
        highest.horizon = max(highest.horizon, allowed)
        for old in active:
            if old.version < allowed:
                _drop(space, old)  # revoked: the horizon has passed it
        _drop_ran_out(space, seen.now_ms)
        _drop_foreign(space, rows)
        return allowed


def _allowed(
    seen: Seen,
    active: list[KeptLease],
    horizon: int,
    limits: Limits,
    published_us: Callable[[int], int | None],
) -> int:
    """Return the horizon that the leases allow. Of more leases than ``lease`` admits none counts."""
    visible, now_us = seen.pointer.visible, seen.now_ms * 1_000
    leases = [] if len(active) > LEASES_MAX else active
    target = min(horizon, visible)
    allowed = horizon_allowed(target, leases, limits, visible, now_us, published_us)
    return max(seen.pointer.horizon, allowed)


# -- rows ----------------------------------------------------------------------------------------
# A row's timestamp is its end, so that no clock but the coordinators' orders what is written here.


def _active(space: CassandraNamespace, now_ms: int) -> list[KeptLease]:
    """Return the leases that have not run out; more than ``LEASES_MAX``: rows came past ``lease``."""
    return _decoded(_rows(space, now_ms))


def _rows(space: CassandraNamespace, now_ms: int) -> list[tuple]:  # type: ignore[type-arg]
    last_ms = now_ms + int(LEASE_MAX_S * 1e3)
    return space.rows("leases", _moment(now_ms * 1_000), _moment(last_ms * 1_000), LEASES_MAX + 1)


def ran_out(space: CassandraNamespace) -> int:
    """Count expired leases that are still stored. For vacuum, since it reads past all deleted rows."""
    return len(space.rows("ran_out", _moment(space.look().now_ms * 1_000), LEASES_MAX + 1))


def _drop_ran_out(space: CassandraNamespace, now_ms: int) -> None:
    space.write("drop_leases_until", now_ms * 1_000, space.made.space, _moment(now_ms * 1_000))


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
        _drop(space, KeptLease(name, 0, 0, expires_ms * 1_000))


def _decoded(rows: list[tuple]) -> list[KeptLease]:  # type: ignore[type-arg]
    leases = (row for row in rows if _is_lease(row))
    return [
        KeptLease(name, version, taken * 1_000, expires * 1_000) for name, version, taken, expires in leases
    ]


def _is_lease(row: tuple) -> bool:  # type: ignore[type-arg]
    name, version, taken, _ = row
    return bool(NAME.fullmatch(name)) and version is not None and taken is not None


def _put(space: CassandraNamespace, lease: KeptLease) -> None:
    moments = _moment(lease.expires_us), _moment(lease.taken_us)
    row = space.made.space, moments[0], lease.lease_id, lease.version, moments[1]
    space.write("put_lease", *row, lease.expires_us)


def _drop(space: CassandraNamespace, lease: KeptLease) -> None:
    moment = _moment(lease.expires_us)
    space.write("drop_lease", lease.expires_us, space.made.space, moment, lease.lease_id)


def _moment(us_since_epoch: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=us_since_epoch)  # noqa: DTZ001
