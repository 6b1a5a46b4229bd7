"""This process's Kafka clients of one log: made when first needed, used by one caller at a time, kept.

A client has threads of its own, which a fork does not copy: a forked child makes its own
clients and never touches those it inherited. A client that an error came out of is thrown
away: what it had under way may still reach a broker, but nobody waits for it (append rule 4).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeVar

import tenacity
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.base.certificates import over_its_time
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.wal.kafka.settings import KafkaSettings

logger = logging.getLogger("tidegate.kafka")
logger.addHandler(logging.NullHandler())  # else Python prints what nobody listens to on standard error

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

UNANSWERED = "handshake failed: Local: "
"""In librdkafka's words for a SASL handshake that got no answer, with the code of one that was refused: a
broker went away meanwhile."""

UNTRUSTED = (
    "the brokers' certificate is over its time (`openssl s_client -connect HOST:PORT` tells: renew it there),"
    " or ssl.ca.location is not who signed it; "
)
DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
RIGHTS = {
    "describing": "Describe",
    "metadata": "Describe",
    "the ends": "Describe",
    "the configuration": "DescribeConfigs",
    "reading": "Read",
    "writing": "Write",
    "trimming": "Delete",
    "deleting": "Delete",
    "making": "Create",
}
"""By how the name of what was asked for begins: the right that a broker wants for it."""

DESTROY_BROKER = getattr(KafkaError, "_DESTROY_BROKER", None)
"""A connection that ended while it was being made. Older clients, which are admitted, never say so."""

TRANSIENT = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        DESTROY_BROKER,
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""What was asked for may be asked for again: another broker leads, or none yet, or no answer came."""

END_S = 5.0
"""How long the end of a consumer is waited for, which the client itself does not bound."""
LAST_ANSWER_S = 1.0
"""How long the answer behind its last fetch is waited for; where there is none, no more are asked for."""

_everyone: weakref.WeakSet[Clients] = weakref.WeakSet()
"""Who may hold clients when this process forks."""


class _Notes(threading.local):
    """What the clients told of themselves in this thread's call; another's call does not colour it."""

    last: KafkaError | None = None


