"""What Cassandra's nodes answer instead of rows: what is asked again, and what nobody knows. No server."""

from __future__ import annotations

import dataclasses
import io
import struct
import types

import pytest

pytest.importorskip("cassandra")

from cassandra import AuthenticationFailed, InvalidRequest, cluster, protocol

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.cassandra.client.errors import as_ours, may_pass
from tidegate.sinks.cassandra.client.session import Session
from tidegate.sinks.cassandra.client.settings import settings_of

WAIT_S = 30.0
OVERLOADED, BOOTSTRAPPING, SERVER_ERROR, CAS_UNKNOWN = 0x1001, 0x1002, 0x0000, 0x1700


def answer(code):
    """An error as it comes from a node, read by the driver."""
    content = struct.pack(">iH", code, 4) + b"busy"
    return protocol.ErrorMessage.recv_body(io.BytesIO(content), 5).to_exception()


class Statement:
    """Whatever it is."""


class Node:
    """Answers with these errors, one after the other, then with a row."""

    def __init__(self, *errors):
        self.errors, self.asked = list(errors), 0

    def execute(self, _statement, timeout, paging_state=None):
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return Rows([(True, timeout > 0)])


class Rows(list):
    paging_state = None

    @property
    def current_rows(self):
        return list(self)

    def one(self):
        return self[0]


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(Session, "_connect", lambda _session: (None, Node()))
    monkeypatch.setattr(Session, "bind", lambda *_: Statement())
    return Session(settings_of("cassandra://nowhere/tidegate", {"timeout_s": 1.0}), "store")


@pytest.mark.parametrize("code", [OVERLOADED, BOOTSTRAPPING, SERVER_ERROR, CAS_UNKNOWN])
def test_a_node_that_cannot_answer_now_is_asked_again(session, code):
    session.driver = Node(answer(code), answer(code))
    assert session.rows("any", level=1) == [(True, True)]
    assert session.driver.asked == 3
    session.driver = Node(answer(code))
    assert session.decide(("any",), level=1, again=True) == (True, True)


@pytest.mark.parametrize("code", [OVERLOADED, BOOTSTRAPPING, SERVER_ERROR, CAS_UNKNOWN])
def test_what_became_of_a_conditional_write_is_unknown_and_it_is_sent_once(session, code):
    session.driver = Node(answer(code))
    with pytest.raises(StoreUnavailableError, match="busy"):
        session.decide(("any",), level=1)
    assert session.driver.asked == 1


def test_what_the_nodes_refuse_is_not_asked_again(session):
    session.driver = Node(InvalidRequest("no such column"))
    with pytest.raises(ConfigError, match=r"the cluster refuses: .*no such column"):
        session.rows("any", level=1)
    assert session.driver.asked == 1


def test_nodes_with_full_disks_take_no_writes_and_can_be_read(session):
    """Readers then read without a lease, and a writer tries again."""
    session.driver = Node(
        InvalidRequest(
            "Guardrail replica_disk_usage violated: Write request failed because disk usage exceeds failure"
            " threshold"
        )
    )
    with pytest.raises(StoreUnavailableError, match="larger disks, or more nodes") as raised:
        session.rows("any", level=1)
    assert raised.value.writes_refused


# -- a login that is refused ------------------------------------------------------------------------


def node(dc, is_up):
    return types.SimpleNamespace(datacenter=dc, is_up=is_up, host_id=dc)


class Cluster:
    """A connected cluster of one node here, and one of another data centre, to which nothing is sent."""

    def __init__(self, is_up):
        self.metadata, self.ended, self.known = self, False, {}
        self.hosts = [node("here", is_up), node("there", None)]

    def all_hosts(self):
        return self.hosts

    def add_prepared(self, query_id, statement):
        self.known[query_id] = statement

    def shutdown(self):
        self.ended = True


NOBODY = cluster.NoHostAvailable("Unable to complete the operation against any hosts", {})
BAD = AuthenticationFailed("Failed to authenticate: Provided username and/or password are incorrect")
UNSURE = AuthenticationFailed("Unable to perform authentication: Cannot achieve consistency level QUORUM")


