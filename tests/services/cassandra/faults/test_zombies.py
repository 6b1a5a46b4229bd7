"""Drivers and readers who sleep while others go on: what they do on waking changes nothing (T1, I6, I8)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from services.support.cassandra.proxy import CassandraProxy
from services.support.cassandra.query import TOLD, query_on
from services.support.cassandra.server import CassandraServer
from services.support.workloads.query import Query, Reader, expected, found_at, held_snapshot
from support.concurrency import Failpoints, Meanwhile
from tidegate.errors import FencedError, SnapshotExpiredError
from tidegate.sinks.rules.leases import Lease

pytestmark = pytest.mark.slow  # a case takes several seconds here

ASLEEP = [
    "manifest.before_write",
    "manifest.after_write",
    "decide.before_append",
    "decide.after_append",
    "apply.before_chunk",
    "apply.after_chunk",
    "seal.after",
    "publish.before",
    "publish.after",
    "commit.before_return",
    "retire.after_announce",
    "retire.after_group",
]
TOOK_EFFECT = {"publish.after", "commit.before_return", "retire.after_announce", "retire.after_group"}
"""Who sleeps here has published its version: it learns that it is fenced at the next one."""
HELD_S = 180.0
"""A store's call: a third of it is longer than any request is held back here."""


@pytest.fixture
def query(cassandra: CassandraServer, tmp_path) -> Iterator[Query]:
    with query_on(cassandra.url, tmp_path) as made:
        yield made


def goes_on(query: Query) -> None:
    """Another driver: five versions more, each of the older ones retired."""
    newer = query.open()
    for batch_id in range(9):
        query.commit(newer, batch_id)
        query.retire(newer)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("place", ASLEEP)
def test_a_driver_sleeps_at(place: str, query: Query, failing_at: Failpoints):
    zombie = query.run(4)
    store = query.store()
    with Reader(query) as reader:
        reader.wait_whole(4)
        at = failing_at.at(place, lambda: goes_on(query))
        woke = contextlib.nullcontext() if place in TOOK_EFFECT else pytest.raises(FencedError)
        with woke:
            query.commit(zombie, 4)
            query.retire(zombie)
        assert at.done
        assert {version: found_at(store, version) for version in (7, 8, 9)} == {
            version: expected(version) for version in (7, 8, 9)
        }
        with pytest.raises(FencedError):
            query.commit(zombie, 9)
        query.retire(zombie)
        reader.wait_whole(9)
        assert set(reader.refused) <= TOLD
    query.check(9)


def test_behind_a_claim_nothing_is_published(query: Query, failing_at: Failpoints):
    """I6: the newer driver has only claimed its epoch: all else about the zombie's version still fits."""
    zombie = query.run(4)
    store = query.store()
    failing_at.at("publish.before", lambda: store.claim(zombie.epoch + 1, "newer"))
    with pytest.raises(FencedError):
        query.commit(zombie, 4)
    assert store.pointer().visible == 4
    query.run(6)
    query.check(6)


# -- leases -----------------------------------------------------------------------------------------------


@pytest.fixture
def proxied(cassandra_proxy: CassandraProxy, tmp_path) -> Iterator[Query]:
    with query_on(cassandra_proxy.url, tmp_path, timeout_s=HELD_S) as made:
        yield made


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cql", ["INSERT INTO tidegate.tidegate_leases", "SET leases_at"])
def test_a_lease_arrives_after_the_horizon_has_passed(
    cql: str,
    cassandra: CassandraServer,
    cassandra_proxy: CassandraProxy,
    proxied: Query,
    meanwhile: Meanwhile,
):
    """Its reader is refused, and it holds nothing. One whose row is there holds, within the limits alone."""
    driver = proxied.run(5, cassandra.url)
    sleeper = proxied.store()
    sleeper.pointer()
    late = cassandra_proxy.hold_request("EXECUTE", cql)
    taking = meanwhile.start(refused, sleeper, Lease("mine", 2))
    late.arrived()
    assert driver.store.announce(3) == (3 if "INSERT" in cql else 2)
    assert driver.store.announce(3, max_layers=0) == 3
    late.release()
    taking.result(60)
    assert driver.store.leases() == []
    proxied.commit(driver, 5)
    proxied.retire(driver)
    assert driver.store.pointer().horizon == 4
    proxied.check(6, cassandra.url)


def refused(store, lease: Lease) -> None:
    with pytest.raises(SnapshotExpiredError):
        store.lease(lease, 60.0)


def test_a_lease_is_taken_while_an_announcement_is_under_way(
    cassandra: CassandraServer, cassandra_proxy: CassandraProxy, proxied: Query, meanwhile: Meanwhile
):
    """I8: it had looked at the leases before; so it must look again."""
    driver = proxied.run(5)
    late = cassandra_proxy.hold_request("EXECUTE", "SET horizon = ? WHERE space = ? IF horizon = ? AND")
    announcing = meanwhile.start(driver.store.announce, 3)
    late.arrived()
    with held_snapshot(proxied, cassandra.url) as held:
        direct = proxied.store(cassandra.url)
        direct.lease(Lease("mine", 2), 60.0)
        assert held.version == 5
        late.release()
        late.remove()
        assert announcing.result(60) == 2
        assert held.look() == "whole"
        assert {lease.lease_id for lease in direct.leases()} >= {"mine"}
        direct.release("mine")
        proxied.retire(driver)
        assert direct.pointer().horizon == 3
    proxied.check(5, cassandra.url)
