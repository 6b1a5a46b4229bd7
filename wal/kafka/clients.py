"""This process's Kafka clients: created on first use, lent to one caller at a time, shared by its logs.

A client has threads, which a fork does not copy: a forked child creates its own clients and never
touches those it inherited. A client whose call failed is discarded. Its messages in flight may
still reach a broker, but no caller waits for them (append rule 4).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, NoReturn, TypeVar

import tenacity
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.base import forks
from tidegate.base.urls import over_its_time
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.options.logins import NoLoginError, Provider
from tidegate.wal.kafka.settings import CHANGELOG, MESSAGE_BYTES, KafkaSettings
from tidegate.wal.log import RECORD_BYTES_MAX

logger = logging.getLogger("tidegate.kafka")
logger.addHandler(logging.NullHandler())  # else Python prints records without a handler on standard error

T = TypeVar("T")

REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's names for its own errors start with _
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""The brokers refuse, and will refuse again: a retry would only hide it."""

UNANSWERED = "handshake failed: Local: "
"""librdkafka's text for a SASL handshake without an answer, because a broker went away. Its error
code is that of a refused handshake.
"""

TOKENLESS = "Failed to acquire SASL OAUTHBEARER token"
"""librdkafka's text for a callback that raised. Its error code is that of a refused login."""