def refusing(error):
    return cluster.NoHostAvailable("Unable to connect to any servers", {"n1": error})


@pytest.fixture
def down(session):
    """A session whose driver library has given up its only node."""
    session.settings = dataclasses.replace(session.settings, timeout_s=WAIT_S, local_dc="here")
    session.cluster, session.driver = Cluster(is_up=False), Node(*[NOBODY] * 1_000)
    return session


def test_a_driver_that_gave_up_its_nodes_is_replaced(down, monkeypatch):
    """After a refused login it never tries again; its requests failed until the process ended."""
    old, new = down.cluster, Cluster(is_up=True)
    monkeypatch.setattr(down, "_connect_once", lambda: (new, Node()))
    assert down.rows("any", level=1) == [(True, True)]
    ended(down)
    assert (down.cluster, old.ended, new.ended) == (new, True, False)


def ended(session):
    """Wait for the thread that connected last."""
    if thread := session._renewal:
        thread.join(WAIT_S)


def test_a_new_connection_knows_the_statements_of_the_old_one(down, monkeypatch):
    """A node that lacks one gets it from the driver. For a batch the driver has nothing but this list."""
    statement, new = types.SimpleNamespace(query_id=b"1"), Cluster(is_up=True)
    down._prepared["put"] = statement
    monkeypatch.setattr(down, "_connect_once", lambda: (new, Node()))
    down.rows("any", level=1)
    assert new.known == {b"1": statement}


def test_a_refusal_counts_for_all_requests_until_the_next_new_connection(down, monkeypatch):
    """One request alone learned of it, perhaps much later, when the password was right again."""
    times = iter([BAD, None])

    def connect():
        if error := next(times):
            raise refusing(error)
        return Cluster(is_up=True), Node()

    monkeypatch.setattr(down, "_connect_once", connect)
    for _ in range(3):
        with pytest.raises(ConfigError, match="check username and password"):
            down.rows("any", level=1)
    down._renew_after_s = 0.0  # the time has passed
    assert down.rows("any", level=1) == [(True, True)]


def test_a_certificate_that_cannot_be_read_any_more_is_told(down, monkeypatch):
    def connect():
        raise ConfigError("store: TLS cannot be set up: no such file")

    monkeypatch.setattr(down, "_connect_once", connect)
    with pytest.raises(ConfigError, match="TLS cannot be set up"):
        down.rows("any", level=1)


def test_a_node_that_cannot_look_up_its_users_proves_nothing(down, monkeypatch):
    monkeypatch.setattr("tidegate.sinks.cassandra.client.session.RENEW_EVERY_S", 0.0)
    tries = [refusing(UNSURE)] * 2

    def connect():
        if tries:
            raise tries.pop()
        return Cluster(is_up=True), Node()

    monkeypatch.setattr(down, "_connect_once", connect)
    assert down.rows("any", level=1) == [(True, True)]


def test_a_session_that_is_closed_while_it_connects_anew_leaves_nothing(down, monkeypatch):
    old, new = down.cluster, Cluster(is_up=True)

    def connect():
        down.close()
        return new, Node()

    monkeypatch.setattr(down, "_connect_once", connect)
    down.settings = dataclasses.replace(down.settings, timeout_s=1.0)
    with pytest.raises(StoreUnavailableError):
        down.rows("any", level=1)
    ended(down)
    assert (down.cluster, old.ended, new.ended) == (old, True, True)


def test_nodes_that_are_down_are_told_in_words():
    """The message had a Python tuple in it."""
    assert str(as_ours(NOBODY, "store")).endswith("any hosts: every node: it is down for the driver")


def test_a_wrong_password_is_no_reason_to_try_again():
    assert isinstance(as_ours(refusing(BAD), "store"), ConfigError)
    assert isinstance(as_ours(refusing(UNSURE), "store"), StoreUnavailableError)
    assert isinstance(as_ours(UNSURE, "store"), StoreUnavailableError)
    assert not may_pass(refusing(BAD))
