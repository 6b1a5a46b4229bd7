"""What the proxy knows of the protocol; what it does with frames is proven with Kafka's (`kafka/servers`)."""

import contextlib
import socket
import uuid

import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.policies import ConstantReconnectionPolicy, FallthroughRetryPolicy, RoundRobinPolicy
from cassandra.query import BatchStatement, BatchType

from services.support.cassandra.proxy import CassandraProxy
from services.support.cassandra.wire import HEAD, REPLY, CassandraWire, Op
from services.support.proxy.relay import HostileFrameError
from support.wait import wait_until

pytestmark = pytest.mark.slow  # a tool of these tests, which they would miss soon enough
DEADLINE_S = 30.0
LOST = (NoHostAvailable, ConnectionException)  # the request was sent once, and its connection has gone
INSERT = "INSERT INTO counted (key, value) VALUES (?, ?)"
UPDATE = "UPDATE counted SET value = ? WHERE key = ?"
SELECT = "SELECT value FROM counted WHERE key = ?"


@pytest.fixture(scope="session")
def keyspace(cassandra):
    name = f"k{uuid.uuid4().hex}"
    copies = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    cassandra.ask(f"CREATE KEYSPACE {name} WITH replication = {copies}")
    cassandra.ask(f"CREATE TABLE {name}.counted (key int PRIMARY KEY, value blob)")
    return name


@pytest.fixture
def connect():
    """Makes clients that come by a proxy and try once."""
    with contextlib.ExitStack() as opened:

        def make(proxy, keyspace=None, timeout_s=DEADLINE_S):
            profile = ExecutionProfile(
                RoundRobinPolicy(), retry_policy=FallthroughRetryPolicy(), request_timeout=timeout_s
            )
            client = Cluster(
                [address.rpartition(":")[0] for address in proxy.addresses],
                port=proxy.plain.addresses[0][1],
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                reconnection_policy=ConstantReconnectionPolicy(0.1, max_attempts=None),
                protocol_version=4,
                connect_timeout=10.0,
            )
            opened.callback(client.shutdown)
            return client.connect(keyspace)

        yield make


@pytest.fixture
def session(connect, cassandra_proxy, keyspace):
    return connect(cassandra_proxy, keyspace)


@pytest.fixture
def value(cassandra, keyspace):
    """What the node itself has for a key."""

    def asked(key):
        rows = cassandra.ask(f"SELECT value FROM {keyspace}.counted WHERE key = %s", key)
        return rows[0].value if rows else None

    return asked


def again(session):
    """The driver has a connection again."""

    def answered():
        with contextlib.suppress(NoHostAvailable, OperationTimedOut, ConnectionException):
            return bool(session.execute("SELECT key FROM system.local"))
        return False

    wait_until(answered, "the driver is back")


# -- transparent ----------------------------------------------------------------------------------


def test_everything_passes_and_is_told_apart(session, cassandra_proxy, value):
    insert, select = session.prepare(INSERT), session.prepare(SELECT)
    session.execute(insert, (1, b"\x7f\0\0\1" * 500_000))
    assert session.execute(select, (1,)).one().value == b"\x7f\0\0\1" * 500_000
    batch = BatchStatement(BatchType.UNLOGGED)
    for key in (2, 3):
        batch.add(insert, (key, bytes([key])))
    batch.add("DELETE FROM counted WHERE key = 1")
    session.execute(batch)
    assert [value(key) for key in (1, 2, 3)] == [None, b"\2", b"\3"]
    session.execute("INSERT INTO counted (key, value) VALUES (%s, %s)", (4, b"4"))

    seen = cassandra_proxy.seen
    assert (seen("EXECUTE"), seen("EXECUTE", "INSERT"), seen("EXECUTE", SELECT)) == (2, 1, 1)
    assert (seen("PREPARE", INSERT), seen("PREPARE", SELECT)) == (1, 1)
    assert (seen("BATCH"), seen("BATCH", INSERT), seen("BATCH", "DELETE")) == (1, 1, 1)
    assert seen("BATCH", SELECT) == 0
    assert seen("QUERY", "VALUES (4") == 1
    cassandra_proxy.wait_seen(1, "BATCH", "counted")
    with pytest.raises(TimeoutError, match="2 of BATCH"):
        cassandra_proxy.wait_seen(2, "BATCH", timeout=0.05)
    assert not cassandra_proxy.plain.failures


def test_replies_that_overtake_each_other(session, cassandra_proxy):
    insert, select = session.prepare(INSERT), session.prepare(SELECT)
    for key in range(10, 20):
        session.execute(insert, (key, b"%d" % key * 100_000))
    asked = [(key, session.execute_async(select, (key,))) for key in [*range(10, 20)] * 5]
    for key, future in asked:
        assert future.result().one().value == b"%d" % key * 100_000
    assert cassandra_proxy.seen("EXECUTE", SELECT) == 50


