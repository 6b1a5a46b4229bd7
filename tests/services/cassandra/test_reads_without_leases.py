"""Readers without leases (``leases=False``): they write nothing, and are refused what was retired, loudly."""

import pytest

import tidegate
from services.support.cassandra.query import query_on
from support.driver_process import MARKER
from support.wait import wait_until
from tidegate.errors import SnapshotExpiredError

LEASE_S = 0.9
"""A snapshot that may not be held asks a third of this long whether its version is still there."""


def test_a_snapshot_that_holds_nothing_reads_until_its_version_is_retired(cassandra, tmp_path):
    with query_on(cassandra.url, tmp_path) as query:
        driver = query.run(3)
        options = {"timeout_s": 20.0, "leases": False}
        with tidegate.connect(query.url, query.namespace, options) as gate:
            snapshot = gate.snapshot(version=2)
            before = dict(snapshot.table(MARKER).scan())
            assert before
            assert driver.store.leases() == []
            query.run(9)
            query.retire(query.open())
            assert driver.store.pointer().horizon > 2
            with pytest.raises(SnapshotExpiredError):
                dict(snapshot.table(MARKER).scan())
            with pytest.raises(SnapshotExpiredError):
                gate.snapshot(version=2)
            with gate.snapshot() as newest:
                assert dict(newest.table(MARKER).scan()).keys() == before.keys()


def test_a_snapshot_that_holds_nothing_ends_by_itself_when_its_version_was_retired(cassandra, tmp_path):
    """Also a read that finds its rows, which are right, ends then: as one whose lease was revoked."""
    with query_on(cassandra.url, tmp_path) as query:
        query.run(3)
        options = {"timeout_s": 20.0, "leases": False}
        with (
            tidegate.connect(query.url, query.namespace, options) as gate,
            gate.snapshot(version=2, lease_s=LEASE_S) as snapshot,
        ):
            assert snapshot.table(MARKER).get(b"m1")
            query.run(9)
            query.retire(query.open())
            wait_until(lambda: is_refused(snapshot), "the snapshot is refused")


def is_refused(snapshot):
    try:
        snapshot.table(MARKER).get(b"m1")
    except SnapshotExpiredError:
        return True
    return False
