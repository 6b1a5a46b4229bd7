"""A reply of each kind is lost once; a request of each kind arrives late, from a driver of yesterday."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.support.redis.proxy import RedisProxy
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import Reader, expected, found_at
from support.concurrency import Meanwhile
from tidegate.committers.repair.repair import repair
from tidegate.errors import FencedError, TidegateError
from tidegate.sinks.redis import reads
from tidegate.sinks.redis.client.functions import library_name

FUNCTION = {"read", "scan", "pointer", "catalog", "schemas", "look", "header", "leases"}


@pytest.fixture
def proxy(redis: RedisServer) -> Iterator[RedisProxy]:
    with RedisProxy(("127.0.0.1", redis.port)) as made:
        yield made


@pytest.fixture
def query(redis: RedisServer, proxy: RedisProxy, tmp_path) -> Iterator[Query]:
    """It goes by the proxy; the tests look without it."""
    host, port = proxy.address
    with query_on(f"redis://{host}:{port}", tmp_path) as made:
        yield made
        redis.forget(made.namespace)


def command(name: str) -> tuple[str, str]:
    return ("FCALL_RO" if name in FUNCTION else "FCALL", f"{library_name()}_{name}")


CREATING = ["create", "make", "ready", "claim"]
WRITING = ["put_schemas", "seal_many", "publish", "announce", "merge", "forget", "pointer", "catalog"]
READING = ["read", "scan", "pointer", "lease", "release", "schemas", "HMGET"]


@pytest.mark.parametrize("name", CREATING)
def test_a_reply_is_lost_while_it_is_made(name: str, redis: RedisServer, proxy: RedisProxy, query: Query):
    lost = proxy.drop_reply(*command(name))
    query.run(2)
    assert lost.hits == 1
    query.check(2, redis.url)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [*WRITING, "HSET", "INFO"])
def test_a_reply_is_lost_while_it_writes(name: str, redis: RedisServer, proxy: RedisProxy, query: Query):
    driver = query.run(3)
    kind = (name,) if name.isupper() else command(name)
    lost = proxy.drop_reply(*kind)
    with Reader(query, url=redis.url) as reader:
        query.commit(driver, 3)
        query.retire(driver)
        query.commit(driver, 4)
        reader.wait_whole(5)
    assert lost.hits == 1
    query.check(5, redis.url)


def test_the_reply_of_every_publish_is_lost(redis: RedisServer, proxy: RedisProxy, query: Query):
    """Each version becomes visible, once."""
    driver = query.run(1)
    lost = proxy.drop_reply(*command("publish"), times=None)
    query.commit(driver, 1, 2, 3)
    assert lost.hits == 3
    query.check(4, redis.url)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", READING)
def test_a_reply_is_lost_to_a_reader(
    name: str, redis: RedisServer, proxy: RedisProxy, query: Query, monkeypatch: pytest.MonkeyPatch
):
    if name == "scan":
        monkeypatch.setattr(reads, "FEW_ROWS", 1)  # else one call returns all rows of a key group
    query.run(3, redis.url)
    lost = proxy.drop_reply(*(("HMGET",) if name == "HMGET" else command(name)))
    with Reader(query) as reader:
        reader.wait_whole(3)
        lost.wait()
        reader.wait_whole(3)
        assert not reader.refused
    query.check(3, redis.url)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["header", "begin_rebuild", "end_rebuild", "list_servers", "look"])
def test_a_reply_is_lost_while_it_repairs(name: str, redis: RedisServer, proxy: RedisProxy, query: Query):
    driver = query.run(3)
    redis.forget(query.keys_of(2))
    lost = proxy.drop_reply(*command(name))
    repair(driver)
    assert lost.hits == 1
    query.check(3, redis.url)


LATE = ["HSET", "seal_many", "publish", "claim", "put_schemas", "announce", "merge", "forget", "list_servers"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", LATE)
def test_a_request_arrives_late(
    name: str, redis: RedisServer, proxy: RedisProxy, query: Query, meanwhile: Meanwhile
):
    """A driver stands still with its request under way, a newer one goes on; then the request arrives."""
    zombie = query.run(4)
    kind = (name,) if name.isupper() else command(name)
    late = proxy.hold_request(*kind)

    def dies() -> None:
        try:
            if name == "list_servers":
                repair(zombie)
            elif name == "claim":
                query.open()
            else:
                query.commit(zombie, 4)
                query.retire(zombie)
        except (FencedError, TidegateError):
            pass

    dying = meanwhile.start(dies)
    late.arrived()
    with Reader(query, url=redis.url) as reader:
        newer = query.run(5, redis.url)
        for batch_id in range(5, 9):
            query.commit(newer, batch_id)
            query.retire(newer)
        reader.wait_whole(9)
        before = {version: found_at(query.store(redis.url), version) for version in (7, 8, 9)}
        late.release()
        late.remove()
        dying.result(60)
        reader.wait_whole(9)
    assert {version: found_at(query.store(redis.url), version) for version in (7, 8, 9)} == before
    assert before == {version: expected(version) for version in (7, 8, 9)}
    assert query.store(redis.url).pointer().epoch >= newer.epoch
    query.run(10, redis.url)
    query.check(10, redis.url)
