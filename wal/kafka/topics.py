"""The two topics of a log: creation, description, removal."""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from concurrent.futures import Future
from typing import Any, NamedTuple

import confluent_kafka
import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import ConfigResource, NewTopic  # type: ignore[attr-defined]

from tidegate.base.names import check_name, escape
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.wal.kafka.clients import Clients
from tidegate.wal.kafka.settings import (
    CHANGELOG,
    MARGIN_S,
    MESSAGE_BYTES,
    KafkaSettings,
)
from tidegate.wal.log import RECORD_BYTES_MAX

REPLICAS_MOST = 3
DECISIONS_SEGMENT_BYTES = 16 * 1024 * 1024
CHANGELOG_SEGMENT_BYTES = 128 * 1024 * 1024
"""Trimmed records take disk until their whole segment is trimmed."""
CONFIRM_AFTER_S = 0.2
FEW_BROKERS = frozenset({KafkaError.INVALID_REPLICATION_FACTOR})
"""Brokers also return this while one of them is away."""
REFUSED_TOPICS = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
"""Errors for topics that the brokers will not accept later either."""
REQUEST_BYTES = "socket.request.max.bytes"
NOT_THERE = KafkaError.UNKNOWN_TOPIC_OR_PART


class Topic(NamedTuple):
    """A topic's description: ``replicas`` and ``in_sync`` are those of its weakest partition.

    ``may``: the rights of this user on it; empty when not requested, or not reported by the
    brokers.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    in_sync: int
    may: frozenset[str]


class Names(NamedTuple):
    """The names of a log's topics. Kafka takes 249 characters, and not both ``a.b`` and ``a_b``."""

    decisions: str
    changelog: str


