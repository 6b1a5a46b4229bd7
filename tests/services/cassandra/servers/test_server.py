"""The servers that other tests rely on: they keep what they acknowledged, and they end."""

import socket
from pathlib import Path

import pytest

from services.support import jars
from services.support.cassandra import config as cassandra_config
from services.support.cassandra import jars as cassandra_jars
from services.support.cassandra.config import Ports
from services.support.cassandra.server import CassandraServer
from services.support.servers import PortTakenError, free_ports

pytestmark = pytest.mark.timeout(600)  # as conftest.py has it for those that use its fixtures

HERE = Path(__file__).parents[2]
VERSION = "SELECT release_version FROM system.local"


# -- one node -------------------------------------------------------------------------------------------


def test_it_answers(cassandra):
    assert cassandra.ask(VERSION) == [(cassandra_jars.VERSION,)]
    assert cassandra.url == f"cassandra://127.0.0.1:{cassandra.port}/tidegate"
    told = cassandra.ask("SELECT data_center, rack FROM system.local")
    assert told == [(cassandra_config.DATACENTER, cassandra_config.RACK)]


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
def test_every_node_is_at_the_same_port(cassandra_cluster):
    port = cassandra_cluster.port
    hosts = ",".join(f"127.0.0.{n}:{port}" for n in (1, 2, 3))
    assert cassandra_cluster.url == f"cassandra://{hosts}/tidegate"
    assert cassandra_cluster.ask(VERSION) == [(cassandra_jars.VERSION,)]
