"""What an error of Kafka's clients becomes, and what it says to do."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError

from tidegate.errors import ConfigError, TidegateError, WalUnavailableError
from tidegate.wal import kafka_clients
from tidegate.wal.kafka_clients import Clients
from tidegate.wal.kafka_settings import settings_of


@pytest.mark.parametrize(
    "code,kind,says",
    [
        (
            "MSG_SIZE_TOO_LARGE",
            WalUnavailableError,
            "max.message.bytes was made smaller than what is written",
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

    monkeypatch.setattr(kafka_clients, "END_S", 0.01)
    monkeypatch.setattr(kafka_clients, "Consumer", lambda *_, **__: Stuck())
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
    clients._note(KafkaError(KafkaError._AUTHENTICATION, said))
    with pytest.raises(TidegateError) as raised:
        clients.unavailable("metadata", KafkaError(KafkaError._TIMED_OUT))
    assert type(raised.value) is kind
