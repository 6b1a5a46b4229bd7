"""Client settings from a ``kafka://`` URL and options. Nothing here connects.

Options without a dot are tidegate's. All others are librdkafka's, under its own names. Those in
``CLIENT`` are passed on unchanged, no others: an option may come from a file, and librdkafka has some
that load libraries or run commands. Options on which the log's guarantees rest cannot be set.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tidegate.base.names import NAME
from tidegate.base.text import brief
from tidegate.base.urls import hide, hide_forms, redact
from tidegate.errors import ConfigError
from tidegate.options.client_options import ANYTHING, NUMBER_OR_TEXT, Form, checked, seconds, whole
from tidegate.options.logins import Provider, provider_of
from tidegate.wal.log import RECORD_BYTES_MAX

TIMEOUT_S = 30.0
REQUEST_S = 3.0
MARGIN_S = 5.0
"""A client answers within its own time-out; this margin is for one that hangs."""
PARTITIONS = 8
PIECE_BYTES_MAX = 950_000
"""The most bytes of a blob in one message: by default brokers take 1 MiB with its envelope."""
MESSAGE_BYTES = 1_048_588
"""The limit of messages of the change-log's topic, which is the brokers' default."""
CHANGELOG = ".changelog"
"""The suffix of the topic that is read in large pieces, by readers that process each."""
AT_END_MS = 5

FORMS: dict[str, Form] = {
    "topic_prefix": Form(
        "1 to 64 of the characters A-Z a-z 0-9 _ . -",
        lambda value: isinstance(value, str) and NAME.fullmatch(value) is not None,
    ),
    "partitions": whole(1, 10_000),
    "replication_factor": whole(1, 100),
    "min_insync_replicas": whole(1, 100),
    "timeout_s": seconds(1),
    "credential_provider": ANYTHING,
}
"""tidegate's own options."""
OURS = tuple(FORMS)
FIXED = {
    "acks": "the log is acknowledged by all in-sync replicas (I3)",
    "request.required.acks": "the log is acknowledged by all in-sync replicas (I3)",
    "enable.idempotence": "producers are idempotent",
    "transactional.id": "no Kafka transactions are used",
    "bootstrap.servers": "the URL contains the brokers",
    "metadata.broker.list": "the URL contains the brokers",
    "group.id": "no consumer group is used",
    "enable.auto.commit": "no offsets are committed to Kafka",
    "enable.auto.offset.store": "no offsets are committed to Kafka",
    "auto.offset.reset": "a missing offset is a gap, never skipped",
    "enable.partition.eof": "the end of a partition must be seen",
    "check.crcs": "checksums are always checked",
    "isolation.level": "no Kafka transactions are used",
    "allow.auto.create.topics": "topics are made with the settings that the log needs",
    "delivery.timeout.ms": "use timeout_s",
    "message.timeout.ms": "use timeout_s",
    "oauth_cb": "name the function in credential_provider, which each process imports",
}
"""Client options that may not be given, and why."""

