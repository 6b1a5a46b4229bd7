"""What Cassandra's nodes answer instead of rows: what is asked again, and what nobody knows. No server."""

from __future__ import annotations

import io
import struct

import pytest

pytest.importorskip("cassandra")

from cassandra import InvalidRequest, protocol

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.cassandra.client.session import Session
from tidegate.sinks.cassandra.client.settings import settings_of

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
