"""The servers that other tests rely on: they keep what they acknowledged, and they end."""

import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_S = 30
QUICK = {"log_level": 0}


def make_topic(settings, copies=1, **config):
    name = f"t-{uuid.uuid4().hex}"
    topic = NewTopic(name, 1, replication_factor=copies, config=config)
    admin = AdminClient(settings)
    admin.create_topics([topic])[name].result(WAIT_S)
    return name


def produce(settings, topic, *values):
    """Send, and return once all are acknowledged."""
    errors = []
    producer = Producer(settings | {"acks": "all", "delivery.timeout.ms": WAIT_S * 1000})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * len(values)


def consume(settings, topic, count):
    consumer = Consumer(settings | {"group.id": "tests", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, WAIT_S)]
    finally:
        consumer.close()


def test_it_keeps_what_it_acknowledged(kafka):
    settings = {"bootstrap.servers": kafka.bootstrap} | QUICK
    topic = make_topic(settings)
    produce(settings, topic, b"one", b"two")
    assert consume(settings, topic, 2) == [b"one", b"two"]