class Clients:
    """Producers, consumers and an admin client for one log, in whatever process this is."""

    def __init__(self, settings: KafkaSettings, where: str) -> None:
        self.settings, self.where = settings, where
        self._forget()
        _everyone.add(self)

    def _forget(self) -> None:
        self._idle: dict[str, deque[Any]] = {}
        self._alive: list[Any] = []
        """Every client that was not ended, lent out or not."""
        self._notes = _Notes()

    def after_fork(self) -> None:
        """In the child: what it inherited is not its own.

        Freeing such a client, at the latest when the interpreter ends, would wait for threads that
        this process does not have. So each gets a reference that is never given back.
        """
        for client in self._alive:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        self._forget()

    # -- lending them out ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def producer(self, topic: str) -> Generator[Any, None, None]:
        """An idempotent producer that nobody else uses meanwhile."""
        with self._lent("producer", lambda: self._new_producer(topic), _end_producer) as lent:
            yield lent

    @contextlib.contextmanager
    def consumer(self, topic: str) -> Generator[Any, None, None]:
        """A consumer without any assignment that nobody else uses meanwhile.

        One that is used for another topic than before waits up to 1 s for that one's metadata.
        """
        with self._lent(
            f"consumer of {topic}", lambda: self._new_consumer(topic), _end_consumer, _unassign
        ) as lent:
            yield lent

    @contextlib.contextmanager
    def admin(self) -> Generator[Any, None, None]:
        """An admin client that nobody else uses meanwhile."""
        with self._lent("admin", self._new_admin, lambda _: None) as lent:
            yield lent

    @contextlib.contextmanager
    def _lent(
        self,
        kind: str,
        make: Callable[[], T],
        end: Callable[[T], None],
        rest: Callable[[T], None] = lambda _: None,
    ) -> Generator[T, None, None]:
        idle: deque[T] = self._idle.setdefault(kind, deque())
        client = self._rested(idle, end)
        if client is None:
            client = make()
            self._alive.append(client)
        self._notes.last = None
        alive, failed = self._alive, True
        try:
            yield client
            failed = False
        except GeneratorExit:  # the caller has all it wants
            failed = False
            raise
        finally:
            if alive is not self._alive:
                pass  # lent out before a fork, and this is the child: not its own
            elif failed:
                end(client)
                alive.remove(client)
            else:
                rest(client)
                idle.append(client)

    def _rested(self, idle: deque[T], end: Callable[[T], None]) -> T | None:
        """An idle client, if there is one, that was not refused while it lay idle.

        It tells of such a refusal only when it is used again, when that may be long over: a time-out of that
        call would be taken for a refusal. A new client tells how it is now.
        """
        while True:
            try:
                client = idle.pop()
            except IndexError:
                return None
            self._notes.last = None
            with contextlib.suppress(KafkaException):  # it gave itself up
                client.poll(0)  # type: ignore[attr-defined]
                if not self._is_refused(self._notes.last):
                    return client
            end(client)
            self._alive.remove(client)

    def close(self) -> None:
        """End the clients that are idle. May be repeated; later calls make new ones."""
        ends: dict[str, Callable[[Any], None]] = {
            "producer": _end_producer,
            "consumer": _end_consumer,
            "admin": lambda _: None,
        }
        for kind, idle in list(self._idle.items()):
            with contextlib.suppress(IndexError):
                while True:
                    client = idle.pop()
                    ends[kind.partition(" ")[0]](client)
                    self._alive.remove(client)

    # -- making them --------------------------------------------------------------------------------

    def _new_producer(self, topic: str) -> Any:
        producer = self._made(Producer, self.settings.for_producer())
        # Connected first: a producer that gets a message before that waits 500 ms for its id.
        self.ask(
            lambda: contextlib.nullcontext(producer),
            f"metadata of {topic}",
            lambda client: client.list_topics(topic, self.settings.request_s),
        )
        return producer

    def _new_consumer(self, topic: str) -> Any:
        return self._made(Consumer, self.settings.for_consumer(topic))

    def _new_admin(self) -> Any:
        return self._made(AdminClient, self.settings.for_admin())

    def _made(self, kind: Any, configuration: dict[str, Any]) -> Any:
        try:
            return kind(configuration | {"error_cb": self._note}, logger=logger)
        except (KafkaException, TypeError, ValueError) as error:
            said = self.settings.hide(
                str(error.args[0].str() if isinstance(error, KafkaException) else error)
            )
            msg = f"{self.where}: an option does not fit: {said}"
            raise ConfigError(msg) from None  # the cause may show a password

    # -- errors ---------------------------------------------------------------------------------------

    @staticmethod
    def _is_refused(error: KafkaError | None) -> bool:
        return error is not None and error.code() in REFUSED and UNANSWERED not in error.str()

    def _note(self, error: KafkaError) -> None:
        if not self._is_refused(self._notes.last):  # what comes after a refusal only follows from it
            self._notes.last = error

    def ask(
        self,
        lend: Callable[[], contextlib.AbstractContextManager[Any]],
        what: str,
        call: Callable[[Any], T],
        also: frozenset[int] = frozenset(),
    ) -> T:
        """A client's answer; what is only for the moment, or ``also``, is tried again until the time-out.

        The call must be one that may be repeated. Each try has a client of ``lend``: one that failed
        is thrown away, since it may stick to a broker that is gone. A KafkaException becomes what
        it proves: see ``unavailable``.
        """
        self._notes.last = None

        def once() -> T:
            with lend() as client:
                try:
                    return call(client)
                except KafkaException:
                    with contextlib.suppress(KafkaException):
                        client.poll(0)  # else it would not tell that it is refused, only that no answer came
                    raise

        def again(error: BaseException) -> bool:
            passing = isinstance(error, KafkaException) and error.args[0].code() in TRANSIENT | also
            return passing and not self._is_refused(self._notes.last)

        try:
            return tenacity.Retrying(
                stop=tenacity.stop_after_delay(self.settings.timeout_s),
                wait=tenacity.wait_exponential(multiplier=0.02, max=0.5),
                retry=tenacity.retry_if_exception(again),
                reraise=True,
            )(once)
        except KafkaException as error:
            # Its frames hold the client that was thrown away, whose threads would live on with the error.
            self.unavailable(what, error.args[0], error.with_traceback(None))
        except (TimeoutError, concurrent.futures.TimeoutError) as error:  # one and the same from 3.11 on
            self.unavailable(what, cause=error)

    def unavailable(
        self, what: str, error: KafkaError | None = None, cause: BaseException | None = None
    ) -> NoReturn:
        """ConfigError when the brokers refuse this user, else WalUnavailableError."""
        noted, self._notes.last = self._notes.last, None
        shown = [one for one in (error, noted) if one is not None]
        said = self.settings.hide("; ".join(dict.fromkeys(one.str() for one in shown)))
        if any(one.code() in DENIED for one in shown):
            raise ConfigError(f"{self.where}: {what}: {said}; {self._lacks(what)}") from cause
        if renew := over_its_time(said, self.settings.client.get("ssl.certificate.location")):
            raise ConfigError(f"{self.where}: {what}: {said}; {renew}") from cause
        if any(map(self._is_refused, shown)):
            untrusted = UNTRUSTED if "certificate verify failed" in said else ""
            msg = (
                f"{self.where}: {what}: {said}; {untrusted}check security.protocol, sasl.* and ssl.* of the"
                " log's options, and what this user may do there"
            )
            raise ConfigError(msg) from cause
        if any(one.code() == KafkaError.INVALID_RECORD for one in shown):
            # Nothing was appended by this try. Others may still be under way, so it proves no more than that.
            hint = "a topic whose cleanup.policy is compact takes no record without a key: set delete"
            raise WalUnavailableError(
                f"{self.where}: {what}: {said}: {hint}, see `tidegate doctor`"
            ) from cause
        if any(one.code() == KafkaError.MSG_SIZE_TOO_LARGE for one in shown):
            hint = (
                "the topic's max.message.bytes was made smaller than what is written, see `tidegate doctor`"
            )
            raise WalUnavailableError(f"{self.where}: {what}: {said}: {hint}") from cause
        silent = f"no answer within {self.settings.timeout_s:g} s"
        msg = f"{self.where}: {what}: {said or silent}; look whether the brokers run and can be reached"
        raise WalUnavailableError(msg) from cause

    def _lacks(self, what: str) -> str:
        """Which right the user lacks, and what grants it."""
        right = next((right for begin, right in RIGHTS.items() if what.startswith(begin)), None)
        prefix = f"{self.settings.topic_prefix}."
        topic = next((word.rstrip(",") for word in what.split() if word.startswith(prefix)), None)
        grants = self.settings.grant(right, topic) if right and topic else "`kafka-acls --add`"
        return (
            f"this user lacks the right {right or 'for it'} on {f'topic {topic}' if topic else 'its topics'}:"
            f" {grants} grants it; docs/kafka.md has the rights of a writer and a reader"
        )


