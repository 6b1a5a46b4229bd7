"""Changes of Redis servers that lose nothing refuse nobody; those that may have lost something still do.

None of these namespaces has a writer that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import tidegate.aio
from services.support.redis.cluster import RedisCluster, slot_of
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import KEY_GROUPS, expected, found_at, held_snapshot
from support.wait import wait_until
from tidegate.committers.opening.recover import recover
from tidegate.errors import StoreNotVerifiedError
from tidegate.keys.groups import key_group
from tidegate.sinks.records import ReadAt

VERSIONS = 4


def read_sync(query: Query) -> None:
    """By a reader that starts now."""
    assert found_at(query.store(), VERSIONS) == expected(VERSIONS)


def read_async(query: Query) -> None:
    async def read() -> None:
        connected = await tidegate.aio.connect(query.url, query.namespace, query.options)
        async with connected as gate, gate.snapshot() as snapshot:
            for table, rows in expected(VERSIONS).items():
                found = await snapshot.table(table).get_many(list(rows))
                assert {key: _plain(row) for key, row in found.items()} == rows
                scanned = {key: _plain(row) async for key, row in snapshot.table(table).scan()}
                assert scanned == rows

    asyncio.run(read())


def _plain(row):
    return row["value"] if isinstance(row, dict) else row


READS = pytest.mark.parametrize("read", [read_sync, read_async])


def follows(primary: RedisServer, replica: RedisServer) -> bool:
    mine, its = primary.info("replication"), replica.info("replication")
    return its["master_link_status"] == "up" and its["slave_repl_offset"] >= mine["master_repl_offset"]


def replid(server: RedisServer) -> str:
    return server.info("replication")["master_replid"]


def attach(private_redis: Callable[..., RedisServer], primary: RedisServer) -> RedisServer:
    """The first replica of a primary, which takes a new replication id for it."""
    before = replid(primary)
    replica = private_redis(settings={"replicaof": f"127.0.0.1 {primary.port}"})
    wait_until(lambda: follows(primary, replica), "the replica follows")
    assert replid(primary) != before
    return replica


@READS
def test_a_first_replica_is_attached(read, private_redis, tmp_path):
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        query.run(VERSIONS).store.close()
        with held_snapshot(query) as held:
            attach(private_redis, server)
            read(query)
            assert held.look() == "whole"
        driver = query.run(VERSIONS + 2)  # and a writer goes on
        assert not driver.store.unverified()
        query.check(VERSIONS + 2)


@READS
def test_a_primary_drops_its_backlog(read, private_redis, tmp_path):
    server = private_redis(settings={"repl-backlog-ttl": "1"})
    with query_on(server.url, tmp_path) as query:
        replica = attach(private_redis, server)
        query.run(VERSIONS).store.close()
        before = replid(server)
        replica.stop()
        wait_until(lambda: replid(server) != before, "the backlog is dropped")
        read(query)


def test_a_primary_that_was_a_replica_meanwhile_is_refused(private_redis, tmp_path):
    """The same process; but what it has now came from another one, which may have lacked the last writes."""
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        query.run(VERSIONS).store.close()
        replica = attach(private_redis, server)
        replica.ask("REPLICAOF", "NO", "ONE")
        server.ask("REPLICAOF", "127.0.0.1", replica.port)
        replica.ask("SET", "a write", "that it receives")
        wait_until(lambda: server.ask("EXISTS", "a write"), "it follows")
        server.ask("REPLICAOF", "NO", "ONE")
        for read in (read_sync, read_async):
            with pytest.raises(StoreNotVerifiedError):
                read(query)
        recover(query.open())
        read_sync(query)


# -- on a Cluster -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    yield redis_cluster
    redis_cluster.heal()


@pytest.fixture
def moving(cluster: RedisCluster, tmp_path) -> Iterator[Query]:
    with query_on(cluster.url, tmp_path) as made:
        driver = made.run(VERSIONS)
        made.retire(driver)
        driver.store.close()
        yield made


def move(cluster: RedisCluster, query: Query, group: int, to: RedisServer | None = None) -> RedisServer:
    slot = slot_of(query.keys_of(group))
    origin = cluster.owner_of(slot)
    to = to or next(each for each in cluster.primaries() if each is not origin)
    cluster.move_slot(slot, to)
    return to


@pytest.mark.xdist_group("redis_cluster")
@READS
def test_key_groups_that_moved_are_read(read, cluster: RedisCluster, moving: Query):
    with held_snapshot(moving) as held:
        for group in range(KEY_GROUPS):
            move(cluster, moving, group)
        assert held.look() == "whole"
    read(moving)
    origin = cluster.primary_of(moving.keys_of(0))
    move(cluster, moving, 0)
    move(cluster, moving, 0, origin)
    read(moving)


@pytest.mark.xdist_group("redis_cluster")
def test_a_writer_notes_where_key_groups_are_and_repairs_nothing(cluster, moving: Query, monkeypatch):
    move(cluster, moving, 0)
    driver = moving.open()
    move(cluster, moving, 1)
    monkeypatch.setattr("tidegate.committers.opening.recover.repair", _never)
    assert driver.store.unverified()
    recover(driver)
    assert not driver.store.unverified()
    move(cluster, moving, 2)
    moving.commit(driver, VERSIONS)  # without a look at where key groups are
    moving.check(VERSIONS + 1)


def _never(*_: object) -> None:
    raise AssertionError("nothing was lost")


@pytest.mark.xdist_group("redis_cluster")
def test_a_key_group_of_an_origin_that_failed_over_is_refused(cluster: RedisCluster, moving: Query):
    """Nobody can tell any more what it had when the key group left."""
    group = 0
    origin = cluster.primary_of(moving.keys_of(group))
    move(cluster, moving, group)
    (replica,) = cluster.replicas_of(origin)
    wait_until(lambda: follows(origin, replica), "all is replicated")
    cluster.promote(replica)
    store = moving.store()
    (entry,) = store.catalog(VERSIONS, VERSIONS)
    table = next(iter(entry.tables))
    with pytest.raises(StoreNotVerifiedError):
        list(store.scan(ReadAt(table, VERSIONS), group))
    keys = [key for key in expected(VERSIONS)[table] if key_group(key, KEY_GROUPS) == group]
    with tidegate.connect(moving.url, moving.namespace, moving.options) as gate:
        for key in keys or [b"nothing"]:
            with pytest.raises(StoreNotVerifiedError):
                gate.table(table).get(key)
    recover(moving.open())
    moving.check(VERSIONS)
