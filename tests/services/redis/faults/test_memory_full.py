"""Memory that is full, functions that vanish, commands that are barred, users who may not: what is said."""

from __future__ import annotations

import pytest

from services.support.redis.query import Query, query_on
from services.support.workloads.query import Reader
from support.concurrency import Failpoints
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError

PASSWORD, WRONG = "s3cret-Pa55", "wr0ng-Pa55"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.parametrize("place", ["apply.before_chunk", "apply.after_chunk", "seal.after"])
def test_memory_is_full(place: str, functions: bool, private_redis, tmp_path, failing_at: Failpoints):
    """I1: nothing half visible, and it goes on when memory is given."""
    server = private_redis(settings={"maxmemory-policy": "noeviction"})
    with query_on(server.url, tmp_path, functions=functions) as query:
        query.run(3)
        driver = query.open(apply_deadline_s=0.5)
        with Reader(query) as reader:
            failing_at.at(place, server.fill_memory)
            with pytest.raises(StoreUnavailableError) as raised:
                query.commit(driver, 3)
            if place != "seal.after":
                assert "maxmemory" in str(raised.value)
                assert "vacuum" in str(raised.value)
            assert query.store().pointer().visible == 3
            server.ask("CONFIG", "SET", "maxmemory", 0)
            reader.wait_whole(3)
            query.run(5)
            reader.wait_whole(5)
        query.check(5)


@pytest.mark.parametrize("functions", [True, False])
def test_memory_that_is_full_can_be_freed(functions: bool, private_redis, tmp_path):
    """What frees memory runs when there is none: retirement, leases, vacuum."""
    server = private_redis()
    with query_on(server.url, tmp_path, functions=functions) as query:
        driver = query.run(6)
        server.fill_memory()
        query.retire(driver)
        driver.store.vacuum()
        driver.store.heartbeat(driver.epoch)
        driver.store.stamp(6)  # before the log is trimmed
        assert driver.store.pointer().horizon == 4
        server.ask("CONFIG", "SET", "maxmemory", 0)
        query.check(6)


def test_a_writer_without_room_retires_first(private_redis, tmp_path):
    """What waits for the room is what could be retired: a driver that recovers has no thread for it yet."""
    server = private_redis()
    with query_on(server.url, tmp_path) as query:
        query.run(6)
        server.fill_memory()
        with pytest.raises(StoreUnavailableError):
            query.commit(query.open(apply_deadline_s=0.5), 6)
        assert query.store().pointer().horizon == 4
        with pytest.raises(StoreUnavailableError):  # it fails in the recovery
            query.open(apply_deadline_s=0.5, keep_versions=1)
        assert query.store().pointer().horizon == 6
        server.ask("CONFIG", "SET", "maxmemory", 0)
        query.run(8)
        query.check(8)


@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.parametrize("flush", [("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH")])
@pytest.mark.parametrize("place", ["apply.after_chunk", "publish.before"])
def test_functions_vanish(
    place: str, flush, functions: bool, private_redis, tmp_path, failing_at: Failpoints
):
    server = private_redis()
    with query_on(server.url, tmp_path, functions=functions) as query, query_on(server.url, tmp_path):
        driver = query.run(2)
        with Reader(query) as reader:
            reader.wait_whole(2)
            failing_at.at(place, lambda: server.ask(*flush))
            query.commit(driver, 2, 3)
            query.retire(driver)
            reader.wait_whole(4)
            assert not reader.refused
        query.check(4)


@pytest.mark.parametrize(
    "options",
    [
        {"barred": ["FUNCTION"]},
        {"barred": ["FCALL", "FCALL_RO"]},
        {"users": {"app": f"on >{PASSWORD} ~* &* +@all -function"}},
        {"users": {"app": f"on >{PASSWORD} ~* &* +@all -fcall -fcall_ro"}},
        {"users": {"app": f"on >{PASSWORD} ~* &* +@all -function -fcall -fcall_ro"}},
    ],
)
def test_functions_are_barred(options, private_redis, tmp_path):
    server = private_redis(**options)
    url = server.url_for("app", PASSWORD) if "users" in options else server.url
    with query_on(url, tmp_path) as query:
        query.retire(query.run(5))
        query.check(5)


def said(query: Query) -> str:
    with pytest.raises(ConfigError) as raised:
        query.run(1)
    return str(raised.value)


NO_SCRIPTS = "-eval -evalsha -evalsha_ro -fcall -fcall_ro"


@pytest.mark.parametrize(
    "denied, functions",
    [
        ("-hset", True),
        ("-hset", False),
        ("-info", True),
        (NO_SCRIPTS, True),
        (NO_SCRIPTS, False),
        ("-script -function", False),
    ],
)
def test_a_user_who_may_not(denied: str, functions: bool, private_redis, tmp_path):
    """ConfigError names what is missing, at once, and never the password."""
    server = private_redis(users={"app": f"on >{PASSWORD} ~* &* +@all {denied}"})
    with query_on(server.url_for("app", PASSWORD), tmp_path, functions=functions, timeout_s=5.0) as query:
        told = said(query)
        assert "this user" in told
        assert PASSWORD not in told


def test_a_user_of_other_keys(private_redis, tmp_path):
    server = private_redis(users={"app": f"on >{PASSWORD} ~other:* &* +@all"})
    with query_on(server.url_for("app", PASSWORD), tmp_path, timeout_s=5.0) as query:
        told = said(query)
        assert "ermission" in told
        assert PASSWORD not in told


@pytest.mark.parametrize("login", [("app", WRONG), ("nobody", PASSWORD), (None, None)])
def test_a_wrong_login(login, private_redis, tmp_path):
    server = private_redis(users={"app": f"on >{PASSWORD} ~* &* +@all"})
    with query_on(server.url_for(*login), tmp_path, timeout_s=5.0) as query:
        told = said(query)
        assert PASSWORD not in told
        assert WRONG not in told


def test_the_password_is_changed_under_a_query(private_redis, tmp_path):
    server = private_redis(users={"app": f"on >{PASSWORD} ~* &* +@all"})
    with query_on(server.url_for("app", PASSWORD), tmp_path, timeout_s=5.0) as query:
        driver = query.run(2)
        server.ask("ACL", "SETUSER", "app", "resetpass", f">{WRONG}")
        server.ask("CLIENT", "KILL", "USER", "app")
        with pytest.raises(TidegateError) as raised:
            query.commit(driver, 2)
        assert isinstance(raised.value, ConfigError)
        assert PASSWORD not in str(raised.value)