def _after_fork() -> None:
    for clients in list(_everyone):
        clients.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _end_producer(producer: Any) -> None:
    # Without this, freeing it would wait for what nobody waits for any more.
    with contextlib.suppress(KafkaException):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)


def _unassign(consumer: Any) -> None:
    consumer.unassign()


def _end_consumer(consumer: Any) -> None:
    """End it, waiting at most END_S: one that cannot end stays behind, with its threads, and is named."""

    def end() -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            _end_fetching(consumer)
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()

    ending = threading.Thread(target=end, name="tidegate-kafka-end", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # the interpreter ends, and takes its threads along
        return
    ending.join(END_S)
    if ending.is_alive():
        logger.warning(
            "a Kafka consumer did not end within %g s: its threads stay until this process ends", END_S
        )


def _end_fetching(consumer: Any) -> None:
    """No answer to a fetch is on its way on return, if the brokers answer.

    One that comes while the client ends, and says that an offset is out of range (as the next does behind
    a damaged message), makes the client wait for itself for ever (librdkafka issue 4514). A broker answers
    in order: what is asked for last is answered last.
    """
    fetched = consumer.assignment()
    consumer.unassign()
    for partition in fetched:
        if consumer.get_watermark_offsets(partition, timeout=LAST_ANSWER_S, cached=False) is None:
            return
