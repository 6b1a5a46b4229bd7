"""A store on Redis that is filled from another one: what its keys hold, and what a server's loss leads to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from services.support.redis.cluster import RedisCluster
from services.support.redis.query import Moment, Query
from services.support.redis.server import RedisServer
from services.support.workloads.query import expected, found_at
from support.concurrency import Failpoints
from tidegate.committers.background.membership import add_store
from tidegate.errors import StoreLostError, StoreNotVerifiedError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.keys import header_key, meta_key
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    chunks_of,
    counts_of,
    entry,
    get,
    put,
    scanned,
    stamp,
    write,
)

STATE = {"t": {b"k%d" % n: b"at-5" for n in range(40)}}
OLDER = {"t": {b"old-%d" % n: b"at-3" for n in range(40)}, "u": {b"u": b"at-3"}}
ADD_AGAIN = "`tidegate store add NAME=URL`"


def made_at(url: str, name: str, key_groups: int = KEY_GROUPS) -> RedisStore:
    made = RedisStore(url, name)
    made.create(Identity("uuid", name, key_groups))
    made.claim(EPOCH, "writer")
    return made


@pytest.fixture
def store(redis: RedisServer, namespace: str) -> Iterator[RedisStore]:
    with contextlib.closing(made_at(redis.url, namespace, 1)) as made:
        yield made


@pytest.fixture
def name(namespace: str) -> str:
    return f"tg:{{{namespace}/0}}:"


def apply(store: RedisStore, version: int, changes) -> None:
    for chunk in chunks_of(changes, 1):
        store.apply(stamp(version), chunk)


def filled(store: RedisStore, version: int, key_groups: int = KEY_GROUPS) -> None:
    assert store.begin_fill(entry(version, STATE), EPOCH) == version
    write(store, version, STATE, key_groups)
    assert store.publish_filled(entry(version, STATE), EPOCH)


def repaired(store: RedisStore) -> int:
    with store.comparing(EPOCH) as oldest:
        return oldest


# -- what its keys hold ---------------------------------------------------------------------------------


def test_what_was_filled_is_the_base(store, redis, name, namespace):
    filled(store, 5, 1)
    header = redis.ask("HGETALL", f"{name}h")
    assert (header["floor"], header["b:t"]) == ("5", "5")
    assert not {"l:t", "filling"} & header.keys()
    assert redis.ask("HLEN", f"{name}t:b") == len(STATE["t"])
    assert redis.ask("HGET", f"tg:{{{namespace}}}:meta", "filled") == "5"
    apply(store, 5, {"t": {b"k0": None, b"late": b"at-5"}})
    store.seal(stamp(5), counts_of(OLDER, 1))
    apply(store, 5, {"t": {b"k0": None, b"late": b"at-5"}})
    assert get(store, "t", [b"k0", b"late"], 5) == [b"at-5", None]
    assert store.vacuum().rows == 2
    assert scanned(store, "t", 5, key_groups=1) == STATE["t"]


@pytest.mark.parametrize("came_to", ["applied", "sealed", "ended"])
def test_what_an_older_fill_left_is_gone_before_the_next_one_comes(came_to, store, redis, name):
    store.begin_fill(entry(3, OLDER), EPOCH)
    apply(store, 3, OLDER)
    if came_to != "applied":
        store.seal(stamp(3), counts_of(OLDER, 1))
    if came_to == "ended":
        store._fill.end(3)
    store.begin_fill(entry(5, STATE), EPOCH)
    assert redis.ask("KEYS", f"{name}*") == [f"{name}h"]
    header = redis.ask("HGETALL", f"{name}h")
    assert header.keys() == {"u", "s", "floor", "filling"}
    assert (header["floor"], header["filling"]) == ("4", "5")
    apply(store, 3, OLDER)
    store.seal(stamp(3), counts_of(OLDER, 1))
    write(store, 5, STATE, 1)
    assert store.publish_filled(entry(5, STATE), EPOCH)
    assert scanned(store, "t", 5, key_groups=1) == STATE["t"]
    assert scanned(store, "u", 5, key_groups=1) == {}


def test_calls_of_a_fill_that_come_late_change_nothing(store, redis, name):
    """Also those of the fill that was published."""
    filled(store, 5, 1)
    put(store, 6, {"t": {b"k1": None}}, 1)
    put(store, 7, {"t": {b"k2": b"at-7"}}, 1)
    store.announce(6)
    store.retire(stamp(6), counts_of({"t": {b"k1": None}}, 1), iter(()))
    before = redis.ask("HGETALL", f"{name}h"), redis.ask("HGETALL", f"{name}t:b")
    for late in ("begin_fill", "end_fill"):
        for version in (3, 5):
            space = store._space
            space.asked([space.of_group(0, late, b"%d" % version)])
    assert (redis.ask("HGETALL", f"{name}h"), redis.ask("HGETALL", f"{name}t:b")) == before
    assert scanned(store, "t", 7, key_groups=1) == {
        **{key: value for key, value in STATE["t"].items() if key != b"k1"},
        b"k2": b"at-7",
    }


def test_a_fill_whose_merge_is_under_way_ends_whole(store, redis, name):
    """Whoever merges up to the horizon meanwhile has moved some rows to the base."""
    redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "0")
    try:
        store.begin_fill(entry(5, STATE), EPOCH)
        for chunk in chunks_of(STATE, 1):
            store.apply(stamp(5), chunk)
        store.seal(stamp(5), counts_of(STATE, 1))  # without a digest: a row at a time
        space = store._space
        ((done, *_),) = space.asked([space.of_group(0, "merge", b"t", b"5", b"0", b"1", b"0")])
        assert not done
        assert store.publish_filled(entry(5, STATE), EPOCH)
        assert scanned(store, "t", 5, key_groups=1) == STATE["t"]
        store.vacuum()
        assert redis.ask("HLEN", f"{name}t:b") == len(STATE["t"])
    finally:
        redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "128")


def test_nothing_but_the_marked_version_becomes_visible_first(store):
    store.begin_fill(entry(5, STATE), EPOCH)
    write(store, 1, STATE, 1)
    assert not store.publish(entry(1, STATE), EPOCH)
    store.begin_fill(entry(6, STATE), EPOCH)
    for version in (5, 7):
        assert not store._flip("publish_filled", entry(version, STATE), EPOCH)
    assert store.pointer().visible == 0


# -- servers that lose something ------------------------------------------------------------------------


def test_a_server_that_lost_a_seal_is_filled_again(private_redis):
    server = private_redis()
    with contextlib.closing(made_at(server.url, "n")) as store:
        store.begin_fill(entry(5, STATE), EPOCH)
        moment = Moment(server)
        write(store, 5, STATE)
        moment.back()
        with pytest.raises(StoreNotVerifiedError):
            store.publish_filled(entry(5, STATE), EPOCH)
        assert repaired(store) > 5  # the log's part of version 5 is never applied there
        with pytest.raises(StoreNotVerifiedError, match="filled again"):
            store.publish_filled(entry(5, STATE), EPOCH)
        filled(store, 5)
        assert scanned(store, "t", 5) == STATE["t"]


def test_a_server_that_lost_the_flip_is_filled_again_also_at_a_later_version(private_redis):
    server = private_redis()
    with contextlib.closing(made_at(server.url, "n")) as store:
        store.begin_fill(entry(5, OLDER), EPOCH)
        write(store, 5, OLDER)
        store._fill.end(5)
        moment = Moment(server)
        assert store.publish_filled(entry(5, OLDER), EPOCH)
        moment.back()
        assert repaired(store) > 5
        filled(store, 9)
        assert scanned(store, "t", 9) == STATE["t"]


def test_versions_behind_a_fill_are_put_back_and_the_fill_is_not_asked_for(private_redis):
    server = private_redis()
    with contextlib.closing(made_at(server.url, "n")) as store:
        filled(store, 5)
        moment = Moment(server)
        put(store, 6, STATE)
        moment.back()
        assert repaired(store) == 6
        put(store, 6, {"t": {b"k0": None}})
        assert get(store, "t", [b"k0", b"k1"], 6) == [None, b"at-5"]


def test_a_key_group_that_was_filled_and_lost_its_header_is_refused(private_redis):
    """Repair looks for all of it in the log, which does not hold it here; the others are readable."""
    server = private_redis()
    with contextlib.closing(made_at(server.url, "n")) as store:
        filled(store, 5)
        server.ask("UNLINK", header_key("n", 2))
        for _ in range(2):
            with store.comparing(EPOCH):
                (lost,) = store.lost()
                assert (lost.group, lost.since, lost.horizon) == (2, 0, 5)
                store.keep_lost(2, 0)
            with pytest.raises(StoreNotVerifiedError, match="lost all of it"):
                scanned(store, "t", 5)
            assert store.unverified()


def test_a_server_that_went_back_into_a_fill_is_refused(private_redis):
    server = private_redis()
    with contextlib.closing(made_at(server.url, "n")) as store:
        filled(store, 5)
        server.ask("HSET", header_key("n", 2), "floor", 4, "filling", 5)
        for _ in range(2):
            with pytest.raises(WalGapError, match=ADD_AGAIN):
                repaired(store)


# -- on a Cluster the pointer and the key groups are of different moments -------------------------------


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    yield redis_cluster
    redis_cluster.heal()


def shards(cluster: RedisCluster, name: str) -> tuple[RedisServer, RedisServer]:
    """The server with the pointer, and one that has a key group and not the pointer."""
    pointers = cluster.primary_of(meta_key(name).decode())
    of_groups = [cluster.primary_of(header_key(name, group).decode()) for group in range(KEY_GROUPS)]
    return pointers, next(server for server in of_groups if server is not pointers)


@pytest.mark.xdist_group("redis_cluster")
def test_a_shard_that_was_filled_comes_back_empty(cluster: RedisCluster, namespace: str):
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        filled(store, 5)
        cluster.restart_empty(shards(cluster, namespace)[1])
        with store.comparing(EPOCH):
            assert {lost.since for lost in store.lost()} == {0}
            for lost in store.lost():
                store.keep_lost(lost.group, lost.since)
        with pytest.raises(StoreNotVerifiedError, match="lost all of it"):
            scanned(store, "t", 5)
        assert store.drop()
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        filled(store, 5)
        assert scanned(store, "t", 5) == STATE["t"]
        store.drop()


@pytest.mark.xdist_group("redis_cluster")
def test_a_shard_that_is_being_filled_comes_back_empty(cluster: RedisCluster, namespace: str):
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        store.begin_fill(entry(5, STATE), EPOCH)
        write(store, 5, STATE)
        cluster.restart_empty(shards(cluster, namespace)[1])
        with pytest.raises(StoreNotVerifiedError):
            store.publish_filled(entry(5, STATE), EPOCH)
        assert repaired(store) > 5
        filled(store, 5)
        assert scanned(store, "t", 5) == STATE["t"]
        store.drop()


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.xdist_group("redis_cluster")
def test_the_pointer_of_a_filled_store_is_lost(ended: bool, cluster: RedisCluster, namespace: str):
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        store.begin_fill(entry(5, STATE), EPOCH)
        if ended:
            write(store, 5, STATE)
            assert store.publish_filled(entry(5, STATE), EPOCH)
        cluster.restart_empty(shards(cluster, namespace)[0])
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        with pytest.raises(WalGapError, match=ADD_AGAIN):
            store.begin_fill(entry(5, STATE), EPOCH)
        if not ended:  # its key groups hold nothing, whatever was sealed there since
            write(store, 1, STATE)
            with pytest.raises(WalGapError, match=ADD_AGAIN):
                store.publish(entry(1, STATE), EPOCH)
        assert store.pointer().visible == 0
        store.drop()


@pytest.mark.xdist_group("redis_cluster")
def test_the_pointer_goes_back_to_the_middle_of_a_fill(cluster: RedisCluster, namespace: str):
    """What was visible meanwhile is read by others still, from the servers that have it."""
    with contextlib.closing(made_at(cluster.url, namespace)) as store:
        filled(store, 5)
        meta = meta_key(namespace).decode()
        pointers, _ = shards(cluster, namespace)
        pointers.ask("HDEL", meta, "filled")
        pointers.ask("HSET", meta, "visible", 0)
        with pytest.raises(WalGapError, match=ADD_AGAIN):
            repaired(store)
        store.drop()


# -- with a log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["fill.after_group", "publish.before"])
def test_a_store_whose_server_goes_back_while_it_is_filled(
    place: str, private_redis, tmp_path, failing_at: Failpoints
):
    """The log was trimmed, so that nothing of it can come from there."""
    server = private_redis()
    source = Query(f"sqlite://{tmp_path}/a", tmp_path)
    try:
        driver = source.run(9, summary_every=1)
        source.tidy(driver)
        adding = source.driver()
        adding.decisions.catch_up()
        copy = source.store(server.url)
        follower = add_store(adding, StoreRef("copy", server.url), copy)
        begun: list[Moment] = []

        def goes_back() -> None:
            begun[0].back()

        failing_at.at("fill.after_begin", lambda: begun.append(Moment(server)))
        at = failing_at.at(place, goes_back, nth=2 if place == "fill.after_group" else 1)
        assert follower.catch_up().visible == 9
        assert at.done
        assert found_at(copy, 9) == expected(9)
        assert copy.pointer().horizon == 9
    finally:
        source.close()


@pytest.mark.parametrize("loss", ["rebuilt", "filled"])
def test_i8_a_reader_from_before_a_loss_is_refused_until_all_rows_are_back(loss, redis, namespace):
    """It trusts the server, whose replication id is the same: a row that was lost is not absent for it."""
    with contextlib.ExitStack() as closed:
        before, reader, after = (
            closed.enter_context(contextlib.closing(RedisStore(redis.url, namespace))) for _ in range(3)
        )
        identity = Identity("uuid", namespace, KEY_GROUPS)
        before.create(identity)
        before.claim(EPOCH, "writer")
        for version in (1, 2):
            put(before, version, STATE)
        assert reader.pointer().visible == 2
        assert scanned(reader, "t", 2) == STATE["t"]
        with redis.client() as client:
            client.delete(*client.scan_iter(match=f"tg:{{{namespace}*"))
        after.create(identity, 2 if loss == "rebuilt" else 0)
        if loss == "filled":
            after.claim(EPOCH, "writer")
            assert after.begin_fill(entry(2, STATE), EPOCH) == 2
        for read in (lambda: get(reader, "t", [b"k1"], 2), lambda: scanned(reader, "t", 2)):
            with pytest.raises((StoreLostError, StoreNotVerifiedError)):
                read()
