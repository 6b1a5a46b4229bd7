"""Messages in flight: sent, and acknowledged one by one by the brokers."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from tidegate.errors import WalUnavailableError
from tidegate.wal.kafka.clients import Clients

POLL_S = 0.1
REFUSALS, REFUSED_S = 3, 5.0
"""After ``REFUSALS`` of this user, as a starting broker may answer, the rest is awaited for ``REFUSED_S``."""
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001
UNSET = -1


class DeliveryReports:
    """The delivery reports of one caller's messages to one partition, in the order of sending.

    The producer must be the caller's alone. Its queue is bounded: ``send`` waits for capacity. It sends the
    second message after the first is acknowledged: the broker then refuses a message whose predecessor it
    lacks. From a producer that is new to the partition it takes any message as the first. So if it refuses
    the first one, which a new leader does, it takes the second one, and librdkafka reports both as delivered,
    the lost one without an offset (``rd_kafka_dr_implicit_ack``).
    """

    def __init__(
        self, clients: Clients, producer: Any, topic: str, partition: int, key: bytes | None = None
    ) -> None:
        self._clients, self._producer, self._topic = clients, producer, topic
        self._partition, self._key = partition, key
        self._offsets: list[int] = []
        self._missing = 0
        self.appended_at_us: int | None = None
        """When the brokers took the last message, by their clock; None when they do not report it."""
        self._error: KafkaError | None = None
        self._unplaced = False
        """Whether a message was reported as delivered without an offset: that proves nothing."""

    def send(self, content: bytes) -> None:
        """Enqueue one message; the second waits for the first. Raises: WalUnavailableError, an earlier one
        failed, or the queue stayed full.
        """
        nth = len(self._offsets)
        if nth == 1:
            self.all_in()
        self._offsets.append(UNSET)

        def report(error: KafkaError | None, message: Message) -> None:
            self._missing -= 1
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                self._offsets[nth] = offset
                kind, at_ms = message.timestamp()
                if kind == TIMESTAMP_LOG_APPEND_TIME:
                    self.appended_at_us = at_ms * 1000
            elif self._error is None and not self._unplaced:
                self._error = error
                self._unplaced = error is None

        self._missing += 1
        until = time.monotonic() + self._clients.settings.timeout_s
        while True:
            self._refuse_error()
            try:
                self._producer.produce(
                    self._topic, content, key=self._key, partition=self._partition, on_delivery=report
                )
            except BufferError:
                if time.monotonic() > until:
                    self._clients.unavailable(f"writing to {self._topic}")
                self._poll(POLL_S)
            except KafkaException as error:
                if error.args[0].code() == UNKNOWN_PARTITION and time.monotonic() < until:
                    self._look_again()
                    continue
                self._poll(0)  # a client that gave up reports the reason here only
                self._clients.unavailable(f"writing to {self._topic}", error.args[0])
            else:
                self._poll(0)
                return

    def _look_again(self) -> None:
        """Learn of the partitions that the topic got since this producer looked at it."""
        with contextlib.suppress(KafkaException):
            self._producer.list_topics(self._topic, self._clients.settings.request_s)
        self._poll(POLL_S)

    def all_in(self) -> list[int]:
        """Wait for all acknowledgements and return the offset of every message.

        Raises: WalUnavailableError when one was not acknowledged; it proves nothing about any of
        them.
        """
        # The client reports every message within its own time-out; the margin is for a client that hangs.
        until = time.monotonic() + self._clients.settings.timeout_s + 5
        is_refused = False
        while self._missing and self._error is None and not self._unplaced and time.monotonic() < until:
            self._poll(POLL_S)
            if self._clients.refusals() >= REFUSALS and not is_refused:
                is_refused, until = True, min(until, time.monotonic() + REFUSED_S)
        self._refuse_error()
        if self._missing:
            self._clients.unavailable(f"writing to {self._topic}")
        if self._offsets != sorted(set(self._offsets)):  # one partition, one idempotent producer
            msg = f"{self._clients.where}: {self._topic}: the brokers acknowledged messages out of order"
            raise WalUnavailableError(msg)
        return self._offsets

    def _poll(self, wait_s: float) -> None:
        try:
            self._producer.poll(wait_s)
        except KafkaException as error:
            # The client itself gave up: a user without the right to write gets no producer id.
            self._clients.unavailable(f"writing to {self._topic}", error.args[0], error)

    def _refuse_error(self) -> None:
        if self._error is not None:
            self._clients.unavailable(f"writing to {self._topic}", self._error)
        if self._unplaced:
            msg = (
                f"{self._clients.where}: writing to {self._topic}: the client reported a message as delivered"
                " without its offset, so it may be missing: nothing of this write counts; try again"
            )
            raise WalUnavailableError(msg)
