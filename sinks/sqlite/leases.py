"""The leases of a SQLite store, in ``meta.sqlite``, and the move of the horizon that they limit.

Each step holds the write lock of ``meta.sqlite`` from its first read to its commit: a lease and a move of the
horizon never miss each other.
"""

from __future__ import annotations

import sqlite3

from tidegate.base.clock import Clock
from tidegate.options import LEASES_MAX
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules import leases as rules
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.rules.reads import decode
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE
from tidegate.sinks.sqlite.pointer import one_of

LEASE = """INSERT INTO leases VALUES (:id, :version, :now, :now + :ttl) ON CONFLICT (lease_id) DO UPDATE
    SET taken_us = CASE version WHEN excluded.version THEN taken_us ELSE excluded.taken_us END,
        version = excluded.version, expires_us = excluded.expires_us"""
LEASES = """SELECT lease_id, version, taken_us, expires_us FROM leases WHERE expires_us > ?
    ORDER BY version, taken_us LIMIT ?"""


def alive(meta: sqlite3.Connection, now_us: int) -> list[rules.KeptLease]:
    """Return the leases that have not run out, the oldest versions first, ``LEASES_MAX`` + 1 at most."""
    return [rules.KeptLease(*row) for row in meta.execute(LEASES, (now_us, LEASES_MAX + 1))]


def take(files: Files, clock: Clock, lease: Lease, ttl_s: float) -> None:
    """Take or renew a lease. As ``Store.lease``."""
    with files.writing(META_FILE, durable=True) as meta:
        visible, horizon = one_of(meta, files.where, "visible"), one_of(meta, files.where, "horizon")
        rules.check_leasable(files.where, lease, ttl_s, visible, horizon)
        now_us = clock.now_us()
        others = [other for other in alive(meta, now_us) if other.lease_id != lease.lease_id]
        if len(others) >= LEASES_MAX:
            raise rules.too_many_leases(files.where, LEASES_MAX)
        of_lease = {"id": lease.lease_id, "version": lease.version}
        meta.execute(LEASE, {**of_lease, "now": now_us, "ttl": int(ttl_s * 1e6)})


def release(files: Files, lease_id: str) -> None:
    """Release a lease. Repeatable."""
    with files.writing(META_FILE, durable=False) as meta:  # one that comes back expires later
        meta.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))


def move_horizon(files: Files, clock: Clock, horizon: int, limits: rules.Limits) -> int:
    """Move the horizon as far as the leases allow; return where it is. As ``Store.announce``."""
    with files.writing(META_FILE, durable=True) as meta:
        now_us, visible = clock.now_us(), one_of(meta, files.where, "visible")
        meta.execute("DELETE FROM leases WHERE expires_us <= ?", (now_us,))

        def published_us(version: int) -> int | None:
            row = meta.execute("SELECT entry FROM catalog WHERE version = ?", (version,)).fetchone()
            where = f"{files.where}: {files.folder / META_FILE}"
            return row and decode(where, row[0], CatalogEntry).published_at_us

        leases, target = alive(meta, now_us), min(horizon, visible)
        allowed = rules.horizon_allowed(target, leases, limits, visible, now_us, published_us)
        meta.execute("UPDATE pointer SET horizon = max(horizon, ?)", (allowed,))
        moved = one_of(meta, files.where, "horizon")
        meta.execute("DELETE FROM leases WHERE version < ?", (moved,))  # revoked: the horizon passed
    return moved
