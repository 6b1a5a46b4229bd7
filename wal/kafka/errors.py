"""The errors of Kafka clients: the refusals, those after which a request may be repeated, a missing token."""

from __future__ import annotations

from confluent_kafka import KafkaError

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

DENIED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})

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
