"""Reads of a topic's messages by partition and offset, with a manually assigned consumer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidegate.errors import CorruptError, WalGapError
from tidegate.wal.kafka.clients import Clients
from tidegate.wal.kafka.errors import TRANSIENT

AT_ONCE = 4
"""Few, since the client waits until it has this number. Their memory, still in the cache, is reused."""
RECORDS_AT_ONCE = 500
SKIP_MAX = 16
"""The most unwanted messages that are read and dropped in a row; over a longer gap the consumer seeks."""
POLL_S = 0.5
NOT_YET = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART})
"""The error of a broker that has not heard yet of a topic that another broker knows."""
LOST = ": it was trimmed, or lost; put the topic back from a copy, or use a new namespace"
GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001


class Message(NamedTuple):
    """One message as it was read."""

    partition: int
    offset: int
    content: bytes


def read_offsets(clients: Clients, topic: str, reads: Mapping[int, Sequence[int]]) -> Iterator[Message]:
    """Yield every wanted message once. ``reads`` maps partitions to ascending offsets.

    Messages of a partition are in order, partitions are mixed. Raises: WalGapError, one is not
    there (any more); CorruptError, the broker's checksum does not fit; WalUnavailableError, none in
    time.
    """
    left = {partition: deque(offsets) for partition, offsets in reads.items() if offsets}
    if not left:
        return
    with clients.consumer(topic) as consumer:
        _assign(clients, consumer, topic, {partition: offsets[0] for partition, offsets in left.items()})
        # Not more than will surely arrive: the client waits for the full number, or for the whole time.
        for message in _polled(
            clients,
            consumer,
            topic,
            lambda: min(sum(map(len, left.values())), AT_ONCE),
            lambda partition: left[partition][0] if partition in left else None,
        ):
            partition, offset = message.partition(), message.offset()
            waiting = left.get(partition)
            if waiting is None or offset < waiting[0]:
                if waiting is not None and message.error() is not None:
                    # Nothing before the wanted offset is needed: resume there.
                    _seek(clients, consumer, topic, partition, left)
                continue
            at_end = message.error() is not None
            met = at_end and offset <= waiting[0]
            if met and waiting[0] < ends(clients, topic, partition)[1]:
                continue  # a new leader does not return yet what it has: ask it for the end
            if at_end or offset > waiting[0]:
                where = f"{clients.where}: {topic}, partition {partition}"
                msg = f"{where} has nothing at offset {waiting[0]}{LOST}"
                raise WalGapError(msg)
            waiting.popleft()
            yield Message(partition, offset, message.value() or b"")
            if not waiting:
                del left[partition]
                if left:
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
            elif waiting[0] > offset + SKIP_MAX:
                _seek(clients, consumer, topic, partition, left)


def read_range(clients: Clients, topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
    """Yield every message from ``start`` up to ``end`` that exists: offsets may have gaps (T19).

    Raises: as ``read_offsets``; WalGapError also when messages were trimmed meanwhile.
    """
    if start >= end:
        return
    following = start
    with clients.consumer(topic) as consumer:
        _assign(clients, consumer, topic, {partition: start})
        for message in _polled(
            clients,
            consumer,
            topic,
            lambda: min(end - following, RECORDS_AT_ONCE),  # noqa: B023 - the present value is meant
            lambda _: following,  # noqa: B023
        ):
            if message.offset() >= end:  # also the event of the partition's end
                break
            if message.error() is None:
                following = message.offset() + 1
                yield Message(partition, message.offset(), message.value() or b"")


def ends(clients: Clients, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset that is kept, and the one after the last acknowledged.

    A new leader answers only once it knows how far the old one had got (KIP-207).
    """
    watermarks: tuple[int, int] | None = clients.ask(
        lambda: clients.consumer(topic),
        f"the ends of {topic}",
        lambda consumer: consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=clients.settings.request_s, cached=False
        ),
        also=NOT_YET,
    )
    if watermarks is None:
        clients.unavailable(f"the ends of {topic}")
    return watermarks


