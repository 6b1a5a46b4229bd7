"""The servers that other tests rely on: they keep what they acknowledged, and they end."""

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, Unauthorized
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable
from cassandra.query import SimpleStatement

from services.support import jars
from services.support.cassandra import config as cassandra_config
from services.support.cassandra import jars as cassandra_jars
from services.support.cassandra.config import Ports
from services.support.cassandra.server import CassandraServer
from services.support.servers import PortTakenError, free_ports
from support.wait import wait_until

pytestmark = pytest.mark.timeout(600)  # as conftest.py has it for those that use its fixtures

HERE = Path(__file__).parents[2]
VERSION = "SELECT release_version FROM system.local"
KEYSPACE = "CREATE KEYSPACE {} WITH replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': {}}}"


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- one node -------------------------------------------------------------------------------------------


def test_it_answers(cassandra):
    assert cassandra.ask(VERSION) == [(cassandra_jars.VERSION,)]
    assert cassandra.url == f"cassandra://127.0.0.1:{cassandra.port}/tidegate"
    told = cassandra.ask("SELECT data_center, rack FROM system.local")
    assert told == [(cassandra_config.DATACENTER, cassandra_config.RACK)]


@pytest.mark.slow
def test_killed_and_started_again_paused_and_ended(private_cassandra):
    server = private_cassandra()
    server.ask(KEYSPACE.format("kept", 1))
    server.ask("CREATE TABLE kept.rows (key int PRIMARY KEY, value int)")
    with server.session("kept") as session:
        insert = session.prepare("INSERT INTO rows (key, value) VALUES (?, ?)")
        for key in range(100):
            session.execute(insert, (key, -key))
        first, port = server.pid, server.port
        server.kill()  # just after the last of them was acknowledged
    assert gone(first)
    server.restart()
    assert server.port == port
    found = server.ask("SELECT key, value FROM kept.rows")
    assert sorted(found) == [(key, -key) for key in range(100)]

    with server.session() as session:
        server.pause()
        with pytest.raises(OperationTimedOut):
            session.execute(VERSION, timeout=0.5)
        server.resume()
        wait_until(server.answers, "it answers again")

    server.ask("INSERT INTO kept.rows (key, value) VALUES (%s, %s)", 100, -100)
    last = server.pid
    server.stop()
    assert gone(last)
    assert not server.alive()
    with pytest.raises(NoHostAvailable):
        server.ask(VERSION)
    assert not list((server.folder / "cassandra" / "commitlog").glob("*.tmp"))
    assert {path.suffix for path in server.kept()} == {".log", ".yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("taken", Ports._fields)
def test_a_port_that_was_taken_is_told_apart(tmp_path, taken):
    server = CassandraServer(tmp_path)
    with socket.create_server((server.address, 0)) as other:
        free = Ports(*free_ports(len(Ports._fields)))
        server.take_ports(free._replace(**{taken: other.getsockname()[1]}))
        with pytest.raises(PortTakenError):
            server.start()
    assert not server.alive()


@pytest.mark.slow
def test_a_node_that_ends_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="no_such_setting"):
        CassandraServer(tmp_path, settings={"no_such_setting": 1}).start()


def test_every_way_gives_the_same_version():
    assert f"<version>{cassandra_jars.VERSION}</version>" in cassandra_jars.POM.read_text()
    series = cassandra_jars.VERSION.rpartition(".")[0]
    assert f"image: cassandra:{series}\n" in (jars.ROOT / "docker-compose.yml").read_text()


# -- three nodes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_quorum_outlives_a_node_and_the_cluster_heals(cassandra_cluster):
    try:
        one, two, three = cassandra_cluster.nodes
        one.ask(KEYSPACE.format("copied", 3))
        one.ask("CREATE TABLE copied.rows (key int PRIMARY KEY, value int)")
        write = "INSERT INTO copied.rows (key, value) VALUES (%s, %s)"
        quorum, every = (
            SimpleStatement(write, consistency_level=level)
            for level in (ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.ALL)
        )
        one.ask(every, 1, 1)
        cassandra_cluster.kill(2)
        assert cassandra_cluster.running() == [one, two]
        two.ask(quorum, 2, 2)
        cassandra_cluster.heal()
        three.ask(every, 3, 3)
        read = SimpleStatement("SELECT key FROM copied.rows", consistency_level=ConsistencyLevel.ALL)
        assert sorted(three.ask(read)) == [(1,), (2,), (3,)]
        cassandra_cluster.pause(0)
        assert cassandra_cluster.running() == [two, three]
        two.ask(quorum, 4, 4)
    finally:
        cassandra_cluster.heal()


@pytest.mark.slow
def test_every_node_is_at_the_same_port(cassandra_cluster):
    port = cassandra_cluster.port
    hosts = ",".join(f"127.0.0.{n}:{port}" for n in (1, 2, 3))
    assert cassandra_cluster.url == f"cassandra://{hosts}/tidegate"
    assert cassandra_cluster.ask(VERSION) == [(cassandra_jars.VERSION,)]


# -- for commands ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_command_gets_the_url_and_the_node_is_gone_after_it(tmp_path):
    """``run.py`` ends what it starts."""
    said = subprocess.run(
        [sys.executable, HERE / "run.py", "cassandra", "--", "echo", "{cassandra}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    address, _, keyspace = said.strip().removeprefix("cassandra://").partition("/")
    assert keyspace == "tidegate"
    port = int(address.rpartition(":")[2])
    listening = {
        each.laddr.port for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN
    }
    assert port not in listening


# -- who gets in ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_logins_and_tls(private_cassandra):
    users = {"ann": "Pa$$-w0rd/", "bob": "b"}
    server = private_cassandra(users=users, mutual=True, settings={"authorizer": "CassandraAuthorizer"})
    assert server.url == f"cassandra://ann:Pa%24%24-w0rd%2F@127.0.0.1:{server.port}/tidegate"
    server.ask(KEYSPACE.format("anns", 1))
    server.ask("GRANT ALL ON KEYSPACE anns TO ann")
    with server.session(user="ann") as session:
        session.execute("CREATE TABLE anns.rows (key int PRIMARY KEY)")
    with server.session(user="bob") as session, pytest.raises(Unauthorized):
        session.execute("SELECT * FROM anns.rows")

    def enter(password, **settings):
        client = Cluster(
            [server.address],
            port=server.port,
            auth_provider=PlainTextAuthProvider("ann", password),
            protocol_version=4,
            connect_timeout=5,
            **settings,
        )
        try:
            client.connect()
        finally:
            client.shutdown()

    files = server.tls_settings
    anonymous, known = (ssl.create_default_context(cafile=files["ssl_ca_certs"]) for _ in range(2))
    known.load_cert_chain(files["ssl_certfile"], files["ssl_keyfile"])
    enter(users["ann"], ssl_context=known)
    with pytest.raises(NoHostAvailable, match="password are incorrect"):
        enter("wrong", ssl_context=known)
    with pytest.raises(NoHostAvailable, match="certificate verify failed"):
        enter(users["ann"], ssl_context=ssl.create_default_context())
    for refused in (anonymous, None):  # without a certificate, without TLS
        with pytest.raises(NoHostAvailable):
            enter(users["ann"], ssl_context=refused)
