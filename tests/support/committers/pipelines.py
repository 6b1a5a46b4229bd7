"""Pipelined commits for tests: a port that holds calls, batches, and the contents of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidegate.committers.coordinator import Coordinator
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch

DEADLINE_S = 60.0


class Gates:
    """A port that holds calls of a name until they are let through, and notes what went through."""

    def __init__(self) -> None:
        self.closed: dict[str, threading.Event] = {}
        self.waiting: set[str] = set()
        self.errors: dict[str, Exception] = {}
        self.went: list[str] = []
        self.in_flight_max = 0
        self.pipeline: Any = None

    def close(self, *names: str) -> None:
        for name in names:
            self.closed[name] = threading.Event()

    def open(self, *names: str) -> None:
        for name in names:
            self.closed.pop(name).set()

    def call(self, call: Any, effect: Callable[[], Any]) -> Any:
        gate = self.closed.get(call.name)
        if gate is not None:
            self.waiting.add(call.name)
            assert gate.wait(DEADLINE_S), f"{call.name} was never let through"
        if error := self.errors.get(call.name):
            raise error
        result = effect()
        self.went.append(f"{call.name} {call.shown}".strip())
        return result


def barrier_of(driver: Coordinator, batch_id: int, **more: Any) -> ArrowBarrier:
    rows = {"aircraft": {b"N%d" % n: b"%d" % batch_id for n in range(batch_id + 1)}}
    return ArrowBarrier(driver.log, rows, batch("query-1", batch_id), 4, **more)


def visible(place: str) -> int:
    return MemoryStore(place, "n").pointer().visible


def check_content(place: str, version: int) -> None:
    store = MemoryStore(place, "n")
    assert store.pointer().visible == version
    keys = [b"N%d" % n for n in range(version + 1)]
    for at in range(1, version + 1):
        expected = [b"%d" % (at - 1)] * at + [None] * (version + 1 - at)
        assert store.get_many(ReadAt("aircraft", at), keys).to_pylist() == expected
