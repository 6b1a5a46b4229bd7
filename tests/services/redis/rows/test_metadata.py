"""Where tasks ran, kept in Redis: another process finds it, it goes with its namespace, and is a hint."""

import os
import subprocess
import sys

import pytest

from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis.locations import RedisMetadataStore
from tidegate.spark.placement.assignment import RanAt
from tidegate.spark.placement.locality import LocalityManager

RAN = [RanAt("0", "host-a"), None, RanAt("11", "h\u00f6st b")]
ASK = (
    "import sys; from tidegate.sinks.redis.locations import *; print(RedisMetadataStore(*sys.argv[1:]).all())"
)


@pytest.fixture
def namespace():
    return f"locality-{os.urandom(4).hex()}"


@pytest.fixture
def store(redis, namespace):
    made = RedisMetadataStore(redis.url, namespace)
    yield made
    made.close()


def test_it_puts_gets_and_removes_what_another_process_finds(redis, store, namespace):
    assert (store.get(b"a"), store.all()) == (None, {})
    store.remove(b"a")
    store.put(b"a", b"1")
    store.put(b"b/..\0\xff", b"")
    store.put(b"a", b"2")
    words = [sys.executable, "-c", ASK, redis.url, namespace]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.strip() == str({b"a": b"2", b"b/..\0\xff": b""})
    store.remove(b"a")
    assert (store.get(b"a"), store.get(b"b/..\0\xff")) == (None, b"")


def test_a_driver_on_another_host_knows_where_tasks_ran(redis, store, namespace):
    LocalityManager(store, "query-1").write_task_locality(RAN)
    other = RedisMetadataStore(redis.url, namespace)
    assert LocalityManager(other, "query-1").task_locality() == RAN
    LocalityManager(other, "query-2").write_task_locality(RAN[:1])
    assert LocalityManager(store, "query-1").task_locality() == []
    other.close()


def test_it_goes_with_its_namespace_and_no_other(redis, store, namespace):
    beside = RedisMetadataStore(redis.url, f"{namespace}-b")
    for one in (store, beside):
        one.put(b"a", b"1")
    dropped = open_store(redis.url, namespace)
    dropped.drop()
    dropped.close()
    assert (store.all(), beside.all()) == ({}, {b"a": b"1"})
    beside.close()


def test_a_redis_that_is_away_is_a_warning_and_no_error(caplog, namespace):
    away = RedisMetadataStore("redis://127.0.0.1:1/0", namespace, timeout_s=0.2)
    manager = LocalityManager(away, "q")
    manager.write_task_locality(RAN)
    assert manager.task_locality() == []
    assert len(caplog.records) == 1


def test_a_password_is_not_shown_t48(namespace):
    hidden = RedisMetadataStore("redis://:secret@cache:6379/0", namespace)
    assert "secret" not in repr(hidden)
    with pytest.raises(ConfigError) as error:
        RedisMetadataStore("redis://:secret@cache:6379/0", namespace, no_such_option=1)
    assert "secret" not in str(error.value)
