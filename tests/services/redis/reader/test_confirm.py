"""A version is visible only once replicas have it, or a disk: WAIT and WAITAOF on real servers.

On Redis 7.0, which has no WAITAOF, and on a newer server. They also differ in what WAIT counts behind a call
that wrote nothing (T32).
"""

import pytest

from services.support.redis.config import redis_program
from services.support.redis.query import query_on
from services.support.redis.server import RedisServer
from support.wait import wait_until
from tidegate.errors import ConfigError, StoreUnavailableError

FAST = {"socket_timeout": 1.0}
"""WAIT takes half of it."""


@pytest.fixture(params=["usual", "newer"])
def program(request: pytest.FixtureRequest) -> str:
    return redis_program() if request.param == "usual" else request.getfixturevalue("newer_redis")


def replica_of(private_redis, primary: RedisServer, program: str) -> RedisServer:
    replica = private_redis(settings={"replicaof": f"127.0.0.1 {primary.port}"}, program=program)

    def in_step() -> bool:
        return primary.info("replication").get("slave0", {}).get("state") == "online"

    wait_until(in_step, "the replica is in step")
    return replica


def test_t32_a_confirmation_covers_what_other_connections_wrote(private_redis, program, tmp_path):
    """All is written and stamped; the next driver has nothing to write, and waits all the same."""
    primary = private_redis(program=program)
    replica = replica_of(private_redis, primary, program)
    with query_on(primary.url, tmp_path) as query:
        query.run(1, wait_replicas=1)
        query.store(**FAST).confirm(1, replicas=1, aof=False)
        replica.pause()
        query.run(2)  # does not wait for anybody
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="only 0 of 1 replicas have version 2"):
                query.store(**FAST).confirm(2, replicas=1, aof=False)
        replica.resume()
        query.store().confirm(2, replicas=1, aof=False)
        query.check(2, primary.url)


def test_a_version_is_visible_when_it_is_fsynced(private_redis, newer_redis, tmp_path):
    server = private_redis(program=newer_redis, settings={"appendfsync": "everysec"})
    with query_on(server.url, tmp_path) as query:
        query.run(3, wait_aof=True)
        query.check(3, server.url)
        calls = server.info("commandstats")["cmdstat_waitaof"]
        assert (calls["calls"], calls["failed_calls"]) == (3, 0)
        server.kill()  # nothing that is visible goes with it
        server.start()
        query.run(4, wait_aof=True)  # compares it with the log
        query.check(4, server.url)


def test_what_is_not_fsynced_is_not_confirmed(private_redis, newer_redis, tmp_path):
    server = private_redis(program=newer_redis, settings={"appendfsync": "no"})
    with query_on(server.url, tmp_path) as query:
        query.run(1)
        with pytest.raises(StoreUnavailableError, match=r"not fsynced version 1 in time.*appendfsync"):
            query.store(**FAST).confirm(1, replicas=0, aof=True)
        server.ask("CONFIG", "SET", "appendfsync", "always")
        query.store().confirm(1, replicas=0, aof=True)


def test_fsync_on_replicas_too(private_redis, newer_redis, tmp_path):
    primary = private_redis(program=newer_redis)
    replica = replica_of(private_redis, primary, newer_redis)
    with query_on(primary.url, tmp_path) as query:
        query.run(2, wait_aof=True, wait_replicas=1)
        replica.pause()
        with pytest.raises(StoreUnavailableError, match="only 0 of 1 replicas have version 2"):
            query.store(**FAST).confirm(2, replicas=1, aof=True)
        replica.resume()


def test_no_append_only_file_is_refused_before_anything_is_written(private_redis, newer_redis, tmp_path):
    server = private_redis(program=newer_redis, settings={"appendonly": "no"})
    with query_on(server.url, tmp_path) as query:
        with pytest.raises(ConfigError, match="wait_aof needs appendonly yes"):
            query.run(1, wait_aof=True, allow_unsafe=True)
        assert list(query.log().decisions()) == []
        query.run(1)
        with pytest.raises(ConfigError, match="wait_aof needs appendonly yes"):
            query.store().confirm(1, replicas=0, aof=True)  # it was switched off behind the driver's back


def test_redis_70_is_refused_before_anything_is_written(redis: RedisServer, tmp_path):
    if tuple(int(part) for part in redis.info("server")["redis_version"].split(".")[:2]) >= (7, 2):
        pytest.skip("this server knows WAITAOF")
    with query_on(redis.url, tmp_path) as query:
        with pytest.raises(ConfigError, match=r"Redis 7\.0\.\d+; wait_aof needs 7\.2"):
            query.run(1, wait_aof=True)
        assert list(query.log().decisions()) == []
        query.run(1)
        with pytest.raises(ConfigError, match=r"wait_aof needs Redis 7\.2"):
            query.store().confirm(1, replicas=0, aof=True)
        redis.forget(query.namespace)
