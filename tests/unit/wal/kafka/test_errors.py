"""What an error of Kafka's clients becomes, and what it says to do."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from tidegate.errors import ConfigError, TidegateError, WalUnavailableError
from tidegate.wal.kafka import clients as kafka_clients
from tidegate.wal.kafka import pool as kafka_pool
from tidegate.wal.kafka import producer as kafka_producing
from tidegate.wal.kafka.checks import _copies
from tidegate.wal.kafka.clients import Clients
from tidegate.wal.kafka.producer import DeliveryReports
from tidegate.wal.kafka.settings import MESSAGE_BYTES, settings_of
from tidegate.wal.kafka.topics import Topic
from tidegate.wal.log import RECORD_BYTES_MAX

SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}


@pytest.mark.parametrize(
    "code,kind,says",
    [
        (
            "MSG_SIZE_TOO_LARGE",
            WalUnavailableError,
            "max.message.bytes is smaller than a record",
        ),
        ("INVALID_RECORD", WalUnavailableError, "cleanup.policy is compact"),
        ("NOT_ENOUGH_REPLICAS", WalUnavailableError, "look whether the brokers run"),
        ("TOPIC_AUTHORIZATION_FAILED", ConfigError, "lacks the right Write on topic tidegate.n.changelog"),
        ("SASL_AUTHENTICATION_FAILED", ConfigError, "check security.protocol"),
    ],
)
def test_an_error_names_the_setting_that_is_meant(code, kind, says):
    clients = Clients(settings_of("kafka://b:9092", {}), "kafka://b:9092")
    with pytest.raises(TidegateError) as raised:
        clients.unavailable("writing to tidegate.n.changelog", KafkaError(getattr(KafkaError, code)))
    assert type(raised.value) is kind
    assert says in str(raised.value)
    assert ("look whether the brokers run" in str(raised.value)) is (code == "NOT_ENOUGH_REPLICAS")


def test_a_consumer_that_cannot_end_is_left_behind_and_named(monkeypatch, caplog):
    released = threading.Event()

    class Stuck:
        def assignment(self):
            return []

        def unassign(self):
            pass

        def close(self):
            released.wait(60)

    monkeypatch.setattr(kafka_pool, "END_S", 0.01)
    monkeypatch.setattr(kafka_clients, "ReadingConsumer", lambda *_, **__: Stuck())
    clients = Clients(settings_of("kafka://b:9092", {}), "kafka://b:9092")
    with pytest.raises(RuntimeError, match="the reader's own"), clients.consumer("t"):
        raise RuntimeError("the reader's own")
    assert "did not end" in caplog.text
    with clients.consumer("t"):
        pass
    clients.close()
    released.set()


@pytest.mark.parametrize(
    "said, kind",
    [
        (
            "SASL PLAIN mechanism handshake failed: Local: Broker transport failure",
            WalUnavailableError,
        ),
        (
            "SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism",
            ConfigError,
        ),
    ],
)
def test_a_broker_that_goes_away_in_a_handshake_does_not_refuse_this_user(said, kind):
    clients = Clients(settings_of("kafka://b:9092", {}), "kafka://b:9092")
    clients._pool.notes.add(KafkaError(KafkaError._AUTHENTICATION, said))
    with pytest.raises(TidegateError) as raised:
        clients.unavailable("metadata", KafkaError(KafkaError._TIMED_OUT))
    assert type(raised.value) is kind


class Idle:
    """A producer whose connections are told of only in ``poll``; it takes messages and reports none."""

    made: ClassVar[list[Idle]] = []

    def __init__(self, configuration, **_):
        self.tell, self.queued, self.fatal = configuration["error_cb"], [], None
        Idle.made.append(self)

    def poll(self, wait_s):
        if self.fatal:
            raise KafkaException(self.fatal)
        while self.queued:
            self.tell(self.queued.pop(0))
        time.sleep(min(wait_s, 0.01))

    def list_topics(self, *_):
        pass

    def produce(self, *_, **__):
        pass

    def purge(self, **_):
        pass


@pytest.fixture
def idle(monkeypatch):
    monkeypatch.setattr(kafka_clients, "Producer", Idle)
    monkeypatch.setattr(kafka_producing, "POLL_S", 0.01)
    monkeypatch.setattr(Idle, "made", [])
    clients = Clients(settings_of("kafka://b:9092", {"timeout_s": 1}), "kafka://b:9092")
    with clients.producer("t"):
        pass
    return clients


REFUSED = KafkaError(KafkaError._AUTHENTICATION, "SASL PLAIN: password changed")


def _time_out(clients):
    with clients.producer("t") as producer:
        receipts = DeliveryReports(clients, producer, "t", 0)
        receipts.send(b"x")
        receipts._clients.unavailable("writing to t", KafkaError(KafkaError._MSG_TIMED_OUT))


def test_a_refusal_of_an_idle_time_does_not_colour_a_later_time_out(idle):
    Idle.made[0].queued.append(REFUSED)
    with pytest.raises(WalUnavailableError) as raised:
        _time_out(idle)
    assert "password changed" not in str(raised.value)
    assert len(Idle.made) == 2, "a new client, which tells how it is now"


def test_a_client_that_gave_itself_up_while_idle_is_not_used(idle):
    Idle.made[0].fatal = KafkaError(KafkaError._FATAL)
    with idle.producer("t") as lent:
        assert lent is Idle.made[1]


def test_a_refusal_of_an_earlier_call_does_not_colour_a_later_time_out(idle):
    with idle.producer("t") as producer:
        producer.queued.append(REFUSED)
        producer.poll(0)  # and then it got through
    with pytest.raises(WalUnavailableError):
        _time_out(idle)


def test_another_threads_call_neither_colours_nor_forgets_a_refusal(idle):
    with idle.producer("t") as producer:
        producer.queued.append(REFUSED)
        producer.poll(0)
        with ThreadPoolExecutor(1) as pool, pytest.raises(WalUnavailableError):
            pool.submit(_time_out, idle).result()
        with pytest.raises(ConfigError, match="password changed"):
            idle.unavailable("writing to t", KafkaError(KafkaError._MSG_TIMED_OUT))


@pytest.mark.parametrize(
    "in_sync,words", [(3, ""), (2, "2 of 3 replicas are in sync"), (1, "writes fail until")]
)
def test_doctor_warns_of_a_replica_that_is_away(in_sync, words):
    topic = Topic("t", "id", 1, 3, in_sync, frozenset())
    checks = {check.check: check for check in _copies(topic, SAFE)}
    assert "in sync" in checks if words else "in sync" not in checks
    if words:
        assert (checks["in sync"].outcome, words in checks["in sync"].found) == ("warn", True)


class WithoutOffset:
    """A delivery report of a message that was appended, without its offset."""

    def offset(self):
        return None


def test_an_acknowledgement_without_an_offset_is_no_acknowledgement_i3(idle):
    with idle.producer("t") as producer:
        producer.produce = lambda *_, on_delivery, **__: on_delivery(None, WithoutOffset())
        reports = DeliveryReports(idle, producer, "t", 0)
        reports.send(b"x")
        for again in (reports.all_in, lambda: reports.send(b"y")):
            with pytest.raises(WalUnavailableError, match="delivered without its offset"):
                again()


@pytest.mark.parametrize("topic, least", [("decisions", RECORD_BYTES_MAX), ("changelog", MESSAGE_BYTES)])
def test_a_message_that_a_topic_does_not_take_names_the_size_that_is_enough(topic, least):
    clients = Clients(settings_of("kafka://b:9092", {}), "kafka://b:9092")
    with pytest.raises(WalUnavailableError, match=f"tidegate.n.{topic}.*set it to at least {least}, "):
        clients.unavailable(f"writing to tidegate.n.{topic}", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))


@pytest.mark.parametrize("pauses_s, named", [((), False), ((0.2,), False), ((0.5, 42.0, 0.0), True)])
def test_a_quota_is_named_where_brokers_made_this_user_wait(pauses_s, named):
    clients = Clients(settings_of("kafka://b:9092", {}), "kafka://b:9092")
    for pause_s in pauses_s:
        clients._pool.notes.throttle(ThrottleEvent("b", 1, pause_s))
    for told in (named, False):  # the next call has its own notes
        with pytest.raises(WalUnavailableError) as raised:
            clients.unavailable("writing to tidegate.n.changelog")
        assert ("wait for 42 s" in str(raised.value)) is ("producer_byte_rate" in str(raised.value)) is told
