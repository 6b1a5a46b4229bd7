"""Random histories on a real Cassandra against plain dictionaries: tests/conformance/test_store_machine.py.

The clock is the machine's. It moves with every lease that is taken: the store orders what it writes of
leases by their ends, and no clock of a server stands still between two requests of one reader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule

from services.support.workloads.store_machine import machine
from tidegate.sinks.cassandra.namespace import CassandraNamespace, Seen
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.testing.store.harness import stamp

URLS: list[str] = []
CLOCKS: list[machine.StandingClock] = []


@pytest.fixture(scope="module", autouse=True)
def server(cassandra_tables: str) -> Iterator[None]:
    look = CassandraNamespace.look

    def looked(space: CassandraNamespace, **how: Any) -> Seen:
        return look(space, **how)._replace(now_ms=CLOCKS[-1].now // 1_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CassandraNamespace, "look", looked)
        URLS.append(cassandra_tables)
        yield
        URLS.remove(cassandra_tables)


class CassandraMachine(machine.StoreMachine):  # type: ignore[misc]
    def make(self, name: str) -> CassandraStore:
        CLOCKS[:] = [self.clock]
        return CassandraStore(URLS[0], name)

    @rule(name=st.sampled_from("ab"), back=st.integers(0, 3), ttl=st.sampled_from([10, 1000]))
    def lease(self, name: str, back: int, ttl: int) -> None:
        """One that ran out is not looked at any more: taken again, it is a new one."""
        self.clock.now += 1_000
        if name in self.leases and self.leases[name][2] <= self.clock.now:
            del self.leases[name]
        super().lease(name, back, ttl)

    @precondition(lambda self: self.visible)
    @rule(pick=st.integers(0, 10**6), row=st.integers(0, 7))
    def a_row_comes_late(self, pick: int, row: int) -> None:
        version = self.decided[pick % self.visible]
        for chunk in version.chunks[row : row + 1]:
            self.store.apply(stamp(version.version), chunk)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            with contextlib.closing(self.make(self.name)) as other:
                assert list(other.self_check()) == []
        super().teardown()


TestCassandraMachine = pytest.mark.slow(CassandraMachine.TestCase)
TestCassandraMachine.settings = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
