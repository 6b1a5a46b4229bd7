"""Clients of the proxy of Kafka: a producer, and plain connections with frames by hand."""

import socket
import struct

from confluent_kafka import Producer

from services.support.kafka.wire import Api

DEADLINE_S = 20.0
ANY_PORT = ("127.0.0.1", 0)
REQUEST_S = 1.0
QUICK = {"socket.timeout.ms": int(REQUEST_S * 1000), "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


class Sender:
    """One producer through the proxy; what became of its messages."""

    def __init__(self, bootstrap, topic, **settings):
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **QUICK, **given})
        self.topic, self.errors = topic, []

    def send(self, *values):
        for value in values:
            self.producer.produce(self.topic, value, on_delivery=lambda error, _: self.errors.append(error))
        return self

    def flush(self):
        assert self.producer.flush(DEADLINE_S) == 0
        return self.errors

    def close(self):
        if self.producer is not None:
            self.producer.purge()
            self.producer.flush(DEADLINE_S)
            self.producer = None  # the last reference: its threads and connections end


def request(correlation_id, key=Api.API_VERSIONS, body=b""):
    """A frame that every broker answers: ApiVersions, version 0."""
    frame = struct.pack(">hhih", key, 0, correlation_id, 1) + b"x" + body
    return struct.pack(">i", len(frame)) + frame


def answer(sock):
    """The correlation id of the next reply; None: the connection has ended."""
    try:
        head = sock.recv(4, socket.MSG_WAITALL)
        return (
            struct.unpack(">i", sock.recv(*struct.unpack(">i", head), socket.MSG_WAITALL)[:4])[0]
            if head
            else None
        )
    except ConnectionResetError:
        return None


def is_silent(sock, seconds=0.3):
    sock.settimeout(seconds)
    try:
        return sock.recv(1) is None
    except TimeoutError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)
