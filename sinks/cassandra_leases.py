"""Leases in Cassandra, where no step covers two partitions: their rows, and a mark on the pointer.

A lease is written first. Then one conditional write on the pointer says that the horizon has not
passed it, and changes ``leases_at``. Whoever moves the horizon reads ``leases_at``, then the
leases, and moves it only if ``leases_at`` is still the same. So of a lease and an announce that
race, the later one on the pointer sees the other: the announce is done again with the lease, or
the lease is refused.

Times are the coordinators' clocks, in milliseconds.
"""

from __future__ import annotations

import datetime
import random
import time
from typing import NamedTuple

from tidegate.errors import StoreUnavailableError
from tidegate.sinks.cassandra_space import Seen, Space, milliseconds
from tidegate.sinks.reads import check_leasable, dropped
from tidegate.sinks.store import Lease, LeaseInfo

WAIT_S = 0.05
"""The longest pause before a conditional write that lost against another is tried again."""


class Held(NamedTuple):
    """A lease as it is kept."""

    lease_id: str
    version: int
    taken_ms: int
    expires_ms: int


def lease(space: Space, lease: Lease, ttl_s: float) -> None:
    """Take or renew a lease; see ``Store.lease``."""
    seen = space.look()
    check_leasable(space.where, lease.version, seen.pointer.horizon)
    known = [held for held in _held(space, seen.now_ms) if held.lease_id == lease.lease_id]
    same = [held.taken_ms for held in known if held.version == lease.version]
    taken_ms, expires_ms = min([seen.now_ms, *same]), seen.now_ms + int(ttl_s * 1e3)
    mine = Held(lease.lease_id, lease.version, taken_ms, expires_ms)
    _put(space, mine)
    held = space.decide(("hold", space.made.space, lease.version), again=True)
    if not held[0]:
        _drop(space, mine)
        if len(held) == 1 or held[1] is None:
            raise dropped(space.where)
        check_leasable(space.where, lease.version, held[1])
    for old in known:
        if old.expires_ms != mine.expires_ms:
            _drop(space, old)


def release(space: Space, lease_id: str) -> None:
    """Give a lease back."""
    for held in _held(space, space.look().now_ms):
        if held.lease_id == lease_id:
            _drop(space, held)


def leases(space: Space) -> list[LeaseInfo]:
    """Those that have not run out."""
    now_ms = space.look().now_ms
    newest: dict[str, Held] = {}
    for held in sorted(_held(space, now_ms), key=lambda held: held.expires_ms):
        newest[held.lease_id] = held
    infos = [
        LeaseInfo(
            held.lease_id,
            held.version,
            max(0.0, (now_ms - held.taken_ms) / 1e3),
            (held.expires_ms - now_ms) / 1e3,
        )
        for held in newest.values()
    ]
    return sorted(infos, key=lambda info: info.version)


def announce(space: Space, horizon: int, max_lease_s: float | None, max_layers: int | None) -> int:
    """Move the horizon; see ``Store.announce``."""
    deadline, unknown = time.monotonic() + space.settings.timeout_s, False
    while True:
        seen = space.look(settle=unknown)
        held = _held(space, seen.now_ms)
        stands = _allowed(seen, held, horizon, max_lease_s, max_layers)
        if stands > seen.pointer.horizon:
            step = ("announce", stands, space.made.space, seen.pointer.horizon, seen.leases_at)
            try:
                moved, unknown = space.decide(step)[0], False
            except StoreUnavailableError:
                moved, unknown = False, True  # looking again settles it
            if not moved:
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(
                        f"{space.where}: the horizon did not move within {space.settings.timeout_s} s:"
                        " leases were taken all the time, or the cluster gave no answer"
                    )
                time.sleep(random.uniform(0, WAIT_S))
                continue
        space.horizon = max(space.horizon, stands)
        for old in held:
            if old.version < stands:
                _drop(space, old)  # revoked: the horizon has passed it
        _drop_ran_out(space, seen.now_ms)
        return stands


def _allowed(
    seen: Seen, held: list[Held], horizon: int, max_lease_s: float | None, max_layers: int | None
) -> int:
    visible, now_ms = seen.pointer.visible, seen.now_ms
    holding = [
        each.version
        for each in held
        # Both ways from now: a time of taking far ahead is a clock that went back since (T41).
        if (max_lease_s is None or abs(now_ms - each.taken_ms) < max_lease_s * 1e3)
        and (max_layers is None or each.version >= visible - max_layers)
    ]
    return max(seen.pointer.horizon, min([horizon, visible, *holding]))


# -- rows ----------------------------------------------------------------------------------------
# A row's timestamp is its end, so that no clock but the coordinators' orders what is written here.


def _held(space: Space, now_ms: int) -> list[Held]:
    return _decoded(space.rows("leases", _moment(now_ms)))


def ran_out(space: Space) -> int:
    """How many leases have run out and are still kept. For vacuum: it reads past all that were deleted."""
    return len(space.rows("ran_out", _moment(space.look().now_ms)))


def _drop_ran_out(space: Space, now_ms: int) -> None:
    space.write("drop_leases_until", now_ms * 1_000, space.made.space, _moment(now_ms))


def _decoded(rows: list[tuple]) -> list[Held]:  # type: ignore[type-arg]
    return [
        Held(name, version, milliseconds(taken), milliseconds(expires))
        for name, version, taken, expires in rows
    ]


def _put(space: Space, held: Held) -> None:
    space.write(
        "put_lease",
        space.made.space,
        _moment(held.expires_ms),
        held.lease_id,
        held.version,
        _moment(held.taken_ms),
        held.expires_ms * 1_000,
    )


def _drop(space: Space, held: Held) -> None:
    moment = _moment(held.expires_ms)
    space.write("drop_lease", held.expires_ms * 1_000, space.made.space, moment, held.lease_id)


def _moment(milliseconds_since_epoch: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=milliseconds_since_epoch)  # noqa: DTZ001