def test_what_is_no_frame_is_hung_up_on(cassandra_proxy, session):
    for sent in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes([5, 0, 0, 0, 5, 0, 0, 0, 0]),
        bytes([4, 1, 0, 0, 5, 0, 0, 0, 0]),
    ):
        with socket.create_connection(cassandra_proxy.plain.addresses[0], DEADLINE_S) as sock:
            sock.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    assert cassandra_proxy.plain.hostile == 3
    assert session.execute("SELECT key FROM system.local").one().key == "local"


# -- rules ----------------------------------------------------------------------------------------


def test_a_request_that_lands_late(connect, cassandra_proxy, keyspace, value):
    session = connect(cassandra_proxy, keyspace, timeout_s=1)
    insert = session.prepare(INSERT)
    late = cassandra_proxy.hold_request("EXECUTE", INSERT)
    future = session.execute_async(insert, (50, b"late"))
    late.arrived()
    with pytest.raises(OperationTimedOut):
        future.result()
    session.cluster.shutdown()
    assert value(50) is None
    assert late.release() == 1
    wait_until(lambda: value(50) == b"late", "it has landed")


# -- three nodes ----------------------------------------------------------------------------------


def test_clients_of_a_cluster_stay_on_the_proxy(connect, cassandra_cluster_proxy, cassandra_cluster):
    proxy = cassandra_cluster_proxy
    port = cassandra_cluster.port
    assert proxy.url == f"cassandra://127.0.0.11:{port},127.0.0.12:{port},127.0.0.13:{port}/tidegate"
    session = connect(proxy)
    found = {(host.address, host.endpoint.port) for host in session.cluster.metadata.all_hosts()}
    assert found == {(f"127.0.0.{10 + n}", port) for n in (1, 2, 3)}
    for n in range(3):  # each is asked by its own way
        lost = proxy.drop_request("QUERY", "release_version, host_id", route=n)

        def hit(lost=lost):
            with contextlib.suppress(*LOST, OperationTimedOut):
                session.execute("SELECT release_version, host_id FROM system.local")
            return lost.hits == 1

        wait_until(hit, f"node {n} is asked")
    again(session)


def test_two_proxies_of_one_node(connect, cassandra, cassandra_proxy, keyspace):
    with CassandraProxy(cassandra, shift=20) as other:
        assert other.addresses == [f"127.0.0.21:{cassandra.port}"]
        assert connect(other, keyspace).execute("SELECT key FROM system.local").one().key == "local"
    assert cassandra_proxy.seen("QUERY", "SELECT key") == 0


# -- frames ---------------------------------------------------------------------------------------


def frame(opcode, body, *, reply=False, flags=0, stream=7):
    return HEAD.pack(4 | (REPLY if reply else 0), flags, stream, opcode, len(body)) + body


def string(text, size=2):
    return len(text).to_bytes(size, "big") + text.encode()


def test_a_statement_is_known_by_the_number_that_the_server_gave_it():
    wire = CassandraWire()
    prepare = frame(Op.PREPARE, string("SELECT 1", 4))
    execute = frame(Op.EXECUTE, string("number") + b"\0\1\0")
    assert wire.asked(execute).kinds == ("EXECUTE",)
    # Before the body of a reply: its trace, warnings and a payload.
    before = (
        b"t" * 16
        + b"\0\2"
        + string("mind this")
        + string("and that")
        + b"\0\1"
        + string("a")
        + string("b", 4)
    )
    prepared = frame(Op.RESULT, before + b"\0\0\0\4" + string("number"), reply=True, flags=2 | 4 | 8)
    wire.answered(prepared, wire.asked(prepare))
    assert wire.asked(execute).kinds == ("EXECUTE SELECT 1", "EXECUTE")
    batch = b"\1\0\2" + b"\0" + string("DELETE", 4) + b"\0\1" + string("value", 4)
    batch += b"\1" + string("number") + b"\0\1\xff\xff\xff\xff" + b"\0\6\0"
    assert wire.asked(frame(Op.BATCH, batch)).kinds == ("BATCH DELETE; SELECT 1", "BATCH")
    for cut_off in (
        frame(Op.PREPARE, b"\0\0\0\5SELE"),
        frame(Op.EXECUTE, b"\0"),
        frame(Op.BATCH, batch[:20]),
    ):
        with pytest.raises(HostileFrameError):
            wire.asked(cut_off)


def test_nobody_is_told_of_another_way_to_the_nodes():
    wire = CassandraWire({1: 11, 2: 12})
    up = string("STATUS_CHANGE") + string("UP") + b"\4\x7f\0\0\2" + b"\0\0\x23\x52"
    event = frame(Op.EVENT, up, reply=True, stream=-1)
    assert wire.unasked(event)
    assert wire._as_told(event) == event.replace(b"\x7f\0\0\2", b"\x7f\0\0\x0c")
    mine = frame(
        Op.RESULT, b"\0\0\0\2" + string("mine") + string("peers") + b"\0\0\0\4\x7f\0\0\1", reply=True
    )
    assert wire._as_told(mine) == mine
