"""Logs that lose their last records: three brokers, and each kind of store on its server.

The same on files and in memory: ``tests/crash/test_log_loss.py``.
"""

import collections
import itertools
import uuid

import pytest

from crash.log_loss import BEFORE, STEPS, LossWorld, dies_at, goes_on, rows_before
from services.support.workloads.kafka_cut import lose_last_records
from support.clocks import ClockAhead
from tidegate.errors import OutcomeUnknownError, TidegateError, WalGapError
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.open_store import open_store
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.open_log import open_log

EXPECTED = {"claimed": "opened", "decided": "opened"}
EXPECTED |= dict.fromkeys(("begun", "applied", "sealed"), "discarded")
"""What the next driver meets when one or two records are gone; after the flip it is refused."""


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
    options = {"topic_prefix": name, "partitions": 1, "timeout_s": 10}
    return LossWorld(
        lambda: open_log(f"kafka://{cluster.bootstrap}", "n", options), lambda: MemoryStore(name, "n")
    )


@pytest.mark.slow
@pytest.mark.timeout(3_600)  # 56 namespaces on three brokers
def test_three_brokers_lose_their_last_records(private_kafka):
    """Every step of a commit and 1 to 3 records at once: the brokers die and come back a single time.

    The next driver goes on with the producer that wrote before, whose clock is behind, or with a new one.
    """
    cluster = private_kafka(brokers=3)
    cases, alive, lost = {}, {}, {}
    for step, records, producer in itertools.product(STEPS, (1, 2, 3), ("same", "new")):
        name = f"w{uuid.uuid4().hex[:10]}"
        world = on_brokers(cluster, name)
        clocks = (ClockAhead(60), ClockAhead(0))[:: 1 if producer == "new" else -1]
        cases[step, records, producer] = world, dies_at(world, step, clocks[0]), clocks[1]
        lost[f"{name}.n.decisions"] = records
    for step, producer in itertools.product(("begun", "applied", "sealed", "returned"), ("same", "new")):
        name = f"w{uuid.uuid4().hex[:10]}"
        world = on_brokers(cluster, name)
        alive[step, producer] = world, dies_at(world, step)
        lost[f"{name}.n.decisions"] = 2
    lose_last_records(cluster, lost)
    ways, wrong = {}, {}
    for case, (world, dead, clock) in cases.items():
        step, records, producer = case
        expected = EXPECTED.get(step, "put back") if records < 3 else "put back"
        log = dead.log if producer == "same" else None
        try:
            ways[case] = goes_on(world, dead, None, clock, log=log)
        except OutcomeUnknownError as refused:  # the brokers no longer know this producer's last number
            if producer == "new" or "restart the query" not in str(refused):
                raise
            ways[case] = f"refused, then {goes_on(world, dead, None, clock)}"
        if ways[case].removeprefix("refused, then ") != expected:
            wrong[case] = ways[case]
        dead.log.close()
    print(collections.Counter(f"{producer}: {way}" for (_, _, producer), way in ways.items()))
    assert wrong == {}
    for (step, producer), (world, driver) in alive.items():
        if producer == "new":
            driver.decisions.log = world.make_log()
        with pytest.raises(WalGapError if producer == "new" else TidegateError):
            world.commit(driver, BEFORE + 1, rows_before(1))
        assert driver.store.pointer().visible == (BEFORE + 1 if step == "returned" else BEFORE)
        driver.log.close()
