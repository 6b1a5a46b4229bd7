"""A merge goes in steps: what of it waits at a server, how far it is to a stop, how much time a step has."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from services.support.redis.proxy import RedisProxy
from tidegate.base import deadline
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.client import calls
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.redis.client.servers import Node
from tidegate.sinks.redis.client.settings import TIMEOUT_S
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep import merge as redis_upkeep
from tidegate.testing.store.harness import counts_of, get, put, stamp

GROUPS = 64
FUNCTION = f"{library_name()}_merge"
MERGE = f"FCALL {FUNCTION}"


class Merging:
    """Versions of the same keys, all but the last merged; a proxy counts the calls of that one's merge. Of
    the third it is not known which keys it has, so its rows are moved; the second would become the base.
    """

    def __init__(self, redis, namespace, rows, last=3):
        self.proxy = RedisProxy(("127.0.0.1", redis.port))
        host, port = self.proxy.address
        self.store = RedisStore(f"redis://{host}:{port}", namespace)
        self.store.create(Identity("uuid", namespace, GROUPS))
        self.store.claim(1, "writer")
        self.keys = [b"k%d" % at for at in range(rows)]
        self.last = last
        for version in range(1, last + 1):
            put(self.store, version, self._changes(version), GROUPS)
        self.store.announce(last)
        assert self._retire(last - 1)
        self.steps, self.waiting, self.most = [], Counter[str](), 0
        self.on_reply = lambda: None

    def _changes(self, version):
        return {"t": dict.fromkeys(self.keys, b"%d" % version)}

    def _retire(self, version, *more):
        return self.store.retire(stamp(version), counts_of(self._changes(version), GROUPS), iter(()), *more)

    def _count(self, _, direction, kind):
        self.waiting[kind] += 1 if direction == "request" else -1
        if kind == MERGE:
            self.most = max(self.most, self.waiting[kind])
            if direction == "request":
                self.steps[-1] += 1
            else:
                self.on_reply()

    def _asked(self):
        self.steps.append(0)
        return False

    def run(self):
        """The last merge; ``steps`` are its calls between two looks whether it is to stop."""
        self.proxy.plain.on_frame(self._count)
        assert self._retire(self.last, self._asked)
        self.proxy.plain.on_frame(None)
        assert get(self.store, "t", self.keys[:50], self.last) == [b"%d" % self.last] * 50

    def close(self):
        self.store.close()
        self.proxy.close()


@pytest.fixture
def merging(redis, namespace):
    made = []

    def make(rows, last=3):
        made.append(Merging(redis, namespace, rows, last))
        return made[-1]

    yield make
    for each in made:
        each.close()


MANY, FEW = GROUPS * redis_upkeep.MERGE_ROWS * 5 // 4, GROUPS


WAY = 4
"""So many small flights go there and back in the time of an answer."""


@pytest.mark.parametrize("answer_s, ahead", [(0.0001, 2), (calls.FLIGHT_S * WAY, 2 + WAY)])
def test_few_steps_of_a_merge_wait_at_a_server(merging, monkeypatch, answer_s, ahead):
    """A server does all that one client has sent before it turns to a reader. To one far off go more."""
    monkeypatch.setattr(Node, "answered", lambda node, _: setattr(node, "answer_s", answer_s))
    merge = merging(MANY)
    merge.run()
    assert ahead - 2 < merge.most <= ahead


def test_how_far_a_server_is_told_by_its_fastest_answer(merging):
    """A busy one answers later, and is not farther for that."""
    store = merging(FEW).store
    node = store._space.calls.node_of(store._space.meta)
    fastest = node.answer_s
    assert 0 < fastest < 1
    node.answered(2 * fastest)
    assert node.answer_s == fastest
    node.answered(fastest / 2)
    assert node.answer_s == fastest / 2


def test_layers_that_become_the_base_go_together(merging, monkeypatch):
    """However many rows they have: none is moved. The first step does not know that yet."""
    monkeypatch.setattr(redis_upkeep, "MERGE_FLIGHTS", 4)
    merge = merging(MANY, last=2)
    merge.run()
    together = redis_upkeep.MERGE_ROWS // redis_upkeep.CALL_ROWS
    assert merge.steps[0] == redis_upkeep.MERGE_FLIGHTS
    assert sum(merge.steps) == GROUPS
    assert max(merge.steps) == GROUPS - redis_upkeep.MERGE_FLIGHTS <= redis_upkeep.MERGE_FLIGHTS * together


def test_calls_that_move_few_rows_go_together(merging, monkeypatch):
    """1,024 key groups of three tables, one by one over a way of 5 ms, would take 8 s for each version: more
    versions would come than are merged.
    """
    monkeypatch.setattr(calls, "FLIGHT_S", 1.0)  # the proxy is not far
    merge = merging(FEW)
    merge.run()
    together = redis_upkeep.MERGE_ROWS // redis_upkeep.CALL_ROWS
    assert calls.AHEAD < merge.most <= calls.AHEAD * together


def test_a_merge_can_be_stopped_after_few_round_trips(merging):
    """A close of the sink waits for a step, and a server may be far away or slow."""
    merge = merging(MANY)
    merge.run()
    assert sum(merge.steps) >= GROUPS
    assert max(merge.steps) <= redis_upkeep.MERGE_FLIGHTS


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["a reply is lost", "it is asked too early"])
def test_a_merge_that_takes_long_has_time_left_when_something_happens(merging, monkeypatch, what):
    """``timeout_s`` is for a step, not for all key groups: each takes its time, and none is late."""
    merge, passed = merging(MANY), [0.0]
    late = GROUPS - 6
    each_s = 1.2 * TIMEOUT_S / late

    def on_reply():
        passed[0] += each_s

    merge.on_reply = on_reply
    monkeypatch.setattr(deadline, "monotonic", lambda: time.monotonic() + passed[0])
    if what == "a reply is lost":
        rule = merge.proxy.drop_reply("FCALL", FUNCTION, nth=late)
    else:
        rule = merge.proxy.refuse_with("LOADING it reads its file", "FCALL", FUNCTION, nth=late)
    merge.run()
    assert rule.hits == 1
