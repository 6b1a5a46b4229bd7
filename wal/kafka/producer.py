"""Messages on their way: sent, and acknowledged one by one by the brokers."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from tidegate.errors import WalUnavailableError
from tidegate.wal.kafka.clients import Clients

POLL_S = 0.1
UNSET = -1


class DeliveryReports:
    """The delivery reports of one caller's messages to one partition, in the order they were sent.

    The producer must be the caller's alone. Its queue is bounded: ``send`` waits for room.
    """

    def __init__(
        self, clients: Clients, producer: Any, topic: str, partition: int, key: bytes | None = None
    ) -> None:
        self._clients, self._producer, self._topic = clients, producer, topic
        self._partition, self._key = partition, key
        self._offsets: list[int] = []
        self._missing = 0
        self.appended_at_us: int | None = None
        """When the brokers took the last message, by their clock; None where they do not say."""
        self._error: KafkaError | None = None

    def send(self, content: bytes) -> None:
        """Hand one message over. WalUnavailableError: an earlier one failed, or no room in time."""
        nth = len(self._offsets)
        self._offsets.append(UNSET)

        def report(error: KafkaError | None, message: Message) -> None:
            self._missing -= 1
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                self._offsets[nth] = offset
                kind, at_ms = message.timestamp()
                if kind == TIMESTAMP_LOG_APPEND_TIME:
                    self.appended_at_us = at_ms * 1000
            elif self._error is None:
                self._error = error or KafkaError(KafkaError._FAIL)  # noqa: SLF001 - acked without an offset

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
                self._poll(0)  # a client that gave up says why here, and only that it did there
                self._clients.unavailable(f"writing to {self._topic}", error.args[0])
            else:
                self._poll(0)
                return

    def all_in(self) -> list[int]:
        """The offset of every message, once all are acknowledged.

        WalUnavailableError: one was not; nothing is proven about any of them.
        """
        # The client reports every message within its own time-out; the rest is for a client that hangs.
        until = time.monotonic() + self._clients.settings.timeout_s + 5
        while self._missing and self._error is None and time.monotonic() < until:
            self._poll(POLL_S)
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
            # The client itself gave up: who may write nothing gets no producer id.
            self._clients.unavailable(f"writing to {self._topic}", error.args[0], error)

    def _refuse_error(self) -> None:
        if self._error is not None:
            self._clients.unavailable(f"writing to {self._topic}", self._error)
