"""Leases on Redis, and what a reader writes among them past tidegate: it has the right to HSET there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import re
import time

import pytest
from typer.testing import CliRunner

from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from tidegate.cli import app
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError
from tidegate.options import LEASES_MAX
from tidegate.sinks.rules.leases import Lease

DAY_US = 86_400 * 1_000_000
ABOUT_LEASES = re.compile(rb"FCALL(?:_RO)? \w+_(lease|leases|release|announce|leftovers) ")
STALL_MS = 5.0
"""How long no client of the server may wait for what tidegate does about leases."""


@pytest.fixture
def query(redis: RedisServer, tmp_path):
    with query_on(redis.url, tmp_path) as made:
        yield made


def leases_of(query: Query) -> str:
    return query.meta.replace("meta", "leases")


def now_us(redis: RedisServer) -> int:
    seconds, micros = redis.ask("TIME")
    return int(seconds) * 1_000_000 + int(micros)


def junk(now: int) -> dict[str, str | bytes]:
    """What is no lease: none of it holds version 1, of 3 that are visible."""
    good = f"1 {now} {now + 60_000_000}"
    return {
        "evil": "x",
        "empty": "",
        "two numbers": f"1 {now}",
        "two-numbers": f"1 {now}",
        "negative": f"-1 {now} {now + 60_000_000}",
        "float": f"1.5 {now} {now + 60_000_000}",
        "hex": f"0x1 {now} {now + 60_000_000}",
        "four": f"{good} 1",
        "above": f"4 {now} {now + 60_000_000}",
        "far-above": f"99999999999 {now} {now + 60_000_000}",
        "too-long": f"1 {now} {now + 2 * DAY_US}",
        "endless": f"1 {now} {'9' * 30}",
        "": good,
        "x" * 65: good,
        "a\nb": good,
        "writer-fill": good,
        "spaces ": good,
        "zeros": f"{'0' * 60}1 {now} {now + 60_000_000}",
    }


def test_what_is_no_lease_holds_nothing_and_is_removed_with_one_warning(query, redis, caplog):
    driver = query.run(3)
    entries = junk(now_us(redis))
    for field, content in entries.items():
        redis.ask("HSET", leases_of(query), field, content)
    store = driver.store
    with caplog.at_level(logging.WARNING, "tidegate"):
        assert store.leases() == []
        assert store.announce(2) == 2
        redis.ask("HSET", leases_of(query), "evil", "x")
        assert store.announce(3) == 3
    (warned,) = [record.getMessage() for record in caplog.records if "no leases" in record.getMessage()]
    assert f"{len(entries)} entries" in warned
    assert not redis.ask("EXISTS", leases_of(query))


def test_a_lease_in_between_holds(query, redis):
    driver = query.run(3)
    for field, content in junk(now_us(redis)).items():
        redis.ask("HSET", leases_of(query), field, content)
    driver.store.lease(Lease("mine", 2), 60)
    assert driver.store.announce(3) == 2
    assert [info.lease_id for info in driver.store.leases()] == ["mine"]


def test_retirement_vacuum_and_doctor_go_on(query, redis):
    driver = query.run(5)
    redis.ask("HSET", leases_of(query), "evil", "x")
    found = driver.store.vacuum(dry_run=True)
    assert found.leases == 1
    where = ["--store", query.url, "--wal", query.wal, "--namespace", query.namespace]
    for command in (["doctor"], ["vacuum", "--dry-run"], ["status"]):
        told = CliRunner().invoke(app, [*command, *where])
        assert told.exception is None or isinstance(told.exception, SystemExit), repr(told.exception)
    query.retire(driver)
    assert driver.store.pointer().horizon == 3
    query.check(5)


def test_as_many_leases_as_max_leases_allows(query, redis):
    store = query.run(3).store
    store.announce(1, max_leases=3)
    for name in ("a", "b", "c"):
        store.lease(Lease(name, 3), 60)
    store.lease(Lease("a", 3), 60)  # a renewal
    with pytest.raises(StoreUnavailableError, match="the most that the store allows"):
        store.lease(Lease("d", 3), 60)
    redis.ask("HSET", leases_of(query), "b", "3 1 2")  # it ran out
    store.lease(Lease("d", 3), 60)
    assert {info.lease_id for info in store.leases()} == {"a", "c", "d"}
    store.vacuum()
    with pytest.raises(StoreUnavailableError, match="the most that the store allows"):
        store.lease(Lease("e", 3), 60)


def test_leases_of_killed_readers_are_removed_without_a_writer(query, redis):
    store = query.run(3).store
    for number in range(200):
        redis.ask("HSET", leases_of(query), f"killed-{number}", "3 1 2")
    redis.ask("HSET", leases_of(query), "evil", "x")  # announce warns of it
    store.lease(Lease("mine", 3), 60)
    for number in range(600):  # some of them remove a page
        store.lease(Lease(f"new-{number}", 3), 60)
        store.release(f"new-{number}")
    assert set(redis.ask("HKEYS", leases_of(query))) <= {"mine", "evil", b"mine", b"evil"}


def test_each_page_of_many_leases_has_its_turn(query, redis):
    """Red before: pages began in a sixteenth of the hash, as they were chosen by a time that 16 divides."""
    store, later_us = query.run(3).store, round((time.time() + 3_600) * 1e6)
    for number in range(500):
        living = itertools.chain.from_iterable((f"living-{number}-{n}", f"3 1 {later_us}") for n in range(6))
        redis.ask("HSET", leases_of(query), *living, f"killed-{number}", "3 1 2")
    for number in range(2_400):
        store.lease(Lease(f"new-{number}", 3), 60)
        store.release(f"new-{number}")
    left = [name for name in redis.ask("HKEYS", leases_of(query)) if name.startswith("killed")]
    assert len(left) < 150


def test_more_than_max_leases_were_not_taken_and_hold_nothing(query, redis, caplog):
    driver = query.run(3)
    driver.store.announce(1, max_leases=3)
    driver.store.lease(Lease("a", 1), 60)
    now = now_us(redis)
    for name in ("b", "c", "d"):
        redis.ask("HSET", leases_of(query), name, f"1 {now} {now + 60_000_000}")
    with pytest.raises(StoreUnavailableError, match="the most that the store allows"):
        driver.store.lease(Lease("e", 1), 60)
    assert driver.store.leases() == []
    assert driver.store.announce(3, max_leases=3) == 3
    assert "more leases than the store allows" in caplog.text
    assert not redis.ask("EXISTS", leases_of(query))
    with pytest.raises(SnapshotExpiredError):
        driver.store.lease(Lease("a", 1), 60)


@contextlib.contextmanager
def kept_busy(redis: RedisServer):
    """How long each function about leases kept the server from others, in milliseconds by its own clock:
    the quickest call of each, since on a busy machine a call waits for its processor, too.
    """
    found: dict[bytes, float] = {}
    redis.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    redis.ask("CONFIG", "SET", "slowlog-max-len", 100_000)
    redis.ask("SLOWLOG", "RESET")
    try:
        yield found
        with redis.client(decode_responses=False) as client:
            calls = client.slowlog_get(-1)
        for call in calls:
            if named := ABOUT_LEASES.match(call["command"]):
                found[named[1]] = min(found.get(named[1], math.inf), call["duration"] / 1_000)
    finally:
        redis.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000)


@pytest.mark.parametrize("field", ["big", "named"])
def test_large_content_is_not_read(query, redis, field):
    driver, large = query.run(3), "x" * 8_000_000
    with kept_busy(redis) as calls_ms:
        for _ in range(3):  # the shortest call counts: the machine may be busy
            redis.ask("HSET", leases_of(query), large if field == "named" else field, large)
            assert driver.store.announce(3) == 3
            assert not redis.ask("EXISTS", leases_of(query))
    assert max(calls_ms.values()) < STALL_MS


def put_leases(redis: RedisServer, key: str, entries: str, count: int) -> None:
    """By a reader's plain HSET."""
    now = now_us(redis)
    content = f"10 {now} {now + 600_000_000}" if entries == "leases" else "x"
    with redis.client() as client:
        for at in range(0, count, 10_000):
            names = range(at, min(at + 10_000, count))
            client.hset(key, mapping={f"{name:016x}": content for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("entries", ["leases", "junk"])
@pytest.mark.parametrize("count", [LEASES_MAX, LEASES_MAX + 1, 1_000_000])
def test_a_million_leases_stall_nobody(query, redis, entries, count):
    driver = query.run(12)
    put_leases(redis, leases_of(query), entries, count)
    with kept_busy(redis) as calls_ms:
        for _ in range(5):
            driver.store.leases()
            with contextlib.suppress(StoreUnavailableError):
                driver.store.lease(Lease("mine", 12), 60)
        driver.store.vacuum(dry_run=True)
        driver.store.announce(11, max_lease_s=3_600, keep_versions=1)
        driver.store.vacuum()
    held = entries == "leases" and count <= LEASES_MAX
    assert driver.store.pointer().horizon == (10 if held else 11)
    assert calls_ms.keys() >= {b"lease", b"leases", b"announce"}
    assert max(calls_ms.values()) < STALL_MS, calls_ms