class Topics:
    """The topics of one log. Every method sends requests to the brokers."""

    def __init__(self, clients: Clients, namespace: str) -> None:
        self._clients = clients
        self._settings: KafkaSettings = clients.settings
        self._timeout_s, self._request_s = self._settings.timeout_s, self._settings.request_s
        stem = f"{self._settings.topic_prefix}.{escape(check_name('namespace', namespace))}"
        self.names = Names(f"{stem}.decisions", stem + CHANGELOG)

    # -- description --------------------------------------------------------------------------------

    def look(self, *names: str, rights: bool = False) -> dict[str, Topic]:
        """Return those of these topics that exist; with ``rights`` also their ``may``, which costs
        the broker more.

        A broker that has just started may not know a topic yet, so a missing topic is requested
        twice.
        """
        existing = self._described(*names, rights=rights)
        if len(existing) < len(names):
            again = tenacity.Retrying(
                stop=tenacity.stop_after_attempt(2),
                wait=tenacity.wait_fixed(CONFIRM_AFTER_S),
                retry=tenacity.retry_if_result(lambda topics: len(topics) < len(names)),
                retry_error_callback=lambda state: state.outcome.result() if state.outcome else {},
            )
            existing = again(self._described, *names, rights=rights)
        return existing

    def _described(self, *names: str, rights: bool = False) -> dict[str, Topic]:
        def describe(admin: Any) -> dict[str, Topic]:
            futures = admin.describe_topics(
                TopicCollection(list(names)),
                include_authorized_operations=rights,
                request_timeout=self._request_s,
            )
            answers = {name: self._result(future, NOT_THERE) for name, future in futures.items()}
            return {name: _topic(name, answer) for name, answer in answers.items() if answer is not None}

        topics = self._clients.ask(self._clients.admin, "describing its topics", describe)
        self._clients.described(names, {name: topic.topic_id for name, topic in topics.items()})
        return topics

    def settings_of(self, *names: str) -> dict[str, dict[str, str]]:
        """Return the effective configuration of existing topics, by topic and name."""

        def describe(admin: Any) -> dict[str, dict[str, str]]:
            resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
            futures = admin.describe_configs(resources, request_timeout=self._request_s)
            return {
                resource.name: {name: str(entry.value) for name, entry in self._result(future).items()}
                for resource, future in futures.items()
            }

        # The request may reach another broker than the one that knew the topics, which does not know
        # them yet.
        late = frozenset({NOT_THERE})
        return self._clients.ask(self._clients.admin, "the configuration of its topics", describe, late)

    def request_bytes(self) -> dict[str, int]:
        """Return the largest request that each broker takes, by its id; empty where they bar the question."""

        def describe(admin: Any) -> dict[str, int]:
            resources = [ConfigResource(ConfigResource.Type.BROKER, each) for each in self._brokers(admin)]
            futures = admin.describe_configs(resources, request_timeout=self._request_s)
            limits = {}
            for resource, future in futures.items():
                with contextlib.suppress(KafkaException):
                    limits[resource.name] = int(self._result(future)[REQUEST_BYTES].value)
            return limits

        return self._clients.ask(self._clients.admin, "the configuration of the brokers", describe)

    def _brokers(self, admin: Any) -> list[str]:
        """Return the ids of the brokers. A request that names a topic may let a broker make it by itself."""
        cluster = self._result(admin.describe_cluster(request_timeout=self._request_s))
        return [str(node.id) for node in cluster.nodes]

    # -- creation and removal -----------------------------------------------------------------------

    def create(self) -> None:
        """Create the topics that are missing, with the settings that the log needs.

        Repeatable. Raises: ConfigError, the brokers refuse such topics; WalUnavailableError, they
        were not created in time, or there were fewer brokers than replicas.
        """

        def make(admin: Any) -> None:
            brokers = len(self._brokers(admin))
            for only_check in (True, False):  # so that neither is made where the other one is refused
                futures = admin.create_topics(
                    self._wanted(brokers),
                    operation_timeout=self._request_s,
                    request_timeout=self._request_s,
                    validate_only=only_check,
                )
                for future in futures.values():
                    self._result(future, KafkaError.TOPIC_ALREADY_EXISTS)

        self._refuse_prefix()
        try:
            self._clients.ask(self._clients.admin, "making its topics", make, FEW_BROKERS)
        except WalUnavailableError as error:
            said = error.__cause__
            if not isinstance(said, KafkaException) or said.args[0].code() not in REFUSED_TOPICS:
                if isinstance(said, KafkaException) and said.args[0].code() in FEW_BROKERS:
                    msg = f"{error}, or set a smaller replication_factor"
                    raise WalUnavailableError(msg) from said
                raise
            why = said.args[0].str()
            way = "the brokers do not take such topics; change the option that is meant"
            if "collides" in why:
                way = (
                    "Kafka takes '.' and '_' in names for the same; nothing was made. Take another namespace"
                    " or topic_prefix, or delete that topic if nobody uses it"
                )
            raise ConfigError(f"{self._clients.where}: making its topics: {why}: {way}") from said
        self._await(present=True)

    def _refuse_prefix(self) -> None:
        """Refuse topics whose names begin like those of another namespace. Raises: ConfigError.

        The rights of its writer are granted by that beginning, so they would count here, too.
        """
        parts = self._settings.topic_prefix.split(".")
        for count in range(2, len(parts) + 1):
            other, topics = ".".join(parts[:count]), {}
            with contextlib.suppress(ConfigError):  # this user may not see that topic
                topics = self._described(f"{other}.decisions")
            if topics:
                raise ConfigError(
                    f"{self._clients.where}: topic_prefix {'.'.join(parts)} begins with the name of another"
                    f" namespace's topics ({other}.decisions), whose writer has rights on all that begin so:"
                    " nothing was made. Take another topic_prefix"
                )

    def _wanted(self, brokers: int) -> list[NewTopic]:
        replicas = self._settings.replication_factor or min(REPLICAS_MOST, max(brokers, 1))
        in_sync = self._settings.min_insync_replicas or min(2, replicas)
        both = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(in_sync),
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "LogAppendTime",
        }
        decisions = both | {
            "max.message.bytes": str(RECORD_BYTES_MAX),
            "segment.bytes": str(DECISIONS_SEGMENT_BYTES),
        }
        changelog = both | {
            "max.message.bytes": str(MESSAGE_BYTES),
            "segment.bytes": str(CHANGELOG_SEGMENT_BYTES),
        }
        return [
            NewTopic(self.names.decisions, 1, replicas, config=decisions),
            NewTopic(self.names.changelog, self._settings.partitions, replicas, config=changelog),
        ]

    def remove(self) -> bool:
        """Delete both topics; return whether any existed. Decisions first: without them there is no log."""
        removed = [self._remove(name) for name in self.names]
        self._await(present=False)
        return any(removed)

    def _remove(self, name: str) -> bool:
        # A retry after a lost answer may find nothing, although the topic existed.
        tries: list[bool] = []

        def delete(admin: Any) -> bool:
            tries.append(True)
            futures = admin.delete_topics(
                [name], operation_timeout=self._request_s, request_timeout=self._request_s
            )
            try:
                futures[name].result(self._request_s + MARGIN_S)
            except KafkaException as error:
                if error.args[0].code() == NOT_THERE:
                    return len(tries) > 1
                raise
            return True

        return self._clients.ask(self._clients.admin, f"deleting topic {name}", delete)

    def _await(self, *, present: bool) -> None:
        """Wait until the answering broker knows of the change: it may learn of it later than the
        one that made it.
        """
        expected = len(self.names) if present else 0
        waiting = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._timeout_s),
            wait=tenacity.wait_exponential(multiplier=0.01, max=0.5),
            retry=tenacity.retry_if_result(lambda topics: len(topics) != expected),
        )
        try:
            waiting(self._described, *self.names)
        except tenacity.RetryError:
            self._clients.unavailable(f"its topics are {'not there yet' if present else 'still there'}")

    def _result(self, future: Future[Any], unless: int | None = None) -> Any:
        """Return the future's result, or None when its error is ``unless``."""
        try:
            return future.result(self._request_s + MARGIN_S)
        except KafkaException as error:
            if error.args[0].code() == unless:
                return None
            raise


