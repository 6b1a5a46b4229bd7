"""Kafka clients that are lent to several logs of a process, without a broker."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from tidegate.wal.kafka import clients as kafka_clients
from tidegate.wal.kafka import consumer, pool, topics
from tidegate.wal.kafka.clients import Clients
from tidegate.wal.kafka.settings import settings_of


class Fake:
    """A client that holds its error callback, as a real one does, and records its end."""

    def __init__(self, configuration, **_):
        self.noted, self.closed, self.broken = configuration["error_cb"], False, False
        self.topics, self.rested, self.calls = {}, False, []

    def poll(self, _):
        pass

    def unassign(self):
        if self.broken:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    def assign(self, _):
        self.calls.append("assign")

    def list_topics(self, *_):
        self.calls.append("list_topics")

    def assignment(self):
        return []

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    monkeypatch.setattr(kafka_clients, "AdminClient", Fake)
    monkeypatch.setattr(kafka_clients, "ReadingConsumer", Fake)


def clients(where: str = "a", **options) -> Clients:
    return Clients(settings_of("kafka://b:9092", options), where)


def used(log: Clients) -> Fake:
    with log.consumer("t") as lent:
        return lent


def test_a_log_that_was_not_closed_does_not_keep_the_clients_of_others():
    first, second = clients("first"), clients("second")
    lent = used(first)
    assert used(second) is lent
    del first
    gc.collect()
    second.close()
    assert lent.closed


def test_clients_of_logs_that_were_not_closed_end_with_them():
    log = clients()
    lent, freed = used(log), weakref.ref(log)
    del log
    gc.collect()
    assert freed() is None
    assert lent.closed


def test_a_client_that_returns_after_its_log_was_closed_ends():
    log = clients()
    with log.consumer("t") as lent:
        log.close()
        assert not lent.closed
    assert lent.closed
    assert not log._pool.alive


def test_a_client_that_cannot_stop_fetching_ends_and_hides_no_result():
    log = clients()
    with log.consumer("t") as lent:
        lent.broken = True
    assert used(log) is not lent
    assert len(log._pool.alive) == 1
    log.close()


def test_a_client_that_has_used_many_topics_ends(monkeypatch):
    """It keeps memory for each topic permanently, also for those of dropped namespaces."""
    monkeypatch.setattr(pool, "TOPICS_MAX", 3)
    log, lent = clients(), []
    for topic in ("a", "b", "a", "b", "c", "d"):
        with log.consumer(topic) as client:
            lent.append(client)
    assert [client is lent[0] for client in lent] == [True] * 5 + [False]
    assert lent[0].closed
    assert len(log._pool.used) == 1
    log.close()
    assert not log._pool.used


def assigned(log: Clients) -> list[str]:
    """Assign a topic to a lent consumer; return the calls that it got."""
    with log.consumer("t") as lent:
        lent.calls.clear()
        consumer._assign(log, lent, "t", {0: 0})
        return list(lent.calls)


def test_a_consumer_that_has_read_no_topic_yet_requests_the_metadata_of_its_first():
    log = clients()
    used(log)  # as for the ends of another topic
    assert assigned(log) == ["assign", "list_topics"]
    assert assigned(log) == ["assign"]
    log.close()


def test_a_consumer_requests_the_metadata_of_a_remade_topic_before_it_fetches():
    """After a fetch by the old id the client waits for 500 ms, before each first read."""
    log = clients()
    log.described(["t"], {"t": "first"})
    assert assigned(log) == ["assign"], "a new consumer requests metadata by itself"
    log.described(["t"], {})
    log.described(["t"], {"t": "second"})
    assert assigned(log) == ["list_topics", "assign"]
    assert assigned(log) == ["assign"]
    log.close()


def test_threads_share_no_client_while_logs_are_closed():
    """Logs close while other threads lend: no client is lent twice at a time, and none is left over."""
    log, lent, doubles = clients(), set(), []
    guard, started = threading.Lock(), threading.Barrier(6)

    def lend_and_close(nth: int) -> None:
        own = clients(f"log {nth}")
        started.wait(30)
        for turn in range(300):
            with (log if turn % 3 else own).consumer(f"t{turn}") as client:
                with guard:
                    doubles.extend({client} & lent)
                    lent.add(client)
                assert not client.closed
                with guard:
                    lent.discard(client)
            if turn % 7 == 0:
                (log if turn % 2 else own).close()
        own.close()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lend_and_close, range(6)))
    assert not doubles
    log.close()
    assert not log._pool.alive
    assert not log._pool.used


def test_a_fork_leaves_no_user_of_the_parent():
    """A child's last log closes the child's clients."""
    log = clients()
    inherited = used(log)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            own = clients("child's own")
            lent = used(own)
            own.close()
            code = 0 if lent.closed and lent is not inherited and not inherited.closed else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert used(log) is inherited
    log.close()


class Hidden(str):
    """A secret that shows nothing."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@pytest.mark.parametrize(
    "one,other",
    [(True, "True"), (1, True), (1, 1.0), (Hidden("a"), Hidden("b"))],
)
def test_settings_that_look_equal_share_nothing(one, other):
    first, second = clients(**{"client.rack": one}), clients(**{"client.rack": other})
    assert first._pool is not second._pool
    assert clients(**{"client.rack": one})._pool is first._pool


def test_an_id_is_released_only_where_the_client_is_known_to_keep_it(monkeypatch):
    class Description:
        topic_id = Uuid(1, 2)

    kept = Description.topic_id
    monkeypatch.setattr(confluent_kafka, "__version__", "2.17.0rc1")
    assert not topics.release_id(Description)
    assert kept is Description.topic_id
