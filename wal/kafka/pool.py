"""This process's Kafka clients: lent to one caller at a time, shared by its logs, ended when they failed.

A client has threads, which a fork does not copy: a forked child creates its own clients and never
touches those it inherited. A client whose call failed is discarded. Its messages in flight may
still reach a broker, but no caller waits for them (append rule 4).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

from tidegate.base import forks
from tidegate.wal.kafka.errors import is_refused, is_tokenless
from tidegate.wal.kafka.settings import KafkaSettings

logger = logging.getLogger("tidegate.kafka")
logger.addHandler(logging.NullHandler())  # else Python prints records without a handler on standard error

T = TypeVar("T")

END_S = 5.0
"""How long the close of a consumer is awaited; the client itself sets no bound."""
LAST_ANSWER_S = 1.0
"""How long the answer to a consumer's last fetch is awaited. After a time-out no others are awaited."""

IDLE_MAX = 4
"""How many idle clients of one kind a process keeps for a cluster. Each has about five threads."""

TOPICS_MAX = 256
"""The number of topics that a client has used when it is ended. It keeps about 15 KB for each,
permanently, also for those that were deleted.
"""


class _Notes(threading.local):
    """The reports of the clients during this thread's call: the last error, the number of refusals, and the
    longest time for which brokers made this user wait.
    """

    last: KafkaError | None = None
    refusals = 0
    throttled_s = 0.0

    def clear(self) -> None:
        self.last, self.refusals, self.throttled_s = None, 0, 0.0

    def throttle(self, event: Any) -> None:
        """Record a broker's pause, of which librdkafka tells seconds."""
        self.throttled_s = max(self.throttled_s, event.throttle_time)

    def add(self, error: KafkaError) -> None:
        self.refusals += is_refused(error)
        if not is_refused(self.last):  # errors after a refusal are its consequences
            self.last = error


class ReadingConsumer(Consumer):
    """A consumer that records the topics that it has read and their ids: see ``consumer._assign``."""

    def __init__(self, configuration: dict[str, Any], *, logger: logging.Logger) -> None:
        super().__init__(configuration, logger=logger)
        self.topics: dict[str, str | None] = {}
        self.rested = False
        """Whether it was used before: a new consumer requests metadata by itself."""


class Pool:
    """The idle clients of this process for one cluster with one set of settings, shared by all logs.

    A topic is not part of a client's settings, so any number of namespaces use the same few clients.
    """

    _freed: weakref.finalize[..., Pool] | None = None

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        """The logs that have used a client and were not closed since."""
        self.idle: dict[str, deque[Any]] = {}
        self.alive: list[Any] = []
        """Every client that was not closed, lent or idle."""
        self.used: dict[int, set[str]] = {}
        """The topics for which each living client was lent, by the client's ``id``."""
        self.topic_ids: dict[str, str] = {}
        """The ids of existing topics as they were last described: a remade topic has another one."""
        self.notes = _Notes()
        if self._freed is not None:
            self._freed.detach()
        # A pool whose logs were not closed: a consumer that is only freed has no bound to its end.
        self._freed = weakref.finalize(self, _end_all, self.idle)
        self._freed.atexit = False

    def after_fork(self) -> None:
        """Abandon the inherited clients, in the child.

        Freeing such a client, at the latest when the interpreter ends, would wait for threads that
        this process does not have. So each gets a reference that is never released.
        """
        for client in self.alive:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        self.forget()

    @contextlib.contextmanager
    def lent(self, kind: str, make: Callable[[], T], topic: str) -> Generator[T, None, None]:
        """Lend a client of this kind for exclusive use; ``make`` creates one when none is idle."""
        idle: deque[T] = self.idle.setdefault(kind, deque())
        client = self._rested(idle, kind)
        if client is None:
            client = make()
            self.alive.append(client)
        used = self.used.setdefault(id(client), set())
        used.add(topic)
        self.notes.clear()
        alive, failed = self.alive, True
        try:
            yield client
            failed = False
        except GeneratorExit:  # the caller stops early; the client is fine
            failed = False
            raise
        finally:
            if alive is not self.alive:
                pass  # lent before a fork, and this is the child: not its own
            elif (
                failed
                or len(idle) >= IDLE_MAX
                or len(used) >= TOPICS_MAX
                or not self.users
                or not _rests(kind, client)
            ):
                self._end(kind, client)
            else:
                idle.append(client)

    def _rested(self, idle: deque[T], kind: str) -> T | None:
        """Return an idle client, if there is one, that was not refused while it was idle.

        A client reports such a refusal only on its next use, when it may be over. A time-out of
        that call would be taken for a refusal. A new client reports its current state.
        """
        while True:
            try:
                client = idle.pop()
            except IndexError:
                return None
            self.notes.clear()
            with contextlib.suppress(KafkaException):  # the client gave up
                client.poll(0)  # type: ignore[attr-defined]
                if not is_refused(self.notes.last) and not is_tokenless(self.notes.last):
                    return client
            self._end(kind, client)

    def _end(self, kind: str, client: Any) -> None:
        ENDS[kind.partition(" ")[0]](client)
        self.used.pop(id(client), None)
        self.alive.remove(client)

    def leave(self, log: object) -> None:
        """Close the idle clients if this was the last log that uses them."""
        self.users.discard(log)
        if self.users:
            return
        for kind, idle in list(self.idle.items()):
            with contextlib.suppress(IndexError):
                while True:
                    self._end(kind, idle.pop())


