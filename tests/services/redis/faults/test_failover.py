"""A replica is promoted, with all that its primary had or without the last of it; the old one lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from services.support.redis.query import Moment, Query, query_on
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer
from services.support.workloads.query import AWAY_S, Reader, held_snapshot
from support.concurrency import Failpoints
from support.wait import wait_until
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.recover import recover
from tidegate.committers.repair.repair import repair
from tidegate.errors import FencedError, StoreNotVerifiedError, StoreUnavailableError, WalGapError
from tidegate.sinks.records import ReadAt

REFUSALS = {"StoreNotVerifiedError", "StoreUnavailableError", "VersionRegressedError"}


# -- what is lost ---------------------------------------------------------------------------------------


def a_version(query: Query, driver: Coordinator) -> None:
    query.commit(driver, 5)


def several_versions(query: Query, driver: Coordinator) -> None:
    query.commit(driver, 5, 6, 7)
    query.retire(driver)


def a_merge(query: Query, driver: Coordinator) -> None:
    query.retire(driver)


def a_claim(query: Query, driver: Coordinator) -> None:
    query.open()
    query.open()


def goes_on(query: Query, driver: Coordinator) -> None:
    """The driver that ran all along, unless it was fenced."""
    try:
        query.commit(driver, *range(9))
    except FencedError:
        query.run(9)


def opens(query: Query, driver: Coordinator) -> None:
    query.run(9)


def repairs(query: Query, driver: Coordinator) -> None:
    mender = query.driver()
    open_namespace(mender, None)
    repair(mender)
    query.commit(mender, *range(9))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "lost, after",
    [
        (a_version, goes_on),
        (several_versions, opens),
        (several_versions, repairs),
        (a_merge, goes_on),
        (a_claim, goes_on),
    ],
)
def test_what_is_lost_is_put_back(
    lost: Callable[..., None], after: Callable[..., None], private_redis, tmp_path
) -> None:
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(5)
        moment = Moment(server)
        with held_snapshot(query) as held, Reader(query) as reader:
            reader.wait_whole(5)
            lost(query, driver)
            moment.back()
            assert held.look() in {*REFUSALS, "SnapshotExpiredError"}  # it was not compared yet
            after(query, driver)
            reader.wait_whole(9)
            assert held.look() in {"whole", "SnapshotExpiredError"}
        query.check(9)


def test_a_server_is_lost_again_in_the_middle_of_a_repair(private_redis, tmp_path, failing_at: Failpoints):
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(3)
        moment = Moment(server)
        query.commit(driver, 3, 4)
        moment.back()
        at = failing_at.at("repair.before_listing", moment.back)
        query.commit(driver, 5)
        assert at.done
        query.check(6)


def test_the_log_was_trimmed_past_what_is_lost(private_redis, tmp_path):
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        query.run(3, summary_every=1)
        moment = Moment(server)
        query.run(5, summary_every=1)
        query.tidy(query.run(9, summary_every=1))
        moment.back()
        with pytest.raises(WalGapError):
            query.run(10)
        store = query.store()
        assert store.unverified()
        with pytest.raises(StoreNotVerifiedError):
            store.get_many(ReadAt("marker", 3), [b"m0"])


# -- behind Sentinels --------------------------------------------------------------------------------------


@pytest.fixture
def sentinel(redis_sentinel: RedisSentinel) -> Iterator[RedisSentinel]:
    yield redis_sentinel
    redis_sentinel.heal()


@pytest.fixture
def query(sentinel: RedisSentinel, tmp_path) -> Iterator[Query]:
    with query_on(sentinel.url, tmp_path) as made:
        yield made


@pytest.mark.xdist_group("redis_sentinel")
def test_the_promoted_replica_lacks_the_last_writes(sentinel: RedisSentinel, query: Query):
    driver = query.run(5)
    sentinel.wait_ready()
    with held_snapshot(query) as held, Reader(query) as reader:
        reader.wait_whole(5)
        sentinel.lose_last_writes(lambda _: several_versions(query, driver))
        assert held.look() in {*REFUSALS, "SnapshotExpiredError"}
        query.commit(driver, 8)
        reader.wait_whole(9)
    query.check(9)


@pytest.mark.xdist_group("redis_sentinel")
def test_a_failover_in_the_middle_of_a_commit(sentinel: RedisSentinel, query: Query, failing_at: Failpoints):
    driver = query.run(3)
    with Reader(query) as reader:
        reader.wait_whole(3)
        at = failing_at.at("publish.before", sentinel.failover)
        query.commit(driver, 3, 4)
        assert at.done
        reader.wait_whole(5)
    query.check(5)


@pytest.mark.xdist_group("redis_sentinel")
def test_nothing_visible_is_lost_where_a_replica_is_waited_for(sentinel: RedisSentinel, query: Query):
    query.run(5, wait_replicas=1)
    sentinel.wait_ready()
    hurried = query.open(wait_replicas=1, apply_deadline_s=AWAY_S)

    def decided_not_visible(_: RedisServer) -> None:
        with pytest.raises(StoreUnavailableError, match="only 0 of 1 replicas have version 6"):
            query.commit(hurried, 5)
        assert query.store().pointer().visible == 5

    with held_snapshot(query) as held, Reader(query) as reader:
        reader.wait_whole(5)
        sentinel.lose_last_writes(decided_not_visible)
        assert query.store().pointer().visible == 5
        sentinel.heal()
        query.run(8, wait_replicas=1)
        reader.wait_whole(8)
        assert held.look() in {"whole", "SnapshotExpiredError"}
    assert "VersionRegressedError" not in reader.refused
    query.check(8)


@pytest.mark.slow
@pytest.mark.xdist_group("redis_sentinel")
def test_a_failover_while_replicas_are_waited_for(
    sentinel: RedisSentinel, query: Query, failing_at: Failpoints
):
    """The servers change roles between a version's seal and the question who has it."""
    driver = query.run(3, wait_replicas=1)
    sentinel.wait_ready()
    with Reader(query) as reader:
        reader.wait_whole(3)
        at = failing_at.at("seal.after", sentinel.failover)
        query.commit(driver, 3, 4)
        assert at.done
        reader.wait_whole(5)
    assert "VersionRegressedError" not in reader.refused
    query.check(5)


