"""What a process keeps for logs on Kafka: threads, descriptors, clients and objects."""

from __future__ import annotations

import gc
import os
import uuid

import pytest
from confluent_kafka import Uuid

from tidegate.wal.kafka import pool as kafka_pool
from tidegate.wal.kafka.topics import release_id
from tidegate.wal.open_log import open_log

WARM_UP, ROUNDS = 20, 200
NAMESPACES = 40
CLIENTS_MAX = 5
"""A producer, an admin client, a consumer for each kind of topic, and one more beside a reader."""
THREADS_MAX, DESCRIPTORS_MAX = 40, 150
"""Of all logs together; each namespace once had 17 and 27 of its own."""


@pytest.fixture
def new_log(kafka):
    prefix, logs = f"g{uuid.uuid4().hex[:8]}", []

    def make(namespace: str):
        log = open_log(f"kafka://{kafka.bootstrap}", namespace, {"topic_prefix": prefix, "partitions": 1})
        log.create()
        logs.append(log)
        return log

    yield make
    for log in logs:
        log.drop()
        log.close()


def a_round(log) -> None:
    """What a version asks of a log."""
    addresses = log.stage("s-1", [b"a blob"])
    log.append_decision(b"a record")
    assert [blob.content for blob in log.read(addresses)] == [b"a blob"]


def held(kind: type | None = None) -> int:
    """Count by `type`: `isinstance` asks a weak proxy for its object, which may be gone."""
    gc.collect()
    return sum(kind is None or type(one) is kind for one in gc.get_objects())


def entries(folder: str) -> int:
    return len(os.listdir(f"/proc/self/{folder}"))  # noqa: PTH208 - no Path is needed


def test_a_topics_id_is_released_after_each_description(new_log):
    log = new_log("n")
    for _ in range(WARM_UP):
        a_round(log)
    before, ids = held(), held(Uuid)
    for _ in range(ROUNDS):
        a_round(log)
    assert held(Uuid) == ids
    assert held() - before < ROUNDS, "something is kept for each round"


def test_an_id_that_others_hold_keeps_its_references():
    class Description:
        topic_id = Uuid(1, 2)

    kept = [Description.topic_id, Description.topic_id]
    assert not release_id(Description)
    assert kept[0] is kept[1]


def test_logs_of_one_cluster_share_their_clients(new_log):
    logs, threads, descriptors = [], entries("task"), entries("fd")
    for nth in range(NAMESPACES):
        logs.append(new_log(f"n{nth}"))
        a_round(logs[-1])
    pool = logs[0]._clients._pool
    assert all(log._clients._pool is pool for log in logs)
    assert len(pool.alive) <= CLIENTS_MAX
    assert entries("task") - threads <= THREADS_MAX
    assert entries("fd") - descriptors <= DESCRIPTORS_MAX
    for log in logs[1:]:
        log.close()
    assert pool.alive, "clients that another log uses were closed"
    a_round(logs[0])
    logs[0].close()
    assert not pool.alive


def test_a_shared_consumer_reads_a_topic_that_is_new_to_it_at_once(new_log, monkeypatch):
    """Each log's first read asks for its topic's metadata; a consumer looks once a second otherwise."""
    logs = [new_log(f"n{nth}") for nth in range(3)]
    addresses = [log.stage("s-1", [b"%d" % nth]) for nth, log in enumerate(logs)]
    asked = []
    listed = kafka_pool.ReadingConsumer.list_topics

    def list_topics(consumer, topic, timeout):
        asked.append(topic)
        return listed(consumer, topic, timeout)

    monkeypatch.setattr(kafka_pool.ReadingConsumer, "list_topics", list_topics)
    for _ in range(2):
        for nth, log in enumerate(logs):
            assert [blob.content for blob in log.read(addresses[nth])] == [b"%d" % nth]
    assert len(asked) == len(logs) - 1
