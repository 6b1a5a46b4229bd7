"""Results of more than a page, over the driver's own futures: each page once, each in its time. No server."""

from __future__ import annotations

import time
import types

import pytest

pytest.importorskip("cassandra")

from cassandra import cluster, protocol

from tidegate.sinks.cassandra.client.session import Session
from tidegate.sinks.cassandra.client.settings import settings_of

PAGES = {
    None: ([(1,), (2,)], b"b"),
    b"b": ([(3,), (4,)], b"c"),
    b"c": ([(5,), (6,)], b"d"),
    b"d": ([(7,)], b"e"),
    b"e": ([], None),
}
ALL = [(number,) for number in range(1, 8)]


class Future(cluster.ResponseFuture):
    """Its requests are answered at once, unless its timer was faster; ``_set_result`` is the driver's."""

    def send_request(self, error_no_hosts=True):
        if not self._event.is_set():
            self.session.asked(self)

    def answered(self, at):
        rows, following = PAGES[at]
        answer = protocol.ResultMessage(protocol.RESULT_KIND_ROWS)
        answer.column_names, answer.column_types = ["n"], [None]
        answer.parsed_rows, answer.paging_state = rows, following
        self._set_result(None, None, None, answer)


class Driver:
    """A session of the driver's whose second node may be late, and whose first one silent at a page."""

    keyspace = "tidegate"

    def __init__(self):
        self.cluster = types.SimpleNamespace(connection_class=self)
        self.make_query_plan = lambda *_: iter(())
        self.late, self.silent, self.asked_for, self.timer = lambda _future, _at: None, None, [], None

    def create_timer(self, delay_s, callback):
        def cancel():
            self.timer = None

        self.timer = callback
        if delay_s <= 0.01:
            callback()
        return types.SimpleNamespace(cancel=cancel)

    def asked(self, future):
        at = future.message.paging_state
        self.asked_for.append(at)
        if self.silent is not None and self.silent == at:
            self.silent = None
            assert self.timer is not None, "nothing ends this wait"
            self.timer()
        self.late(future, at)
        if not future._event.is_set():
            future.answered(at)

    def execute(self, statement, _values=None, *, timeout, host=None, paging_state=None):
        message = types.SimpleNamespace(paging_state=paging_state)
        future = Future(
            self, message, statement, timeout, row_factory=lambda _names, rows: rows, load_balancer=self
        )
        future.send_request()
        return future.result()


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(Session, "_connect", lambda _session: (None, made))
    monkeypatch.setattr(Session, "bind", lambda *_: object())
    return made


@pytest.fixture
def session(driver):
    return Session(settings_of("cassandra://nowhere/tidegate", {"timeout_s": 1.0}), "store")


def test_all_pages_come(session, driver):
    assert session.rows("any", level=1) == ALL
    assert list(session.stream("any", level=1)) == ALL
    assert session.plain("SELECT") == [{"n": number} for (number,) in ALL]
    assert driver.asked_for == list(PAGES) * 3


@pytest.mark.parametrize("how", ["rows", "stream"])
def test_a_page_that_a_second_node_gives_too_is_not_taken_for_the_next_one(session, driver, how):
    """The driver asks another node when the first is slow, and hears both."""
    first = []

    def late(future, at):
        if at is None:
            first.append(future)
        elif at == b"b" and driver.asked_for.count(at) == 1:
            first[0].answered(None)  # what the second node says of the first page comes behind its end

    driver.late = late
    assert list(getattr(session, how)("any", level=1)) == ALL


@pytest.mark.parametrize("how", ["rows", "stream"])
def test_each_page_is_waited_for_no_longer_than_the_first(session, driver, how):
    """A node that stands still between two pages: the driver has no timer for the second one."""
    driver.silent = b"c"
    assert list(getattr(session, how)("any", level=1)) == ALL
    assert driver.asked_for.count(b"c") == 2


@pytest.mark.parametrize("how", ["rows", "stream"])
def test_each_page_has_a_time_of_its_own(session, driver, how):
    """The notes of a large version from busy nodes: that many pages take long is no failure."""
    driver.late = lambda _future, _at: time.sleep(0.3)
    assert list(getattr(session, how)("any", level=1)) == ALL
    assert driver.asked_for == list(PAGES)
