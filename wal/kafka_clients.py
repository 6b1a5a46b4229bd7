"""This process's Kafka clients of one log: made when first needed, used by one caller at a time, kept.

A client has threads of its own, which a fork does not copy: a forked child makes its own
clients and never touches those it inherited. A client that an error came out of is thrown
away: what it had under way may still reach a broker, but nobody waits for it (append rule 4).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.wal.kafka_settings import KafkaSettings

logger = logging.getLogger("tidegate.kafka")

T = TypeVar("T")

REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's names of its own errors start so
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The brokers say no, and will again: trying on would only hide it."""

_abandoned: list[object] = []
"""Clients made before a fork. Freeing them would wait for threads that this process does not have."""


class Clients:
    """Producers, consumers and an admin client for one log, in whatever process this is."""

    def __init__(self, settings: KafkaSettings, where: str) -> None:
        self.settings, self.where = settings, where
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._producers: deque[Any] = deque()
        self._consumers: deque[Any] = deque()
        self._admins: deque[Any] = deque()
        self._last_error: KafkaError | None = None

    def _here(self) -> None:
        """Before any use: this is still the process that made the clients."""
        if self._pid != os.getpid():
            _abandoned.append((self._producers, self._consumers, self._admins))
            self._forget()

    # -- lending them out ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def producer(self, topic: str) -> Generator[Any, None, None]:
        """An idempotent producer that nobody else uses meanwhile."""
        with self._lent("_producers", lambda: self._new_producer(topic), _end_producer) as lent:
            yield lent

    @contextlib.contextmanager
    def consumer(self) -> Generator[Any, None, None]:
        """A consumer without any assignment that nobody else uses meanwhile."""
        with self._lent("_consumers", self._new_consumer, _end_consumer) as lent:
            yield lent
            lent.unassign()

    @contextlib.contextmanager
    def admin(self) -> Generator[Any, None, None]:
        """An admin client that nobody else uses meanwhile."""
        with self._lent("_admins", self._new_admin, lambda _: None) as lent:
            yield lent

    @contextlib.contextmanager
    def _lent(self, kind: str, make: Callable[[], T], end: Callable[[T], None]) -> Generator[T, None, None]:
        self._here()
        idle: deque[T] = getattr(self, kind)
        try:
            client = idle.pop()
        except IndexError:
            client = make()
        try:
            yield client
        except BaseException:
            end(client)
            raise
        idle.append(client)

    def close(self) -> None:
        """End the clients that are idle. May be repeated; later calls make new ones."""
        self._here()
        for idle, end in ((self._producers, _end_producer), (self._consumers, _end_consumer)):
            with contextlib.suppress(IndexError):
                while True:
                    end(idle.pop())
        self._admins.clear()

    # -- making them --------------------------------------------------------------------------------

    def _new_producer(self, topic: str) -> Any:
        producer = self._made(Producer, self.settings.for_producer())
        # Connected first: a producer that gets a message before that waits 500 ms for its id.
        self.ask(f"metadata of {topic}", lambda: producer.list_topics(topic, timeout=self.settings.timeout_s))
        return producer

    def _new_consumer(self) -> Any:
        return self._made(Consumer, self.settings.for_consumer())

    def _new_admin(self) -> Any:
        return self._made(AdminClient, self.settings.for_admin())

    def _made(self, kind: Any, configuration: dict[str, Any]) -> Any:
        try:
            return kind(configuration | {"error_cb": self._note}, logger=logger)
        except (KafkaException, TypeError, ValueError) as error:
            said = self.settings.hide(str(error.args[0].str() if _is_kafka(error) else error))
            msg = f"{self.where}: an option does not fit: {said}"
            raise ConfigError(msg) from None  # the cause may show a password

    # -- errors ---------------------------------------------------------------------------------------

    def _note(self, error: KafkaError) -> None:
        self._last_error = error

    def ask(self, what: str, call: Callable[[], T]) -> T:
        """The call's result. Its KafkaException becomes what it proves: see ``unavailable``."""
        try:
            return call()
        except KafkaException as error:
            self.unavailable(what, error.args[0])

    def unavailable(self, what: str, error: KafkaError | None = None) -> NoReturn:
        """ConfigError when the brokers refuse this user, else WalUnavailableError."""
        noted, self._last_error = self._last_error, None
        shown = [one for one in (error, noted) if one is not None]
        said = self.settings.hide("; ".join(dict.fromkeys(one.str() for one in shown)))
        if any(one.code() in REFUSED for one in shown):
            msg = (
                f"{self.where}: {what}: {said}; check security.protocol, sasl.* and ssl.* of the log's"
                " options, and what this user may do there"
            )
            raise ConfigError(msg)
        silent = f"no answer within {self.settings.timeout_s:g} s"
        msg = f"{self.where}: {what}: {said or silent}; look whether the brokers run and can be reached"
        raise WalUnavailableError(msg)


def _is_kafka(error: Exception) -> bool:
    return isinstance(error, KafkaException)


def _end_producer(producer: Any) -> None:
    # Without this, freeing it would wait for what nobody waits for any more.
    with contextlib.suppress(KafkaException):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)


def _end_consumer(consumer: Any) -> None:
    with contextlib.suppress(KafkaException, RuntimeError):
        consumer.close()
