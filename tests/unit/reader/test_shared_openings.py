"""A place of a gate is opened once for all calls that need it: none queues, and no ended call waits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidegate.aio.in_threads import GateInThreads
from tidegate.aio.redirects import by_redirects
from tidegate.base.clock import Clock
from tidegate.errors import ConfigError, StoreRemovedError, StoreUnavailableError
from tidegate.reader.flow.gate import GateFlow
from tidegate.reader.redirects import RedirectGate
from tidegate.reader.spaces import Opened, Opening
from tidegate.sinks.records import Pointer

OLD, NEW = "memory://old", "memory://new"
CALLS = 8
DEADLINE_S = 30.0


class Joined(Opened):
    """A place that notes when all calls have come."""

    def __init__(self):
        self.all_came = threading.Event()
        super().__init__()

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "calls" and value == CALLS:
            self.all_came.set()


class Removed:
    """The gate of a store with the note of its removal."""

    uuid = namespace = "u"
    seen = None

    def _version_steps(self):
        error = StoreRemovedError("removed")
        error.successor = NEW
        raise error
        yield

    def close(self):
        pass


class Found(Removed):
    """The gate of its successor."""

    def __init__(self):
        self.closed = False

    def _version_steps(self):
        yield from ()
        return 7

    def close(self):
        self.closed = True


class AsyncRemoved(Removed):
    async def close(self):
        pass


class AsyncFound(Found):
    async def close(self):
        self.closed = True


def threaded(opened_new):
    """Return a gate at a removed store; ``opened_new`` opens its successor."""
    gate = RedirectGate(OLD, True, lambda url: Removed() if url == OLD else opened_new(), Clock())
    gate._spaces[NEW] = Joined()
    return gate


def outcome(call):
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - an interrupt, too
        return error


# -- in threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
def test_calls_share_one_opening(fails):
    openings = []

    def opened():
        openings.append(1)
        gate._spaces[NEW].all_came.wait(1.0 if len(openings) > 1 else DEADLINE_S / 10)
        if fails:
            raise StoreUnavailableError("no answer")
        return Found()

    gate = threaded(opened)
    with ThreadPoolExecutor(CALLS) as pool:
        answers = list(pool.map(lambda _: outcome(gate.version), range(CALLS)))
    assert len(openings) == 1
    assert [type(answer) for answer in answers] == [StoreUnavailableError if fails else int] * CALLS
    assert gate._spaces[NEW].calls == 0
    gate.close()


def test_a_call_ends_while_another_one_is_opening():
    reading, opening, go_on, answers = (threading.Event() for _ in range(4))

    def opened():
        opening.set()
        assert answers.wait(DEADLINE_S)
        return Found()

    def read_at_old():
        reading.set()
        assert go_on.wait(DEADLINE_S)
        return 3
        yield

    gate = threaded(opened)
    old = gate._spaces[OLD].gate
    old._version_steps = read_at_old
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gate.version)
        assert reading.wait(DEADLINE_S)
        del old._version_steps
        second = pool.submit(gate.version)
        assert opening.wait(DEADLINE_S)
        go_on.set()
        try:
            assert first.result(3.0) == 3
        finally:
            answers.set()
        assert second.result(DEADLINE_S) == 7
    gate.close()


def test_a_gate_that_is_closed_while_a_place_is_opened_keeps_nothing_open():
    found = Found()

    def opened():
        gate._spaces[NEW].all_came.wait(DEADLINE_S)
        gate.close()
        return found

    gate = threaded(opened)
    with ThreadPoolExecutor(CALLS) as pool:
        answers = list(pool.map(lambda _: outcome(gate.version), range(CALLS)))
    assert {type(answer) for answer in answers} == {ConfigError}
    assert found.closed


def test_an_interrupt_of_the_call_that_opens_leaves_the_opening_to_the_others():
    openings = []

    def opened():
        openings.append(1)
        if len(openings) == 1:
            gate._spaces[NEW].all_came.wait(DEADLINE_S)
            raise KeyboardInterrupt
        return Found()

    gate = threaded(opened)
    with ThreadPoolExecutor(CALLS) as pool:
        answers = list(pool.map(lambda _: outcome(gate.version), range(CALLS)))
    assert sorted(map(str, answers)) == ["", *["7"] * (CALLS - 1)]
    gate.close()


def test_a_forked_child_opens_a_place_itself():
    """The thread that was opening it is only in the parent."""
    gate = threaded(Found)
    gate._spaces[NEW].opening = Opening()
    gate._spaces[NEW].opening.pid -= 1
    assert gate.version() == 7
    gate.close()


def test_what_was_seen_is_never_replaced_by_something_older():
    """I9: of two calls that leave a removed store, the later one may come after a read at the successor."""
    gate = GateFlow(reader=None)
    for visible in (5, 3):
        gate.remember(Pointer(visible, "digest", 1, "w"))
    assert gate.seen.visible == 5


class CountedLock:
    """A lock that notes when all calls have released it."""

    def __init__(self):
        self.lock, self.released, self.all_came = threading.Lock(), 0, threading.Event()

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.released += 1
        if self.released == CALLS:
            self.all_came.set()
        self.lock.release()


def test_diffs_of_an_asyncio_gate_share_one_opening_that_a_close_does_not_wait_for():
    openings = []

    def connect():
        openings.append(1)
        gates._lock.all_came.wait(1.0 if len(openings) > 1 else DEADLINE_S / 10)
        if len(openings) == 1:
            raise StoreUnavailableError("no answer")
        gates.close()
        return found

    found, gates = Found(), GateInThreads(connect)
    gates._lock = CountedLock()
    with ThreadPoolExecutor(CALLS) as pool:
        answers = list(pool.map(lambda _: outcome(gates.gate), range(CALLS)))
    assert len(openings) == 1
    assert {type(answer) for answer in answers} == {StoreUnavailableError}
    assert type(outcome(gates.gate)) is ConfigError
    assert found.closed


# -- on an event loop ---------------------------------------------------------------------------------


async def on_a_loop(opened_new):
    async def opened(url):
        return AsyncRemoved() if url == OLD else await opened_new()

    gate = await by_redirects(OLD, True, opened, Clock())
    gate._spaces[NEW] = Joined()
    return gate


async def all_came(gate):
    await asyncio.to_thread(gate._spaces[NEW].all_came.wait, DEADLINE_S / 10)


@pytest.mark.parametrize("fails", [True, False])
def test_tasks_share_one_opening(fails):
    openings = []

    async def main():
        async def opened():
            openings.append(1)
            await all_came(gate)
            if fails:
                raise StoreUnavailableError("no answer")
            return AsyncFound()

        gate = await on_a_loop(opened)
        answers = await asyncio.gather(*(gate.version() for _ in range(CALLS)), return_exceptions=True)
        assert len(openings) == 1
        assert [type(answer) for answer in answers] == [StoreUnavailableError if fails else int] * CALLS
        assert gate._spaces[NEW].calls == 0
        await gate.close()

    asyncio.run(main())


def test_a_task_that_is_cancelled_leaves_the_opening_to_the_others():
    async def main():
        openings, go_on = [], asyncio.Event()

        async def opened():
            openings.append(1)
            await go_on.wait()
            return AsyncFound()

        gate = await on_a_loop(opened)
        calls = [asyncio.ensure_future(gate.version()) for _ in range(CALLS)]
        await all_came(gate)
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        go_on.set()
        assert await asyncio.gather(*calls[1:]) == [7] * (CALLS - 1)
        assert calls[0].cancelled()
        assert len(openings) == 1
        await gate.close()

    asyncio.run(main())


def test_a_close_ends_an_opening_and_the_calls_that_wait_for_it():
    async def main():
        gate = await on_a_loop(asyncio.Event().wait)
        calls = [asyncio.ensure_future(gate.version()) for _ in range(CALLS)]
        await all_came(gate)
        await asyncio.wait_for(gate.close(), DEADLINE_S)
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), DEADLINE_S)
        assert {type(answer) for answer in answers} == {ConfigError}

    asyncio.run(main())
