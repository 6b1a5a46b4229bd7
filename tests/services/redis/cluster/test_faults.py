"""A Cluster whose servers come back empty, or promoted with less than was acknowledged, or hand on slots."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from services.support.redis.cluster import RedisCluster, refused_calls, slot_of
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import KEY_GROUPS, Reader, expected, found_at, held_snapshot, put_back
from support.concurrency import Meanwhile
from support.wait import wait_until
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.recover import recover
from tidegate.errors import StoreLostError, StoreNotVerifiedError, TidegateError
from tidegate.keys.groups import key_group
from tidegate.sinks.records import ReadAt

pytestmark = pytest.mark.xdist_group("redis_cluster")


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    yield redis_cluster
    redis_cluster.heal()


@pytest.fixture
def query(cluster: RedisCluster, tmp_path) -> Iterator[Query]:
    with query_on(cluster.url, tmp_path) as made:
        yield made


def primary_of(cluster: RedisCluster, query: Query, group: int) -> RedisServer:
    return cluster.primary_of(query.keys_of(group))


def without_the_pointer(cluster: RedisCluster, query: Query) -> RedisServer:
    """A primary that has key groups, and not the pointer."""
    pointers = cluster.primary_of(query.meta)
    return next(
        server for n in range(KEY_GROUPS) if (server := primary_of(cluster, query, n)) is not pointers
    )


@contextlib.contextmanager
def last_writes_lost(cluster: RedisCluster, primary: RedisServer) -> Iterator[None]:
    """What is written to this primary meanwhile is acknowledged, and gone when its replica is promoted."""
    (replica,) = cluster.replicas_of(primary)
    with replica.client() as client:
        client.config_set("masteruser", "nobody", "masterauth", "wrong")
        client.client_kill_filter(_type="master")
        wait_until(lambda: not primary.info("replication")["connected_slaves"], "it is cut off")
        try:
            yield
            primary.kill()
        finally:
            client.config_set("masteruser", "", "masterauth", "")
    cluster.promote(replica)


@pytest.mark.slow
def test_a_shard_comes_back_empty(cluster: RedisCluster, query: Query):
    driver = query.run(4)
    query.retire(driver)
    with held_snapshot(query) as held, Reader(query) as reader:
        reader.wait_whole(4)
        cluster.restart_empty(without_the_pointer(cluster, query))
        assert held.look() == "StoreNotVerifiedError"
        query.commit(driver, 4)
        reader.wait_whole(5)
        assert held.look() == "whole"
    query.check(5)


def test_the_shard_with_the_pointer_comes_back_empty(cluster: RedisCluster, query: Query):
    """A commit is refused; the next open makes it again from the log."""
    driver = query.run(4)
    query.retire(driver)
    with held_snapshot(query) as held:
        cluster.restart_empty(cluster.primary_of(query.meta))
        assert held.look() in {"StoreLostError", "StoreNotVerifiedError"}
        with pytest.raises(StoreLostError, match="not there any more"):
            query.commit(driver, 4)
        query.retire(query.run(6))
        assert held.look() in {"whole", "SnapshotExpiredError"}
    query.check(6)


@pytest.mark.slow
@pytest.mark.parametrize("pointer", [False, True])
def test_a_replica_is_promoted_without_the_last_writes(pointer: bool, cluster: RedisCluster, query: Query):
    """Version 5 is visible and lacks its seals on one server; or they are there, the pointer went back."""
    driver = query.run(4)
    cluster.wait_ready()
    primary = cluster.primary_of(query.meta) if pointer else without_the_pointer(cluster, query)
    with Reader(query) as reader:
        reader.wait_whole(4)
        with last_writes_lost(cluster, primary):
            query.commit(driver, 4, 5)
            query.retire(driver)
        query.commit(driver, 6)
        reader.wait_whole(7)
    query.check(7)


def another(cluster: RedisCluster, server: RedisServer) -> RedisServer:
    return next(each for each in cluster.primaries() if each is not server)


def retire(query: Query, driver: Coordinator) -> None:
    with contextlib.suppress(StoreNotVerifiedError):  # as in the background: tried again at the next version
        query.retire(driver)


def test_slots_move_while_it_reads_and_writes(
    cluster: RedisCluster, query: Query, meanwhile: Meanwhile, caplog
):
    """The log no longer reaches back to version 1: no repair can put back what a merge lost."""
    driver = query.run(3, keep_versions=1)
    query.tidy(driver)
    query.commit(driver, 3)

    def writes() -> None:
        for batch_id in range(4, 9):
            retire(query, driver)
            query.commit(driver, batch_id)

    with Reader(query) as reader:
        reader.wait_whole(4)
        for at, tag in enumerate((query.keys_of(0), query.keys_of(1), query.keys_of(2), query.meta)):
            old = cluster.primary_of(tag)
            with cluster.moving(slot_of(tag), another(cluster, old), half=False):
                if not at:
                    before = refused_calls(old)
                    writing = meanwhile.start(writes)
                    wait_until(lambda: refused_calls(old) > before or writing.done())  # noqa: B023
        writing.result(60)
        if driver.store.unverified():  # as at every heartbeat: what moved last, no batch has met yet
            recover(driver)
        reader.wait_whole(9)
    assert put_back(caplog) <= set(range(5, 10)), "a version that was visible before"
    query.check(9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("half", [True, False], ids=["half", "none"])
@pytest.mark.parametrize("group", [0, None])
def test_half_of_a_slot_has_moved(
    group: int | None, half: bool, cluster: RedisCluster, query: Query, meanwhile: Meanwhile, caplog
):
    """Nobody is answered wrongly by the half that is there, and all goes on when the slot has moved.

    Red when ASK is followed: a function on the receiving server takes keys that are to come for absent.
    """
    driver = query.run(3, keep_versions=1)
    query.tidy(driver)
    query.commit(driver, 3)
    tag = query.meta if group is None else query.keys_of(group)
    old = cluster.primary_of(tag)
    with cluster.moving(slot_of(tag), another(cluster, old), half=half):
        store = query.store(timeout_s=0.5)
        with contextlib.suppress(TidegateError):
            assert found_at(store, 4) == expected(4)

        def goes_on() -> None:
            retire(query, driver)
            query.commit(driver, 4, 5)
            retire(query, driver)

        before = refused_calls(old, "fcall", "fcall_ro")
        going = meanwhile.start(goes_on)
        met = "the retirement met the slot"
        wait_until(lambda: refused_calls(old, "fcall", "fcall_ro") > before, met)
        with contextlib.suppress(TidegateError):
            assert found_at(store, 4) == expected(4)
    going.result(60)
    if driver.store.unverified():
        recover(driver)
    assert put_back(caplog) <= {5, 6}, "a version that was visible before"
    query.check(6)


def test_a_client_that_has_just_connected_finds_every_server_compared(cluster: RedisCluster, query: Query):
    """Else ``tidegate status`` warns of refused readers, and ``tidegate recover`` repairs for nothing."""
    query.run(3)
    assert not query.store().unverified()


def lossy(cluster: RedisCluster, query: Query, driver: Coordinator) -> RedisServer:
    """A primary that was promoted without versions 5 and 6, which are visible."""
    cluster.wait_ready()
    old = without_the_pointer(cluster, query)
    wait_until(lambda: len(cluster.replicas_of(old)) == 1, f"{old.name} has its replica")
    (replica,) = cluster.replicas_of(old)
    with last_writes_lost(cluster, old):
        query.commit(driver, 4, 5)
        query.retire(driver)
    return replica


def test_a_slot_comes_to_a_server_that_lost_something(cluster: RedisCluster, query: Query):
    """What came later shows versions sealed that the server never had: it proves nothing for the rest."""
    driver = query.run(4, keep_versions=1)
    promoted = lossy(cluster, query, driver)
    others = [n for n in range(KEY_GROUPS) if primary_of(cluster, query, n) is not promoted]
    cluster.move_slot(slot_of(query.keys_of(others[0])), promoted)
    query.commit(driver, 6)
    query.check(7)


def test_a_slot_leaves_a_server_that_lost_something(cluster: RedisCluster, query: Query):
    """Its key group lacks versions 5 and 6, at a server that counts."""
    driver = query.run(4, keep_versions=1)
    promoted = lossy(cluster, query, driver)
    mine = [n for n in range(KEY_GROUPS) if primary_of(cluster, query, n) is promoted]
    for group in mine:
        cluster.move_slot(slot_of(query.keys_of(group)), another(cluster, promoted))
    store = query.store()
    for group, table in itertools.product(mine, expected(6)):
        rows = {
            key: value for key, value in expected(6)[table].items() if key_group(key, KEY_GROUPS) == group
        }
        found: dict[bytes, bytes] = {}
        with contextlib.suppress(StoreNotVerifiedError):
            for each in store.scan(ReadAt(table, 6), group):
                found |= zip(each["key"].to_pylist(), each["value"].to_pylist(), strict=True)
            assert found == rows


def test_the_rows_of_a_slot_that_came_are_lost_and_its_header_is_not(cluster: RedisCluster, query: Query):
    """The server that took the slot is lost before its replica has all of it: the header tells of a base that
    is nowhere any more. Without a look at what it lists its rows would be taken for absent."""
    driver = query.run(4, keep_versions=1)
    query.retire(driver)
    cluster.wait_ready()
    receiver = without_the_pointer(cluster, query)
    wait_until(lambda: len(cluster.replicas_of(receiver)) == 1, f"{receiver.name} has its replica")
    (replica,) = cluster.replicas_of(receiver)
    group = next(n for n in range(KEY_GROUPS) if primary_of(cluster, query, n) is not receiver)
    header = f"{query.keys_of(group)}h"
    with contextlib.ExitStack() as losing, cluster.moving(slot_of(header), receiver, first=header):
        wait_until(lambda: replica.ask("CLUSTER", "COUNTKEYSINSLOT", slot_of(header)), "the header came")
        losing.enter_context(last_writes_lost(cluster, receiver))
    with Reader(query) as reader:
        query.commit(driver, 4)
        reader.wait_whole(5)
    query.check(5)