UNTRUSTED = (
    "the brokers' certificate has expired (`openssl s_client -connect HOST:PORT` shows it; renew it), or"
    " ssl.ca.location is not who signed it; "
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
"""The right that a broker requires, by the first words of the request's description."""

DESTROY_BROKER = getattr(KafkaError, "_DESTROY_BROKER", None)
"""A connection that ended while it was being made. Older supported clients do not report this error."""

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
"""Errors after which the request may be repeated: another broker leads, or none yet, or no answer arrived."""

END_S = 5.0
"""How long the close of a consumer is awaited; the client itself sets no bound."""
LAST_ANSWER_S = 1.0
"""How long the answer to a consumer's last fetch is awaited. After a time-out no others are awaited."""

THROTTLED_S = 1.0
"""A pause of this length by a quota is the cause of an answer that did not come in time."""
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
        self.users: weakref.WeakSet[Clients] = weakref.WeakSet()
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

    def leave(self, log: Clients) -> None:
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


def _pool_of(settings: KafkaSettings) -> Pool:
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


class Clients:
    """Producers, consumers and admin clients for one log, out of the process's pool."""

    def __init__(self, settings: KafkaSettings, where: str) -> None:
        self.settings, self.where = settings, where
        self._pool = _pool_of(settings)

    # -- lending ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def producer(self, topic: str) -> Generator[Any, None, None]:
        """Lend an idempotent producer for exclusive use."""
        with self._lent("producer", lambda: self._new_producer(topic), topic) as producer:
            yield producer

    @contextlib.contextmanager
    def consumer(self, topic: str) -> Generator[Any, None, None]:
        """Lend a consumer without any assignment for exclusive use."""
        kind = "changelog" if topic.endswith(CHANGELOG) else "decisions"
        with self._lent(f"consumer of {kind}", lambda: self._new_consumer(topic), topic) as consumer:
            yield consumer

    @contextlib.contextmanager
    def admin(self) -> Generator[Any, None, None]:
        """Lend an admin client for exclusive use."""
        with self._lent("admin", self._new_admin) as admin:
            yield admin

    def _lent(
        self, kind: str, make: Callable[[], T], topic: str = ""
    ) -> contextlib.AbstractContextManager[T]:
        self._pool.users.add(self)
        return self._pool.lent(kind, make, topic)

    def described(self, names: Collection[str], topic_ids: Mapping[str, str]) -> None:
        """Record which of these topics exist, and their ids."""
        for name in names:
            if name in topic_ids:
                self._pool.topic_ids[name] = topic_ids[name]
            else:
                self._pool.topic_ids.pop(name, None)

    def topic_id(self, topic: str) -> str | None:
        """Return a topic's id as it was last described."""
        return self._pool.topic_ids.get(topic)

    def close(self) -> None:
        """Close the idle clients, unless another log uses them. Repeatable: later calls create new ones."""
        self._pool.leave(self)

    # -- creation -----------------------------------------------------------------------------------

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
        return self._made(ReadingConsumer, self.settings.for_consumer(topic))

    def _new_admin(self) -> Any:
        return self._made(AdminClient, self.settings.for_admin())

    def _made(self, kind: Any, configuration: dict[str, Any]) -> Any:
        # The callback holds neither this log nor the pool, so a log that nobody closes is freed.
        configuration = configuration | self._login()
        try:
            notes = self._pool.notes
            callbacks = {"error_cb": notes.add, "throttle_cb": notes.throttle}
            return kind(configuration | callbacks, logger=logger)
        except (KafkaException, TypeError, ValueError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001
                self.unavailable("the first token", error.args[0])
            said = self.settings.unfit(
                str(error.args[0].str() if isinstance(error, KafkaException) else error)
            )
        msg = f"{self.where}: an option does not fit: {said}"
        raise ConfigError(msg)  # without a context, which may show a password

    def _login(self) -> dict[str, Any]:
        """Return the client's options for a login by the name of a function.

        Raises: WalUnavailableError: the function gave none in time. ConfigError: it does not fit.
        """
        provider = self.settings.provider
        if provider is None:
            return {}
        try:
            login = tenacity.Retrying(
                stop=tenacity.stop_after_delay(self.settings.timeout_s),
                wait=tenacity.wait_exponential(multiplier=0.1, max=1.0),
                retry=tenacity.retry_if_exception_type(NoLoginError),
                reraise=True,
            )(provider.get, self.settings.request_s)
        except NoLoginError as error:
            raise WalUnavailableError(f"{self.where}: no login: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from None
        if not self.settings.takes_tokens:
            return {"sasl.username": login.user, "sasl.password": login.token}
        if login.expires_at is None:
            msg = (
                f"{self.where}: the function {provider.name} (credential_provider) returned None for the end"
                " of the token, and OAUTHBEARER needs one: return it in seconds since the epoch"
            )
            raise ConfigError(msg)
        return {"oauth_cb": functools.partial(_next_token, provider, self.settings.request_s)}

    # -- errors ---------------------------------------------------------------------------------------

    def ask(
        self,
        lend: Callable[[], contextlib.AbstractContextManager[Any]],
        what: str,
        call: Callable[[Any], T],
        also: frozenset[int] = frozenset(),
    ) -> T:
        """Return a client's answer; retry errors in ``TRANSIENT`` or ``also`` until the time-out.

        The call must be repeatable. Each try uses a client of ``lend``: one that failed is
        discarded, since it may stay connected to a broker that is gone. A KafkaException becomes
        the error that it proves: see ``unavailable``.
        """
        self._pool.notes.clear()

        def once() -> T:
            with lend() as client:
                try:
                    return call(client)
                except KafkaException:
                    with contextlib.suppress(KafkaException):
                        client.poll(0)  # else it reports a missing answer instead of the refusal
                    raise

        def again(error: BaseException) -> bool:
            if not isinstance(error, KafkaException):
                return False
            if is_refused(self._pool.notes.last) or is_refused(error.args[0]):
                return self._has_other_login()
            return error.args[0].code() in TRANSIENT | also or is_tokenless(self._pool.notes.last)

        try:
            return tenacity.Retrying(
                stop=tenacity.stop_after_delay(self.settings.timeout_s),
                wait=tenacity.wait_exponential(multiplier=0.02, max=0.5),
                retry=tenacity.retry_if_exception(again),
                reraise=True,
            )(once)
        except KafkaException as error:
            # Its traceback's frames hold the discarded client, whose threads would live as long as the error.
            self.unavailable(what, error.args[0], error.with_traceback(None))
        except (TimeoutError, concurrent.futures.TimeoutError) as error:  # the same class from 3.11 on
            self.unavailable(what, cause=error)

    def _has_other_login(self) -> bool:
        """Whether the refused login was an older one, and the function may give another one now."""
        return self.settings.provider is not None and self.settings.provider.forget()

    def refusals(self) -> int:
        """Return how often the brokers refused this user during this thread's call."""
        return self._pool.notes.refusals

    def unavailable(
        self, what: str, error: KafkaError | None = None, cause: BaseException | None = None
    ) -> NoReturn:
        """Raise ConfigError when the brokers refuse this user, else WalUnavailableError."""
        noted, throttled_s = self._pool.notes.last, self._pool.notes.throttled_s
        self._pool.notes.clear()
        shown = [one for one in (error, noted) if one is not None]
        said = self.settings.hide("; ".join(dict.fromkeys(one.str() for one in shown)))
        if any(one.code() in DENIED for one in shown):
            raise ConfigError(f"{self.where}: {what}: {said}; {self._lacks(what)}") from cause
        if renew := over_its_time(said, self.settings.client.get("ssl.certificate.location")):
            raise ConfigError(f"{self.where}: {what}: {said}; {renew}") from cause
        if any(map(is_tokenless, shown)):
            raise WalUnavailableError(f"{self.where}: {what}: {said}") from cause
        if any(map(is_refused, shown)) and self._has_other_login():
            msg = f"{self.where}: {what}: {said}; the next try takes a new login of credential_provider"
            raise WalUnavailableError(msg) from cause
        if any(map(is_refused, shown)):
            untrusted = UNTRUSTED if "certificate verify failed" in said else ""
            msg = (
                f"{self.where}: {what}: {said}; {untrusted}check security.protocol, sasl.* and ssl.* of the"
                " log's options, and this user's rights there"
            )
            raise ConfigError(msg) from cause
        if any(one.code() == KafkaError.INVALID_RECORD for one in shown):
            # This try appended nothing. Other tries may still be in flight, so it proves no more than that.
            hint = "a topic whose cleanup.policy is compact takes no record without a key: set delete"
            raise WalUnavailableError(
                f"{self.where}: {what}: {said}: {hint}, see `tidegate doctor`"
            ) from cause
        if any(one.code() == KafkaError.MSG_SIZE_TOO_LARGE for one in shown):
            least = RECORD_BYTES_MAX if ".decisions" in what else MESSAGE_BYTES
            hint = (
                "the topic's max.message.bytes is smaller than a record: set it to at least"
                f" {least}, see `tidegate doctor`"
            )
            raise WalUnavailableError(f"{self.where}: {what}: {said}: {hint}") from cause
        silent = f"no answer within {self.settings.timeout_s:g} s"
        msg = f"{self.where}: {what}: {said or silent}; look whether the brokers run and can be reached"
        if throttled_s >= THROTTLED_S:
            msg = (
                f"{self.where}: {what}: {said or silent}; the brokers made this user wait for"
                f" {throttled_s:.0f} s, since it is above its quota: raise producer_byte_rate or"
                " consumer_byte_rate of the user, or timeout_s"
            )
        raise WalUnavailableError(msg) from cause

    def _lacks(self, what: str) -> str:
        """Name the right that the user lacks, and the command that grants it."""
        right = next((right for begin, right in RIGHTS.items() if what.startswith(begin)), None)
        prefix = f"{self.settings.topic_prefix}."
        topic = next((word.rstrip(",") for word in what.split() if word.startswith(prefix)), None)
        grants = self.settings.grant(right, topic) if right and topic else "`kafka-acls`"
        return (
            f"this user lacks the right {right or 'for it'} on {f'topic {topic}' if topic else 'its topics'}:"
            f" {grants} grants it; docs/kafka.md has the rights of a writer and a reader"
        )


def is_refused(error: KafkaError | None) -> bool:
    """Return whether the brokers refuse this user, and not merely did not answer."""
    return (
        error is not None
        and error.code() in REFUSED
        and UNANSWERED not in error.str()
        and not is_tokenless(error)
    )


def is_tokenless(error: KafkaError | None) -> bool:
    """Return whether the function of the login gave the client no token, which proves nothing."""
    return error is not None and TOKENLESS in error.str()


def _next_token(provider: Provider, limit_s: float, _: str) -> tuple[str, float, str, dict[str, str]]:
    """Return token, end, user and extensions: the client's callback before its token ends."""
    login = provider.get(limit_s)
    return login.token, login.expires_at or 0.0, login.user, {}


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