def _assign(clients: Clients, consumer: Any, topic: str, starts: Mapping[int, int]) -> None:
    # The client looks for the leaders of a topic that is new to it, or was made again, once a second. A
    # request for its metadata shows them at once. A new consumer sends one by itself.
    topic_id = clients.topic_id(topic)
    remade = topic_id is not None and consumer.topics.get(topic, topic_id) != topic_id
    # Before the assignment: after a fetch by the old id, the client waits for 500 ms.
    if remade and not _refreshed(clients, consumer, topic):
        del consumer.topics[topic]
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in starts.items()])
    except KafkaException as error:
        clients.unavailable(f"reading {topic}", error.args[0], error)
    # After the assignment: only then does the client need the leaders of a topic that is new to it.
    if consumer.rested and topic not in consumer.topics and not _refreshed(clients, consumer, topic):
        return  # the fetch will show what is wrong
    consumer.topics[topic] = topic_id


def _refreshed(clients: Clients, consumer: Any, topic: str) -> bool:
    """Request a topic's metadata; return whether they arrived."""
    try:
        consumer.list_topics(topic, clients.settings.request_s)
    except KafkaException:
        return False
    return True


def _seek(
    clients: Clients, consumer: Any, topic: str, partition: int, left: Mapping[int, Sequence[int]]
) -> None:
    """Resume at the next wanted offset. Messages that arrive twice because of it are dropped."""
    try:
        consumer.seek(TopicPartition(topic, partition, left[partition][0]))
    except KafkaException:  # a partition that had an error cannot always seek
        _assign(clients, consumer, topic, {one: offsets[0] for one, offsets in left.items()})


def _polled(
    clients: Clients,
    consumer: Any,
    topic: str,
    count: Callable[[], int],
    awaited: Callable[[int], int | None],
) -> Iterator[Any]:
    """Yield messages and ends of partitions as they arrive, without errors, until the count is 0.

    ``awaited(partition)`` is the next wanted offset. An error for another offset out of range
    belongs to an earlier read with this consumer: its client does not withdraw it.
    """
    silent_since = time.monotonic()
    while (at_once := count()) > 0:
        # The list is not kept: its memory is reused for the next messages.
        for message in _consumed(clients, consumer, topic, at_once):
            if message.topic() not in (topic, None):
                continue  # of an earlier read with this consumer
            error = message.error()
            if error is not None and error.code() in (*TRANSIENT, KafkaError.GROUP_AUTHORIZATION_FAILED):
                continue  # the client retries by itself, and no group is used
            if error is not None and error.code() in GONE:
                next_offset = awaited(message.partition()) if message.topic() else None
                if next_offset is None or message.offset() > next_offset:
                    continue
                if message.offset() < next_offset:
                    yield message  # only skipped messages are gone
                    continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
                _refuse(clients, topic, message, error)
            yield message
            silent_since = time.monotonic()
        if time.monotonic() - silent_since > clients.settings.timeout_s:
            clients.unavailable(f"reading {topic}")


def _consumed(clients: Clients, consumer: Any, topic: str, at_once: int) -> list[Any]:
    try:
        messages: list[Any] = consumer.consume(at_once, POLL_S)
    except KafkaException as error:
        clients.unavailable(f"reading {topic}", error.args[0], error)
    return messages


def _refuse(clients: Clients, topic: str, message: Any, error: KafkaError) -> None:
    where = f"{clients.where}: {topic}, partition {message.partition()}, offset {message.offset()}"
    match error.code():
        case KafkaError._BAD_MSG | KafkaError._BAD_COMPRESSION | KafkaError.INVALID_MSG:  # noqa: SLF001
            msg = (
                f"{where}: {error.str()}; put the broker's files back from a copy, or let a replica serve it"
            )
            raise CorruptError(msg)
        case code if code in GONE:
            msg = f"{where}: {error.str()}{LOST}"
            raise WalGapError(msg)
        case _:
            clients.unavailable(f"reading {topic}, partition {message.partition()}", error)
