"""The Kafka clients of one log: lent by the process's pool, created on first use, called until they answer.

Their errors become the errors of the log: see ``Clients.unavailable``.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, NoReturn, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tidegate.base.urls import over_its_time
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.options.logins import NoLoginError, Provider
from tidegate.wal.kafka.errors import DENIED, TRANSIENT, is_refused, is_tokenless
from tidegate.wal.kafka.pool import ReadingConsumer, logger, pool_of
from tidegate.wal.kafka.settings import CHANGELOG, MESSAGE_BYTES, KafkaSettings
from tidegate.wal.log import RECORD_BYTES_MAX

T = TypeVar("T")

UNTRUSTED = (
    "the brokers' certificate has expired (`openssl s_client -connect HOST:PORT` shows it; renew it), or"
    " ssl.ca.location is not who signed it; "
)
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

THROTTLED_S = 1.0
"""A pause of this length by a quota is the cause of an answer that did not come in time."""


class Clients:
    """Producers, consumers and admin clients for one log, out of the process's pool."""

    def __init__(self, settings: KafkaSettings, where: str) -> None:
        self.settings, self.where = settings, where
        self._pool = pool_of(settings)

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


def _next_token(provider: Provider, limit_s: float, _: str) -> tuple[str, float, str, dict[str, str]]:
    """Return token, end, user and extensions: the client's callback before its token ends."""
    login = provider.get(limit_s)
    return login.token, login.expires_at or 0.0, login.user, {}
