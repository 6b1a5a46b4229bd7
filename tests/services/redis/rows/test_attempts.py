"""Redis: what an attempt that the log lost sends late is sealed nowhere, also without the pointer's note."""

import pytest

from tidegate.errors import WalGapError
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.keys import slot_of
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.attempt_tests import AFTER_NEW, FIRST, LOST, MINE, NEW, OTHER, of
from tidegate.testing.store.harness import EPOCH, KEY_GROUPS, chunks_of, counts_of, entry, put, scanned

ONLY_LOST = {"t": {b"ghost-%d" % i: b"lost" for i in range(30)}}


@pytest.fixture
def store(redis, namespace):
    store = RedisStore(redis.url, namespace)
    store.create(Identity("uuid-1", namespace, KEY_GROUPS))
    store.claim(EPOCH, "writer-1")
    put(store, 1, FIRST)
    yield store
    store.drop()
    store.close()


def test_a_seal_that_was_on_its_way_when_its_attempt_was_discarded_is_refused(store):
    """Its key groups are others than those of the next attempt, so nothing else would stop it."""
    store.begin(of(OTHER), [], EPOCH)
    store.discard([of(OTHER)], EPOCH)
    store.begin(of(MINE, at_us=1), [], EPOCH)
    store.apply(of(MINE, at_us=1), *chunks_of(NEW))
    store.seal(of(MINE, at_us=1), counts_of(NEW))
    store.apply(of(OTHER), *chunks_of(ONLY_LOST))
    with pytest.raises(WalGapError, match=OTHER):
        store.seal(of(OTHER), counts_of(ONLY_LOST))
    assert store.publish(entry(2, NEW), EPOCH)
    assert scanned(store, "t", 2) == AFTER_NEW


def test_a_key_group_that_was_sealed_by_another_attempt_says_so(store, redis, namespace):
    """The pointer's server of a Cluster may lose the note, and another one keep the seal."""
    store.begin(of(OTHER), [], EPOCH)
    store.apply(of(OTHER), *chunks_of(LOST))
    store.seal(of(OTHER), counts_of(LOST))
    redis.ask("HDEL", f"tg:{{{namespace}}}:meta", "begun:2")
    store.begin(of(MINE, at_us=1), [], EPOCH)
    store.apply(of(MINE, at_us=1), *chunks_of(NEW))
    with pytest.raises(WalGapError, match=OTHER):
        store.seal(of(MINE, at_us=1), counts_of(NEW))


def test_rows_of_two_attempts_do_not_meet_before_a_seal(store):
    store.begin(of(MINE), [], EPOCH)
    store.apply(of(OTHER), *chunks_of(LOST))
    store.apply(of(MINE), *chunks_of(NEW))
    store.apply(of(OTHER), *chunks_of({"t": dict.fromkeys(NEW["t"], b"late")}))
    store.seal(of(MINE), counts_of(NEW))
    assert store.publish(entry(2, NEW), EPOCH)
    store.apply(of(OTHER), *chunks_of({"t": dict.fromkeys(NEW["t"], b"late")}))
    assert scanned(store, "t", 2) == AFTER_NEW
    assert store.vacuum(thorough=True).rows  # an attempt that was never begun is noted nowhere


def test_a_cluster_finds_in_its_headers_what_its_pointer_lost(redis_cluster, namespace):
    store = RedisStore(redis_cluster.url, namespace)
    store.create(Identity("uuid-1", namespace, KEY_GROUPS))
    store.claim(EPOCH, "writer-1")
    put(store, 1, FIRST)
    store.begin(of(OTHER), [], EPOCH)
    store.apply(of(OTHER), *chunks_of(LOST))
    store.seal(of(OTHER), counts_of(LOST))
    meta = f"tg:{{{namespace}}}:meta"
    redis_cluster.owner_of(slot_of(meta.encode())).ask("HDEL", meta, "begun:2")
    assert store.begun() == [of(OTHER)]
    store.discard([of(OTHER)], EPOCH)
    assert [one.attempt for one in store.begun()] == [""]
    store.drop()
    store.close()


def test_a_key_group_that_went_back_behind_a_discard_is_discarded_again(store, redis, namespace):
    """A replica that had the lost attempt's seal, and not its discard, is promoted after the next attempt."""
    groups = [f"tg:{{{namespace}/{group}}}:" for group in range(KEY_GROUPS)]
    store.begin(of(OTHER), [], EPOCH)
    store.apply(of(OTHER), *chunks_of(ONLY_LOST))
    store.seal(of(OTHER), counts_of(ONLY_LOST))
    with redis.client(decode_responses=False) as client:
        old = {key: client.dump(key) for group in groups for key in client.keys(f"{group}*")}
        store.discard([of(OTHER)], EPOCH)
        store.begin(of(MINE, at_us=1), [], EPOCH)
        store.apply(of(MINE, at_us=1), *chunks_of(NEW))
        store.seal(of(MINE, at_us=1), counts_of(NEW))
        assert store.publish(entry(2, NEW), EPOCH)
        for group in groups:
            client.delete(*client.keys(f"{group}*"))
        for key, content in old.items():
            client.restore(key, 0, content)
    with store.comparing(EPOCH) as oldest:
        assert oldest == 1
        assert {lost.since for lost in store.lost()} == {2}
        missing = store.missing(of(MINE, at_us=1), counts_of(NEW))
        assert missing == counts_of(NEW)
        store.apply(of(MINE, at_us=1), *chunks_of(NEW))
        store.seal(of(MINE, at_us=1), counts_of(NEW))
    assert not store.unverified()
    assert scanned(store, "t", 2) == AFTER_NEW
