"""How one Cassandra node of the tests is set up: its ``cassandra.yaml`` and the JVM that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from services.support.cassandra.jars import cassandra_jars
from services.support.jars import java

LOGBACK = Path(__file__).with_name("logback.xml")
ADMIN = ("cassandra", "cassandra")  # with logins: the user that Cassandra makes itself, who may do all
DATACENTER, RACK = "datacenter1", "rack1"  # SimpleSnitch's, and docker-compose.yml's

# As in docker-compose.yml: a write is on disk before its reply. With Cassandra's default ("periodic") a node
# that is killed loses what it acknowledged in its last 100 ms: measured, 7 and 30 of 300 rows.
COMMON = {
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "num_tokens": 4,
    "commitlog_sync": "batch",
    "auto_snapshot": False,
}

# Measured with 2 cores that others use too: 6.3 s until a node answers and 440 MB; 11 s and 660 MB with the
# JVM's own choice of collector and compiler.
SMALL_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# For whoever measures: the JVM's own compilers and collector, as a node is run in earnest, and room
# for memtables.
LARGE_JVM = ("-Xms3g", "-Xmx3g")

# From here to OPENED: Cassandra's own jvm-server.options and jvm17-server.options, less their collector.
AS_DELIVERED = (
    "-ea",
    "-da:net.openhft...",
    "-Xss256k",
    "-XX:+PerfDisableSharedMem",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.useCacheForAllThreads=true",
    "-Dio.netty.allocator.maxOrder=11",
)
EXPORTED = (
    "java.base/jdk.internal.misc",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
OPENED = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)

# Nodes on one machine have no slow network to wait for.
HURRY = (
    "-Dcassandra.ring_delay_ms=100",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.shutdown_announce_in_ms=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
)


class Ports(NamedTuple):
    """The same on every node of a cluster: what tells nodes apart is their address."""

    client: int
    storage: int


def configuration(
    name: str,
    address: str,
    ports: Ports,
    seeds: Sequence[str],
    settings: Mapping[str, Any],
    *,
    logins: bool = False,
    tls: Path | None = None,
    mutual: bool = False,
) -> str:
    """The text of one ``cassandra.yaml``; ``name`` is the cluster's. tls: the folder of the certificates;
    mutual: clients have to show one too."""
    seed_provider = {
        "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
        "parameters": [{"seeds": ",".join(seeds)}],
    }
    given: dict[str, Any] = {
        "cluster_name": name,
        "listen_address": address,
        "rpc_address": address,
        "native_transport_port": ports.client,
        "storage_port": ports.storage,
        "seed_provider": [seed_provider],
    }
    if logins:
        given["authenticator"] = "PasswordAuthenticator"
    if tls:
        given["client_encryption_options"] = _encryption(tls, mutual=mutual)
    return yaml.safe_dump(COMMON | given | dict(settings))


def _encryption(folder: Path, *, mutual: bool) -> dict[str, Any]:
    keys = folder / "server-all.pem"
    keys.write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return {
        "enabled": True,
        "optional": False,
        "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
        "keystore": str(keys),
        "truststore": str(folder / "ca.pem"),
        "require_client_auth": mutual,
    }


def command(configuration_file: Path, data_folder: Path, jvm: Sequence[str]) -> list[str]:
    """What starts a node. All that it writes is in ``data_folder``, unpacked libraries too."""
    modules = [word for of in EXPORTED for word in ("--add-exports", f"{of}=ALL-UNNAMED")]
    modules += [word for of in OPENED for word in ("--add-opens", f"{of}=ALL-UNNAMED")]
    places = {
        "cassandra.config": configuration_file.as_uri(),
        "cassandra.storagedir": data_folder,
        "java.io.tmpdir": data_folder / "tmp",
        "logback.configurationFile": LOGBACK.as_uri(),
        "cassandra-foreground": "yes",  # else it closes its output as soon as it is up, and says no more
    }
    options = [*jvm, *AS_DELIVERED, *modules, *HURRY, *(f"-D{name}={at}" for name, at in places.items())]
    return [java(), *options, "-cp", f"{cassandra_jars()}/*", "org.apache.cassandra.service.CassandraDaemon"]
