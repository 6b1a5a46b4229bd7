"""Incidents of logins: a certificate expires, or a password is changed at the server."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from game_day.incident import OPERATOR, Incident
from game_day.incidents.redis_servers import redis
from game_day.incidents.replaced_servers import OneNode
from game_day.rig import Rig
from services.support.certificates import make_expired
from services.support.kafka.server import KafkaCluster
from services.support.redis.server import RedisServer

USER, FIRST, SECOND = "app", "first-password", "second-password"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": USER,
    "sasl.password": FIRST,
}


class Certified(RedisServer):
    """A Redis with TLS, whose certificate can expire."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, tls=True)

    @property
    def options(self) -> dict[str, str]:
        """The options of clients."""
        return {"ssl_ca_certs": self.tls_settings["ssl_ca_certs"]}


def certificate_expired(rig: Rig) -> None:
    """The server's certificate is over its time; the operator puts a new one there."""
    make_expired(rig.store.certificates, "server")
    rig.actions[r"certificate"] = lambda: _shown(rig, "server")
    _shown(rig, "expired-server")


def _shown(rig: Rig, name: str) -> None:
    """Let Redis show a certificate, by a client that accepts an expired one, and close all connections."""
    files = rig.store.certificates
    settings = ("tls-key-file", files / f"{name}.key", "tls-cert-file", files / f"{name}.pem")
    rig.store.ask("CONFIG", "SET", *map(str, settings), ssl_cert_reqs="none")
    rig.store.ask("CLIENT", "KILL", "TYPE", "normal", ssl_cert_reqs="none")


def secured_kafka(folder: Path) -> KafkaCluster:
    return KafkaCluster(folder, sasl={USER: FIRST})


def kafka_password_rotated(rig: Rig) -> None:
    """Change the password of SCRAM, and restart the broker, which ends all connections."""

    def deploy() -> None:
        rig.job.wal_options = {**rig.job.wal_options, "sasl.password": SECOND}
        rig.restart()

    rig.actions[r"password|login|sasl\.\*"] = deploy
    admin = AdminClient(rig.log.client_settings)
    changed = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), SECOND.encode()
    )
    for done in admin.alter_user_scram_credentials([changed]).values():
        done.result()
    rig.log.kill(0)
    rig.log.restart(0)


class WithLogin(OneNode):
    """A Cassandra node that lets in nobody without a password."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, users={USER: FIRST})


def cassandra_password_rotated(rig: Rig) -> None:
    """Change the password, and restart the node, which ends all connections."""

    def deploy() -> None:
        rig.job.store = rig.job.store.replace(FIRST, SECOND)
        rig.restart()
        rig.readers.reconnect()

    rig.actions[r"password|login"] = deploy
    rig.store.ask(f"ALTER ROLE {USER} WITH PASSWORD = '{SECOND}'")
    rig.store.kill()
    rig.store.start()


INCIDENTS = [
    Incident(
        "certificate-expired",
        "Redis: the server's certificate expires",
        certificate_expired,
        Certified,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "kafka-password-rotated",
        "Kafka: the password of the query (SASL) is changed",
        kafka_password_rotated,
        redis,
        secured_kafka,
        actor=OPERATOR,
        alert="TidegateLogUnreachable",
        job={"wal_options": LOGIN},
    ),
    Incident(
        "cassandra-password-rotated",
        "Cassandra: the password of query and readers is changed",
        cassandra_password_rotated,
        WithLogin,
        actor=OPERATOR,
        alert="TidegateStoreUnreachable",
    ),
]