LEAKS_UP_TO = (2, 16, 1)
"""The newest version of the client that is known not to release the id of a described topic."""


class _Described:
    """Holds an id as a description does."""

    def __init__(self, topic_id: Uuid) -> None:
        self.topic_id = topic_id


def _references(description: Any) -> int:
    return sys.getrefcount(description.topic_id)


def _client_version() -> tuple[int, ...]:
    # Text, or with older versions a pair of text and a number.
    return tuple(int(number) for number in re.findall(r"\d+", str(confluent_kafka.__version__))[:3])


def release_id(description: Any) -> bool:
    """Release the reference to a topic's id that the client never releases; return whether there was one.

    Wart: confluent-kafka (2.16.1 and before) adds one reference to the id of each described topic
    (``DescribeTopics_to_py`` passes it to ``PyDict_SetItemString``, which takes a reference of its
    own). A driver would keep about 1 KB for each look. An id that only its description holds has as
    many references as one made here; exactly one more is the client's. With a newer client it may
    be that of a thread or a debugger, so nothing is released there.
    """
    if not isinstance(description.topic_id, Uuid) or _client_version() > LEAKS_UP_TO:
        return False
    leaked = _references(description) == _references(_Described(Uuid(0, 0))) + 1
    if leaked:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(description.topic_id))
    return leaked


def _topic(name: str, description: Any) -> Topic:
    release_id(description)
    replicas = [len(partition.replicas) for partition in description.partitions]
    in_sync = [len(partition.isr) for partition in description.partitions]
    may = frozenset(operation.name for operation in description.authorized_operations or ())
    return Topic(
        name, str(description.topic_id), len(replicas), min(replicas, default=0), min(in_sync, default=0), may
    )
