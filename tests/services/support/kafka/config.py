"""The configuration of one broker of the tests, as the lines of its ``server.properties``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

STORE_PASSWORD = "for-tests"  # of a key that lives for a test

# Small, and quick to notice: a dead broker, an empty topic, data that is to be deleted.
QUICK = {
    "auto.create.topics.enable": "true",  # as in docker-compose.yml, and where nobody has set it
    "delete.topic.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    # As in docker-compose.yml: a single large change may be up to 16 MiB.
    "message.max.bytes": "20971520",
    "replica.fetch.max.bytes": "20971520",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "200",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.wait.max.ms": "200",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1500",
}

# After this time a killed broker loses the lead of its partitions, and it is let in again. With less, a busy
# machine's broker that lives would lose it too. One that is alone is busy alone.
OF_SEVERAL = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "3000"}
ALONE = {"broker.heartbeat.interval.ms": "250", "broker.session.timeout.ms": "1500"}


class Ports(NamedTuple):
    """Of one broker. At ``proxied_address`` nobody listens but the proxy that a test brings."""

    client: int
    inside: int
    controller: int
    proxied: int
    proxied_address: int


def security_protocol(*, sasl: bool, tls: bool) -> str:
    return {
        (False, False): "PLAINTEXT",
        (False, True): "SSL",
        (True, False): "SASL_PLAINTEXT",
        (True, True): "SASL_SSL",
    }[sasl, tls]


def properties(
    n: int,
    ports: Mapping[int, Ports],
    addresses: Sequence[str],
    folder: Path,
    sasl: Mapping[str, str],
    *,
    proxied: bool,
    tls: bool,
) -> dict[str, str]:
    """Of broker ``n``; ``ports`` are all brokers'. What is told of logins and TLS is for clients only."""
    mine, copies = ports[n], str(min(3, len(ports)))  # copies of Kafka's own topics
    listeners = {"CLIENT": mine.client, "INSIDE": mine.inside, "CONTROLLER": mine.controller}
    advertised = {"CLIENT": mine.client, "INSIDE": mine.inside}
    if proxied:
        listeners["PROXIED"], advertised["PROXIED"] = mine.proxied, mine.proxied_address
    protocols = dict.fromkeys(("INSIDE", "CONTROLLER"), "PLAINTEXT")
    protocols |= dict.fromkeys(("CLIENT", "PROXIED"), security_protocol(sasl=bool(sasl), tls=tls))
    found = QUICK | (ALONE if len(ports) == 1 else OF_SEVERAL)
    found |= {
        "process.roles": "broker,controller",
        "node.id": str(n),
        "controller.quorum.voters": ",".join(f"{m}@{addresses[m]}:{p.controller}" for m, p in ports.items()),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INSIDE",
        "listeners": ",".join(f"{name}://{addresses[n]}:{port}" for name, port in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{addresses[n]}:{port}" for name, port in advertised.items()
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{what}" for name, what in protocols.items()),
        "log.dirs": str(folder / f"data-{n}"),
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "1",
    }
    if tls:
        found |= {
            "ssl.keystore.location": str(folder / "keys.p12"),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
        }
    return found | (_logins(sasl) if sasl else {})


def _logins(sasl: Mapping[str, str]) -> dict[str, str]:
    """PLAIN's users stand here, SCRAM's in the metadata (``format --add-scram``)."""
    users = " ".join(f'user_{user}="{password}"' for user, password in sasl.items())
    modules = "org.apache.kafka.common.security"
    logins: dict[str, str] = {}
    for listener in ("client", "proxied"):
        of = f"listener.name.{listener}"
        logins |= {
            f"{of}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"{of}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {users};",
            f"{of}.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        }
    return logins


def make_certificate(keytool: str, keys: Path, certificate: Path) -> None:
    """A key for 127.0.0.1 and localhost, and its self-signed certificate for clients to trust."""
    store = ["-keystore", str(keys), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD, "-alias", "broker"]
    pair = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-validity", "2"]
    for command in (
        [*pair, "-ext", "san=ip:127.0.0.1,dns:localhost", *store],
        ["-exportcert", "-rfc", "-file", str(certificate), *store],
    ):
        subprocess.run([keytool, *command], check=True, capture_output=True)
