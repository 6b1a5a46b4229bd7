"""Logs that lose their last records: three brokers, and each kind of store on its server.

The same on files and in memory: ``tests/crash/test_log_loss.py``.
"""

import contextlib
import uuid

import pytest

from kafka_cut import lose_last_records
from tidegate.errors import TidegateError, WalGapError
from tidegate.sinks.memory_store import MemoryStore
from tidegate.sinks.open_store import open_store
from tidegate.testing.log_loss import BEFORE, STEPS, ClockAhead, LossWorld, dies_at, goes_on, rows_before
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.open_log import open_log

EXPECTED = {"decided": "opened", "begun": "discarded", "applied": "discarded", "sealed": "discarded"}
"""What the next driver meets when one record is gone; after the flip it is refused."""


def on_server(url, name, **options):
    """A log in memory and a store on a server; frames of few rows, so that a version has several chunks."""
    return LossWorld(
        lambda: MemoryLog(name, "n"), lambda: open_store(url, name, options), {"frame_bytes": 200}
    )


def cut_in_memory(name, records=1):
    content = MemoryLog(name, "n")._content
    gone = content.records[-records:]
    del content.records[-records:]
    return gone


@pytest.mark.parametrize("step", ["begun", "applied", "sealed"])
def test_a_store_on_redis_mixes_no_attempts(redis, namespace, step):
    world = on_server(redis.url, namespace)
    dead = dies_at(world, step, ClockAhead(60))
    cut_in_memory(namespace)
    assert goes_on(world, dead, None) == "discarded"


@pytest.mark.parametrize("step", [pytest.param("begun", marks=pytest.mark.slow), "applied", "sealed"])
def test_a_store_on_cassandra_mixes_no_attempts(cassandra_tables, step):
    """The lost attempt has the later time and the more chunks: cells and notes of it would count."""
    name = f"n{uuid.uuid4().hex[:12]}"
    world = on_server(cassandra_tables, name)
    dead = dies_at(world, step, ClockAhead(60))
    cut_in_memory(name)
    assert goes_on(world, dead, None) == "discarded"


# -- three brokers ------------------------------------------------------------------------------------


def on_brokers(cluster, name):
    options = {"topic_prefix": name, "partitions": 1}
    return LossWorld(
        lambda: open_log(f"kafka://{cluster.bootstrap}", "n", options), lambda: MemoryStore(name, "n")
    )


@pytest.mark.slow  # 24 namespaces on three brokers
def test_three_brokers_lose_their_last_records(private_kafka):
    """Every step of a commit and 1 to 3 records at once: the brokers die and come back a single time."""
    cluster = private_kafka(brokers=3)
    cases = {}
    for step in STEPS:
        for records in (1, 2, 3):
            name = f"w{uuid.uuid4().hex[:10]}"
            world = on_brokers(cluster, name)
            cases[name] = step, records, world, dies_at(world, step, ClockAhead(60))
    alive = {}
    for renewed in (False, True):  # the producer that wrote before, or a new one
        name = f"w{uuid.uuid4().hex[:10]}"
        world = on_brokers(cluster, name)
        alive[name] = renewed, world, dies_at(world, "returned")
    lost = {f"{name}.n.decisions": records for name, (_, records, _, _) in cases.items()}
    lose_last_records(cluster, lost | {f"{name}.n.decisions": 2 for name in alive})
    for step, records, world, dead in cases.values():
        expected = EXPECTED.get(step, "put back") if records < 3 else "put back"
        assert goes_on(world, dead, None) == expected, (step, records)
        with contextlib.closing(dead.log):
            pass
    for renewed, world, driver in alive.values():
        if renewed:
            driver.log = world.make_log()
        with pytest.raises(WalGapError if renewed else TidegateError):
            world.commit(driver, BEFORE + 1, rows_before(1))
        assert driver.store.pointer().visible == BEFORE + 1
