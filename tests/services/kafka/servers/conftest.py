"""Fixtures of the tests of the proxy: a topic, its contents without the proxy, producers and connections."""

import contextlib
import socket
import time
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.support.proxy.kafka_clients import DEADLINE_S, Sender


@pytest.fixture
def proxy(proxied_kafka):
    return proxied_kafka.proxy


@pytest.fixture
def topic(proxied_kafka):
    name = f"p{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": proxied_kafka.direct})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(DEADLINE_S)
    return name


@pytest.fixture
def sender(proxied_kafka, topic):
    """Makes a sender; by default one that is not idempotent: what it sends twice is there twice."""
    made = []

    def make(*, idempotent=False, **settings):
        made.append(Sender(proxied_kafka.bootstrap, topic, enable_idempotence=idempotent, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log(proxied_kafka, topic):
    """What the topic holds, read without the proxy unless told."""

    def read(bootstrap=proxied_kafka.direct):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        try:
            partition = TopicPartition(topic, 0, 0)
            _, end = consumer.get_watermark_offsets(partition, timeout=DEADLINE_S)
            consumer.assign([partition])
            values, deadline = [], time.monotonic() + DEADLINE_S
            while len(values) < end:
                assert time.monotonic() < deadline, (len(values), end)
                for message in consumer.consume(end - len(values), 0.2):
                    assert message.error() is None, message.error()
                    values.append(message.value())
            return values
        finally:
            consumer.close()

    return read


@pytest.fixture
def dial(proxied_kafka):
    """Plain connections to the proxy."""
    with contextlib.ExitStack() as opened:

        def connect(address=proxied_kafka.proxy.addresses[0]):
            return opened.enter_context(socket.create_connection(address, DEADLINE_S))

        yield connect
