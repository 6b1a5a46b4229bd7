"""Random histories on a real Redis against plain dictionaries: tests/conformance/test_store_machine.py, with
merges that stop after any step and writes that come late. The server's clock is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import precondition, rule

from services.support.redis.server import RedisServer
from services.support.workloads.store_machine import machine
from tidegate.sinks.redis.client import functions
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep import merge as upkeep
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.testing.store.harness import stamp

CLOCK = "clock"
SERVERS: list[RedisServer] = []


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its hashes are never small, so that a merge has many steps; its functions ask a key for the time."""
    told = {"appendonly": "no", "hash-max-listpack-entries": "0"}
    with (
        RedisServer(tmp_path_factory.mktemp("machine"), settings=told) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        text = functions.source()
        real = "local time = redis.call('TIME')\n  return tonumber(time[1]) * 1000000 + tonumber(time[2])"
        assert real in text
        text = text.replace(real, f"return tonumber(redis.call('GET', '{CLOCK}'))")
        patch.setattr(functions, "source", lambda: text)
        forget_scripts()
        SERVERS.append(made)
        yield
        SERVERS.remove(made)
    forget_scripts()


def forget_scripts() -> None:
    """What was made of the text that the functions had."""
    for made in (functions._script, functions.call_head):
        made.cache_clear()


class RedisMachine(machine.StoreMachine):  # type: ignore[misc]
    def make(self, name: str) -> RedisStore:
        self._set_clock()
        return RedisStore(SERVERS[0].url, name, functions=False)

    def apply_and_seal(self, version: machine.Decided) -> None:
        """As a task does, with the keys of what it writes."""
        sets = KeySets(version.counts, least=1)
        sets.add(sorted(version.chunks, key=lambda chunk: chunk.runs[0].keys[0].as_py()))
        self.store.apply_and_seal(stamp(version.version), version.counts, *version.chunks, sets=sets)

    def _set_clock(self) -> None:
        SERVERS[0].ask("SET", CLOCK, self.clock.now)

    @rule(seconds=st.sampled_from([5, 11, 2000]))
    def time_goes_on(self, seconds: int) -> None:
        super().time_goes_on(seconds)
        self._set_clock()

    @precondition(lambda self: self.retired < self.horizon)
    @rule(
        group=st.integers(0, machine.GROUPS - 1),
        table=st.sampled_from(machine.TABLES),
        cursor=st.sampled_from([b"0", b"3", b"99"]),
        back=st.integers(0, 2),
    )
    def merge_a_step(self, group: int, table: str, cursor: bytes, back: int) -> None:
        """At most a few rows, by a driver who may know an older horizon; a cursor of another time."""
        space, upto = self.store._space, max(self.horizon - back, 1)
        start = self.start_of(table, upto)
        self.store.pointer()
        args = (table.encode(), b"%d" % upto, b"%d" % start, b"1", cursor)
        space.asked([space.of_group(group, "merge", *args)])

    @precondition(lambda self: self.horizon)
    @rule(
        group=st.integers(0, machine.GROUPS - 1),
        table=st.sampled_from(machine.TABLES),
        back=st.integers(0, 2),
    )
    def drop_expired_of_an_older_horizon(self, group: int, table: str, back: int) -> None:
        version = max(self.horizon - back, 1)
        upkeep.expire(self.store._space, table, group, b"0", 3, version, machine.at_us(version))

    @precondition(lambda self: self.visible)
    @rule(pick=st.integers(0, 10**6), row=st.integers(0, 7))
    def a_row_comes_late(self, pick: int, row: int) -> None:
        version = self.decided[pick % self.visible]
        for chunk in version.chunks[row : row + 1]:
            self.store.apply(stamp(version.version), chunk)

    @precondition(lambda self: len(self.decided) > self.visible)
    @rule(key=st.sampled_from(machine.KEYS))
    def rows_of_a_version_that_nobody_decided(self, key: bytes) -> None:
        """I5: what is not sealed is never read, merged or counted."""
        group = machine.GROUP[key]
        name = header_key(self.name, group).decode().removesuffix("h")
        with SERVERS[0].client() as client:
            identity = self.store.identity()
            changes = f"{name}t:d:{len(self.decided) + 1000}:{identity.uuid if identity else ''}"
            client.hset(changes, mapping={key: b"+never"})

    @rule()
    def vacuum(self) -> None:
        """A late row may lie under the floor of its key group or above it: how many go is not the model's."""
        self.store.vacuum()
        for name, (_, _, until) in list(self.leases.items()):
            if until <= self.clock.now:
                del self.leases[name]

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "name"):
            SERVERS[0].forget(f"{{{self.name}")


TestRedisMachine = RedisMachine.TestCase
TestRedisMachine.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
