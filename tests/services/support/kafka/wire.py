"""What the proxy has to know of Kafka's protocol: where a frame ends, which reply is whose."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable

from confluent_kafka import KafkaError

from services.support.proxy.relay import Asked, HostileFrameError

FRAME_BYTES_MAX = 100 * 2**20


class Api(enum.IntEnum):
    """Kinds of requests, by api key; one that is missing here is a bare number everywhere."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    DESCRIBE_TOPIC_PARTITIONS = 75


def not_led_here(topic: str, partition: int) -> Callable[[bytes], bytes]:
    """Make the reply of a broker that does not lead the partition to a produce request, version 9 or 10."""

    def reply(request: bytes) -> bytes:
        _, version, correlation_id = struct.unpack_from(">hhi", request, 4)
        assert version in (9, 10), version
        name = topic.encode()
        body = struct.pack(f">iBBB{len(name)}sB", correlation_id, 0, 2, len(name) + 1, name, 2)
        error = KafkaError.NOT_LEADER_FOR_PARTITION
        body += struct.pack(">ihqqqBBB", partition, error, -1, -1, -1, 1, 0, 0)  # no offset, no times
        body += struct.pack(">BiB", 0, 0, 0)
        return struct.pack(">i", len(body)) + body

    return reply


class KafkaWire:
    """A frame's size, a request's api key, version and correlation id, and a reply's correlation id."""

    any_order = False

    async def read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(4)
        size = int.from_bytes(head, "big", signed=True)
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise HostileFrameError
        return head + await reader.readexactly(size)

    read_reply = read_request

    def asked(self, frame: bytes) -> Asked:
        if len(frame) < 12:
            raise HostileFrameError
        key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        kind = Api(key) if key in Api._value2member_map_ else key
        return Asked((kind,), version, correlation_id)

    def answers(self, frame: bytes, asked: Asked) -> bool:
        return frame[4:8] == asked.correlation_id.to_bytes(4, "big", signed=True)

    def answered(self, frame: bytes, asked: Asked) -> None:
        """Requests do not refer to replies."""

    def unasked(self, frame: bytes) -> bool:
        return False

    def is_login(self, frame: bytes) -> bool:
        """A login has several steps and its own tokens: what is sent later goes without one."""
        return False