CLIENT = re.compile(
    r"client\.(id|rack|dns\.lookup)"
    r"|security\.protocol|enable\.ssl\.certificate\.verification"
    r"|ssl\.(cipher\.suites|curves\.list|sigalgs\.list|endpoint\.identification\.algorithm)"
    r"|ssl\.(key|certificate|ca|crl|keystore)\.(location|password|pem|certificate\.stores)"
    r"|https\.ca\.(location|pem)|sasl\.(mechanisms?|username|password)"
    r"|sasl\.kerberos\.(service\.name|principal|keytab|min\.time\.before\.relogin)"
    r"|sasl\.oauthbearer\.[a-z.]+|enable\.sasl\.oauthbearer\.unsecure\.jwt"
    r"|(socket|reconnect|retry|broker|metadata|topic\.metadata|api\.version)\.[a-z.]+"
    r"|connections\.max\.idle\.ms|request\.timeout\.ms|max\.in\.flight[a-z.]*"
    r"|(receive\.)?message\.(max|copy\.max)\.bytes|message\.send\.max\.retries"
    r"|statistics\.interval\.ms|log\.(connection\.close|thread\.name)|debug|log_level|retries"
    r"|enable\.(sparse\.connections|random\.seed|metrics\.push)"
    r"|(compression|linger|batch|queue\.buffering|queuing|sticky)\.[a-z.]+"
    r"|(fetch|queued|session|heartbeat)\.[a-z.]+|max\.(poll|partition)\.[a-z.]+"
)
"""The client's options that are passed on: no library to load, no command, no callback."""
REQUEST_BYTES = RECORD_BYTES_MAX + 64 * 1024
"""The most bytes of a request or an answer with one message."""
LEAST = {"queue.buffering.max.kbytes": REQUEST_BYTES // 1024, "receive.message.max.bytes": REQUEST_BYTES}
"""Options with which a client could never send, or receive, the largest message."""
IN_A_COMMAND = ("sasl.kerberos.principal", "sasl.kerberos.keytab", "sasl.kerberos.service.name")
"""librdkafka writes these into the command line of ``kinit``, which a shell runs."""
PLAIN = re.compile(r"[A-Za-z0-9_.@/:+-]+")

FOR_PRODUCERS = re.compile(
    r"(compression|linger|batch|queue\.buffering|queuing|message\.(?!copy)|sticky|retr|request\.timeout|max\.in\.flight|partitioner)"
)
FOR_CONSUMERS = re.compile(
    r"(fetch|queued|session|heartbeat|max\.(poll|partition)|group|partition\.assign|client\.rack)"
)
VALUE_MIN = 4
"""The fewest characters of a value that is hidden in a text about its option."""
SECRET = re.compile(r"(?i)pass|secret|token|\.key|\.pem|jaas|keystore|oauthbearer|credential")
IS_LOGIN = re.compile(r"sasl\.(username|password)|.*sasl\.oauthbearer\.")
BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?")


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The settings of one log. ``repr`` shows no password (T48).

    ``timeout_s`` bounds every call: the longest time without anything from the brokers.
    ``replication_factor`` None: one replica per broker, at most 3. ``min_insync_replicas`` None: 2,
    or 1 where there is only one replica. These two and ``partitions`` apply when topics are
    created.
    """

    brokers: str
    topic_prefix: str = "tidegate"
    partitions: int = PARTITIONS
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    timeout_s: float = TIMEOUT_S
    client: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    credential_provider: str | None = None

    @property
    def provider(self) -> Provider | None:
        """The function that gives the login, if it was given by its name."""
        name = self.credential_provider
        return None if name is None else provider_of(name, "the kafka log")

    @property
    def takes_tokens(self) -> bool:
        """Whether the brokers take a token that ends, by a mechanism that asks for the next one."""
        return mechanism_of(self.client) == "OAUTHBEARER"

    @property
    def request_s(self) -> float:
        """The time after which a request is sent again, or the refusal that caused its silence is noticed."""
        return min(self.timeout_s, REQUEST_S)

    def grant(self, right: str, topic: str) -> str:
        """Return the command that grants this user a right on a topic."""
        principal = f"User:{self.client.get('sasl.username') or '<this user>'}"
        return (
            f"`kafka-acls --bootstrap-server {self.brokers} --add --allow-principal {principal}"
            f" --operation {right} --topic {topic}`"
        )

    # -- configurations by kind of client -------------------------------------------------------------

    def for_admin(self) -> dict[str, Any]:
        """Return the configuration of an admin client."""
        return self._all(without=(FOR_PRODUCERS, FOR_CONSUMERS))

    def for_producer(self) -> dict[str, Any]:
        """Return the configuration of a producer: idempotent, acked by all, bounded in time and memory."""
        timeout_ms = int(self.timeout_s * 1000)
        defaults = {
            "linger.ms": 0,  # a caller waits for each message
            "queue.buffering.max.kbytes": 32 * 1024,
            # A lost reply must be noticed, and the request sent again, well before the deadline.
            "request.timeout.ms": max(timeout_ms // 3, 1000),
            "retry.backoff.ms": 50,
        }
        fixed = {
            "acks": "all",
            "enable.idempotence": True,
            "delivery.timeout.ms": timeout_ms,
            "message.max.bytes": RECORD_BYTES_MAX + 1024,
            "allow.auto.create.topics": False,
            "topic.metadata.propagation.max.ms": 1000,
        }
        return defaults | self._all(without=(FOR_CONSUMERS,)) | fixed

    def for_consumer(self, topic: str = "") -> dict[str, Any]:
        """Return the configuration of a manually assigned consumer, which reports ends of partitions."""
        defaults = {
            # An answer at once, also at the end: either the message is there, or the partition ends.
            # But a reader that processes the change-log has prefetched the rest and keeps polling:
            # without a wait that takes a whole core.
            "fetch.wait.max.ms": AT_END_MS if topic.endswith(CHANGELOG) else 0,
            # How soon a full queue is checked again. With the client's default of one second, a reader
            # that processes each frame empties the queue at once, and then waits for the rest of that
            # second.
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "queued.max.messages.kbytes": 16 * 1024,
        }
        fixed = {
            "group.id": "tidegate",  # the client requires one; nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_uncommitted",
            "allow.auto.create.topics": False,
        }
        return defaults | self._all(without=(FOR_PRODUCERS,)) | fixed

    def _all(self, without: tuple[re.Pattern[str], ...]) -> dict[str, Any]:
        given = {
            name: value
            for name, value in self.client.items()
            if not any(pattern.match(name) for pattern in without)
        }
        timeout_ms = int(self.timeout_s * 1000)
        common = {
            "client.id": "tidegate",
            "socket.timeout.ms": max(timeout_ms // 3, 1000),
            "socket.connection.setup.timeout.ms": max(timeout_ms // 3, 1000),
            "reconnect.backoff.max.ms": 1000,
            "log_level": 5,
        }
        return common | given | {"bootstrap.servers": self.brokers}

    def unfit(self, text: str) -> str:
        """Return a client's text about an option that does not fit: with a name, and without a value."""
        values = [
            value for value in self.client.values() if isinstance(value, str) and len(value) >= VALUE_MIN
        ]
        said = hide_forms(self.hide(text), sorted(values, key=len, reverse=True))
        is_named = any(name in said for name in self.client)
        return said if is_named else f"{said} (one of {', '.join(self.client)})"

    def hide(self, text: str) -> str:
        """Return the text without any secret of the client's options."""
        given = [str(value) for name, value in self.client.items() if SECRET.search(name)]
        return hide(text, given + (self.provider.secrets if self.provider else []))


def settings_of(url: str, options: Mapping[str, Any]) -> KafkaSettings:
    """Return the settings in a URL ``kafka://broker1:9092,broker2:9092`` and options.

    Raises: ConfigError when the URL or an option does not fit; the message shows no secret.
    """
    brokers = url.removeprefix("kafka://").removesuffix("/")
    if not brokers or not all(BROKER.fullmatch(broker) for broker in brokers.split(",")):
        hint = "; user and password go into the options sasl.username and sasl.password" * ("@" in brokers)
        msg = f"{brief(redact(url))} is not a log's URL: write the brokers as in kafka://host1:9092,host2:9092{hint}"
        raise ConfigError(msg)
    unknown = sorted(name for name in options if name not in (*OURS, *FIXED) and not CLIENT.fullmatch(name))
    if unknown:
        msg = (
            f"unknown option {', '.join(unknown)} for a kafka log; the options are {', '.join(OURS)}, and"
            " librdkafka's for connections, logins, TLS, producers and consumers; those that load a library"
            " or run a command are none of them"
        )
        raise ConfigError(msg)
    for name in options:
        if name in FIXED:
            msg = f"option {name} of a kafka log cannot be given: {FIXED[name]}"
            raise ConfigError(msg)
    options = checked(options, dict.fromkeys(options, NUMBER_OR_TEXT) | FORMS, "a kafka log")
    ours = {name: options[name] for name in OURS if name in options}
    client = {name: value for name, value in options.items() if name not in OURS}
    _check(ours, client)
    return KafkaSettings(brokers, client=client, **ours)


def _check(ours: Mapping[str, Any], client: Mapping[str, Any]) -> None:
    for name, value in client.items():
        if name in LEAST and not (str(value).isdigit() and int(value) >= LEAST[name]):
            msg = (
                f"option {name} of a kafka log must be at least {LEAST[name]:,}, for a record or a piece of a"
                " frame would never fit: raise it, or leave it out"
            )
            raise ConfigError(msg)
        if name in IN_A_COMMAND and not PLAIN.fullmatch(str(value)):
            msg = f"option {name} of a kafka log has other characters than A-Z a-z 0-9 _ . @ / : + -"
            raise ConfigError(msg)
    _check_sasl(client)
    if ours.get("credential_provider") is not None:
        provider_of(ours["credential_provider"], "a kafka log")
        _check_provider(client)


def mechanism_of(client: Mapping[str, Any]) -> str:
    """Return the SASL mechanism in capitals; ``""``: none."""
    return str(client.get("sasl.mechanism", client.get("sasl.mechanisms", ""))).upper()


def _check_provider(client: Mapping[str, Any]) -> None:
    """Refuse options beside a ``credential_provider`` that would not use it."""
    mechanism = mechanism_of(client)
    if mechanism not in {"OAUTHBEARER", "PLAIN"} and not mechanism.startswith("SCRAM-"):
        msg = (
            "there is a credential_provider, but no login that takes it: set security.protocol to SASL_SSL,"
            " and sasl.mechanism to OAUTHBEARER, SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN, as brokers have it"
        )
        raise ConfigError(msg)
    logins = [name for name in client if IS_LOGIN.match(name)]
    if logins:
        msg = f"there are both credential_provider and {', '.join(logins)}: leave one of them out"
        raise ConfigError(msg)


def _check_sasl(client: Mapping[str, Any]) -> None:
    """Refuse SASL options for which librdkafka's own message would be missing or unclear."""
    protocol = str(client.get("security.protocol", "plaintext"))
    logs_in = protocol.lower().startswith("sasl")
    if not logs_in and (sasl := [name for name in client if name.startswith("sasl.")]):
        msg = (
            f"there are sasl options ({', '.join(sasl)}), but with this security.protocol they count for"
            " nothing: set it to SASL_SSL, or to SASL_PLAINTEXT where the network is trusted"
        )
        raise ConfigError(msg)
    if logs_in and not {"sasl.mechanism", "sasl.mechanisms"} & client.keys():
        msg = (
            "security.protocol asks for a login without a sasl.mechanism, which would mean Kerberos: set"
            " it to SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER, as the brokers have it, or to GSSAPI"
        )
        raise ConfigError(msg)