def _end_all(idle: dict[str, deque[Any]]) -> None:
    for kind, clients in list(idle.items()):
        while clients:
            ENDS[kind.partition(" ")[0]](clients.pop())


def _rests(kind: str, client: Any) -> bool:
    """Return whether the client fetches nothing any more."""
    if kind.startswith("consumer"):
        try:
            client.unassign()
            client.rested = True
        except (KafkaException, RuntimeError):
            return False
    return True


_pools: weakref.WeakValueDictionary[tuple[object, ...], Pool] = weakref.WeakValueDictionary()
"""Every pool of this process, by the settings of its clients. A pool lives as long as a log that uses it."""
_pools_lock = threading.Lock()


def pool_of(settings: KafkaSettings) -> Pool:
    # By type too: True is 1, but librdkafka takes the one and not the other. Not by repr, which may hide
    # a password.
    options = sorted(settings.client.items())
    named = ((name, type(value), value) for name, value in options)
    key = (settings.brokers, settings.timeout_s, settings.credential_provider, *named)
    with _pools_lock:
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = Pool()
        return pool


@forks.in_child
def _after_fork() -> None:
    global _pools_lock  # noqa: PLW0603 - a thread of the parent may have held it
    _pools_lock = threading.Lock()
    for pool in list(_pools.values()):
        pool.after_fork()


def _end_producer(producer: Any) -> None:
    # Without this, freeing it would wait for messages whose result nobody awaits any more.
    with contextlib.suppress(KafkaException):
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        producer.poll(0)


def _end_consumer(consumer: Any) -> None:
    """Close a consumer within END_S. One that does not close keeps its threads, and is logged."""

    def end() -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            _end_fetching(consumer)
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()

    ending = threading.Thread(target=end, name="tidegate-kafka-end", daemon=True)
    try:
        ending.start()
    except RuntimeError:  # the interpreter is ending, and its threads with it
        return
    ending.join(END_S)
    if ending.is_alive():
        logger.warning(
            "a Kafka consumer did not end within %g s: its threads stay until this process ends", END_S
        )


def _end_fetching(consumer: Any) -> None:
    """Return once no answer to a fetch is pending, provided that the brokers answer.

    An answer that arrives while the client closes and reports an offset out of range makes the
    client wait for itself permanently (librdkafka issue 4514). The fetch after a damaged message
    gets such an answer. A broker answers in order: the answer to the last request is the last one.
    """
    fetched = consumer.assignment()
    consumer.unassign()
    for partition in fetched:
        if consumer.get_watermark_offsets(partition, timeout=LAST_ANSWER_S, cached=False) is None:
            return


ENDS: dict[str, Callable[[Any], None]] = {
    "producer": _end_producer,
    "consumer": _end_consumer,
    "admin": lambda _: None,
}
"""How a client of each kind is ended."""
