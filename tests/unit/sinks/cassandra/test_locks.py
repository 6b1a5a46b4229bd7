"""What is collected while its own thread opens a store in Cassandra. No server."""

from __future__ import annotations

import gc
import threading

import pytest

pytest.importorskip("cassandra")

from tidegate.sinks.cassandra.client import session
from tidegate.sinks.cassandra.namespace import CassandraNamespace

DEADLINE_S = 30


def test_a_store_that_is_collected_while_its_thread_opens_another_is_closed(monkeypatch):
    """A generator that reads in a ``with tidegate.connect(...)`` of its own, dropped half-way in a cycle."""
    closed, ended = [], threading.Event()

    class Session:
        def __init__(self, settings, _where):
            self.hosts = settings.hosts
            gc.collect()  # it makes a lot, so that this may happen at any moment

        def close(self):
            closed.append(self.hosts)

    monkeypatch.setattr(session, "Session", Session)

    def rows():
        space = CassandraNamespace("cassandra://first/tidegate", "flights", {})
        try:
            yield space.session
        finally:
            space.close()

    def work():
        dropped = rows()
        next(dropped)
        cycle = [dropped]
        cycle.append(cycle)
        del dropped, cycle
        other = CassandraNamespace("cassandra://second/tidegate", "flights", {})
        assert other.session.hosts == ("second",)
        other.close()
        ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ended.wait(DEADLINE_S), "it waits for itself"
    thread.join()
    assert closed == [("first",), ("second",)]
    assert session._shared.sessions == {}