# -- without Sentinels: who is what is the test's to say ------------------------------------------------


@pytest.fixture
def pair(private_redis) -> tuple[RedisServer, RedisServer]:
    """A primary and its replica."""
    primary = private_redis()
    replica = private_redis(settings={"replicaof": f"127.0.0.1 {primary.port}"})
    wait_until(lambda: _follows(primary, replica), "the replica follows")
    return primary, replica


def _follows(primary: RedisServer, replica: RedisServer) -> bool:
    mine, its = primary.info("replication"), replica.info("replication")
    return its["master_link_status"] == "up" and its["slave_repl_offset"] >= mine["master_repl_offset"]


def test_the_old_primary_lives_on(pair, tmp_path):
    """Its readers are right or refused; its writer is fenced by the log."""
    old, new = pair
    with query_on(old.url, tmp_path) as query:
        zombie = query.run(3)
        wait_until(lambda: _follows(old, new), "all is replicated")
        with held_snapshot(query) as held, Reader(query) as reader:
            reader.wait_whole(3)
            new.ask("REPLICAOF", "NO", "ONE")
            query.run(6, new.url)
            assert held.look() == "whole"
            with pytest.raises(FencedError):
                query.commit(zombie, 6)
            reader.wait_whole(3)
            assert set(reader.whole) == {3}
        query.check(6, new.url)


def test_the_old_primary_becomes_a_replica_under_its_readers(pair, tmp_path):
    old, new = pair
    with query_on(old.url, tmp_path, timeout_s=1.0) as query:
        query.run(3)
        wait_until(lambda: _follows(old, new), "all is replicated")
        with held_snapshot(query) as held:
            new.ask("REPLICAOF", "NO", "ONE")
            old.ask("REPLICAOF", "127.0.0.1", new.port)
            assert held.look() in REFUSALS
            query.run(5, new.url)
            assert held.look() in REFUSALS
        query.check(5, new.url)


@pytest.mark.parametrize("touched", [True, False])
def test_the_data_of_one_key_group_is_deleted(touched: bool, private_redis, tmp_path):
    """Nothing tells the writer of it but the group itself, or a repair that is asked for."""
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        query.retire(driver)
        with held_snapshot(query) as held:
            assert server.forget(query.keys_of(3)) > 1
            assert held.look() == "StoreNotVerifiedError"
            assert query.store().self_check().__next__().where.endswith("key group 3")
            if touched:
                query.commit(driver, 4)
            else:
                horizon = driver.store.pointer().horizon
                layers = [(version, 1, False) for version in range(horizon + 1, 5)]
                assert repair(driver) == [(horizon, 1, True), *layers]
                query.commit(driver, 4)
            assert held.look() == "whole"
        query.check(5)


@pytest.mark.parametrize("lost", ["b", "d"])
def test_rows_that_are_gone_while_their_header_stands_are_told_and_put_back(lost, private_redis, tmp_path):
    """Evicted, or deleted by hand: a reader is refused, not told that there is no row; nor by a scan."""
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        query.retire(driver)
        with held_snapshot(query) as held:
            assert server.forget(f"{query.keys_of(3)}*:{lost}") > 0
            for read in (held.get_all, held.get_many, held.scan_all):
                with pytest.raises(StoreNotVerifiedError, match="evicted"):
                    read()
            assert not driver.store.unverified()
            query.commit(driver, 4)
            with pytest.raises(StoreNotVerifiedError):
                query.retire(driver)
            assert driver.store.unverified()
            recover(driver)
            assert not driver.store.unverified()
            assert held.look() == "whole"
        query.retire(driver)
        query.check(5)


def test_readers_are_refused_until_all_of_a_lost_key_group_is_back(
    private_redis, tmp_path, failing_at: Failpoints
):
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        with held_snapshot(query) as held:
            server.forget(query.keys_of(1))
            looks: list[str] = []
            failing_at.at("repair.after_version", lambda: looks.append(held.look()), nth=2)
            query.commit(driver, 4)
            assert looks == ["StoreNotVerifiedError"]
            assert held.look() == "whole"
        query.check(5)


def test_a_repair_that_dies_leaves_the_lost_key_group_refused(
    private_redis, tmp_path, failing_at: Failpoints
):
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        driver = query.run(4)
        with held_snapshot(query) as held:
            server.forget(query.keys_of(1))
            failing_at.at("repair.after_version", _die, nth=2)
            with pytest.raises(Died):
                query.commit(driver, 4)
            assert held.look() == "StoreNotVerifiedError"
            query.run(5)
            repair(query.open())
            assert held.look() == "whole"
        query.check(5)


class Died(BaseException):
    pass


def _die() -> None:
    raise Died
