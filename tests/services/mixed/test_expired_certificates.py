"""Certificates whose time is over, the server's and the client's: refused, and told what to renew.

With TLS 1.3 a server that refuses a client's certificate only ends the connection, now and then before it has
said why; so what the client says does not hang on that.
"""

import contextlib
import shutil
import subprocess

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

import tidegate
from services.support.cassandra.server import CassandraServer
from services.support.certificates import make_certificates, make_expired
from services.support.jars import java
from services.support.kafka.config import STORE_PASSWORD
from services.support.kafka.server import KafkaCluster
from services.support.redis.server import RedisServer
from tidegate.base.urls import end_of, over_its_time
from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

TIMEOUT_S = 4.0
SERVERS = "the server's certificate, or its authority's, has expired: renew it there"
OWN = r"this client's certificate \S+expired-client.pem has expired on \d{4}-.* UTC: renew it"


@pytest.fixture
def certificates(tmp_path):
    """The folder ``tls`` of a server, with certificates that are over their time besides."""
    folder = tmp_path / "server" / "tls"
    make_certificates(folder)
    for name in ("server", "client"):
        make_expired(folder, name)
    return folder


def with_the_expired_client(settings, folder):
    of = {"ssl_certfile": folder / "expired-client.pem", "ssl_keyfile": folder / "expired-client.key"}
    return {**settings, **{name: str(path) for name, path in of.items()}}


def refused(url, options, words):
    options = {**options, "timeout_s": TIMEOUT_S}
    with contextlib.closing(open_store(url, "n", options)) as store:
        for call in (store.pointer, lambda: store.claim(1, "writer")):
            with pytest.raises(ConfigError, match=words):
                call()
    with pytest.raises(ConfigError, match=words), tidegate.connect(url, "n", options) as gate:
        gate.version()


def test_what_a_lost_connection_may_mean(certificates):
    expired, right = (str(certificates / f"{name}.pem") for name in ("expired-client", "client"))
    assert end_of(expired) < end_of(right)
    assert end_of("/nowhere.pem") is end_of(str(certificates / "client.key")) is None
    lost = "EOF occurred in violation of protocol"
    assert "renew it" in over_its_time(lost, expired)
    assert over_its_time("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired", None)
    assert over_its_time(lost, right) == over_its_time(lost, None) == over_its_time("refused", expired) == ""


@pytest.mark.slow  # two servers, and the time-outs of what is refused
def test_redis(certificates):
    settings = {"tls-auth-clients": "yes"}
    with RedisServer(certificates.parent, tls=True, settings=settings) as server:
        refused(server.url, with_the_expired_client(server.tls_settings, certificates), OWN)
        pair = [str(certificates / f"expired-server.{kind}") for kind in ("pem", "key")]
        server.ask("CONFIG", "SET", "tls-cert-file", pair[0], "tls-key-file", pair[1])
        refused(server.url, server.tls_settings, SERVERS)


@pytest.mark.slow
def test_cassandra(certificates):
    with CassandraServer(certificates.parent, mutual=True) as server:
        known = {**server.tls_settings, "ssl_check_hostname": False}
        refused(server.url, with_the_expired_client(known, certificates), OWN)
        server.end()
        for kind in ("pem", "key"):
            shutil.copy(certificates / f"expired-server.{kind}", certificates / f"server.{kind}")
        server.start()
        refused(server.url, known, SERVERS)


@pytest.mark.slow
def test_kafka(certificates):
    folder = certificates.parent
    truststore = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates / "ca.pem")}
    settings = {"ssl.client.auth": "requested", **truststore}
    with KafkaCluster(folder, tls=True, settings=settings) as brokers:
        given = {**brokers.client_settings, "timeout_s": TIMEOUT_S}
        del given["bootstrap.servers"]

        def decisions(**more):
            with contextlib.closing(open_log(brokers.url, "n", given | more)) as log:
                return list(log.decisions())

        def own(name):
            of = {"certificate": f"{name}.pem", "key": f"{name}.key"}
            return {f"ssl.{what}.location": str(certificates / file) for what, file in of.items()}

        assert decisions(**own("client")) == []
        with pytest.raises(ConfigError, match=OWN):
            decisions(**own("expired-client"))
        shows_an_expired_one(brokers, folder)
        with pytest.raises(ConfigError, match=r"the brokers' certificate has expired .*renew it"):
            decisions(**{"ssl.ca.location": str(folder / "expired-ca.pem")})


def shows_an_expired_one(brokers, folder):
    """From now on the broker's certificate is one that is over its time."""
    keys = folder / "expired.p12"
    store = ["-keystore", str(keys), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD, "-alias", "broker"]
    pair = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-startdate", "-3d", "-validity", "2"]
    for command in (
        [*pair, "-ext", "san=ip:127.0.0.1,dns:localhost", *store],
        ["-exportcert", "-rfc", "-file", str(folder / "expired-ca.pem"), *store],
    ):
        subprocess.run([java("keytool"), *command], check=True, capture_output=True)
    told = {"keystore.location": str(keys), "keystore.type": "PKCS12"}
    told |= {"keystore.password": STORE_PASSWORD, "key.password": STORE_PASSWORD}
    entries = [
        ConfigEntry(f"listener.name.client.ssl.{name}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in told.items()
    ]
    resource = ConfigResource("BROKER", "0", incremental_configs=entries)
    admin = AdminClient(brokers.client_settings)  # held: one that is freed answers nothing
    admin.incremental_alter_configs([resource])[resource].result(30)
