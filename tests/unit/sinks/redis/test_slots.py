"""The slots of pending flights: who waits, who is next, and what each costs."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from tidegate.base.deadline import end_of, one_call
from tidegate.sinks.redis.client.aio.channel import NoTurnError, Slots

CALLS = 1_000
TIMEOUT_S = 60.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop that counts its tasks and timers."""

    timers = tasks = 0

    def call_at(self, *args, **named):
        self.timers += 1
        return super().call_at(*args, **named)

    def create_task(self, *args, **named):
        self.tasks += 1
        return super().create_task(*args, **named)


def run(work):
    loop = Loop()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()


async def calls_of(slots, requests, sent):
    """Run calls of several requests each, which begin in order; note each request that is sent."""

    async def call(number):
        with one_call():
            for request in range(requests):
                if not slots.take():
                    await slots.wait(end_of(TIMEOUT_S))
                sent.append((number, request))
                await asyncio.sleep(0)
                slots.release()

    await asyncio.gather(*(call(number) for number in range(CALLS)))


def test_a_call_that_has_begun_is_before_one_that_has_not():
    async def work(loop):
        slots, sent = Slots(4), []
        await calls_of(slots, 3, sent)
        assert slots.free == 4
        return sent

    sent = run(work)
    ended = [position for position, (_, request) in enumerate(sent) if request == 2]
    begun = [position for position, (_, request) in enumerate(sent) if request == 0]
    assert ended[0] < begun[20], "the first call ends before some dozen others begin"
    assert ended[CALLS // 2] < begun[CALLS // 2 + 20]


def test_waiting_calls_share_one_timer_and_have_no_task_of_their_own():
    async def work(loop):
        await calls_of(Slots(4), 3, [])
        assert loop.tasks <= CALLS + 1
        assert loop.timers <= 8, "a call that has begun may have an earlier deadline than all that wait"

    run(work)


def test_a_call_that_waits_too_long_fails_alone():
    async def work(loop):
        slots = Slots(1)
        assert slots.take()
        late = asyncio.ensure_future(slots.wait(monotonic() + 0.01))
        patient = asyncio.ensure_future(slots.wait(monotonic() + TIMEOUT_S))
        with pytest.raises(NoTurnError, match="1 requests were pending all the time"):
            await late
        assert not patient.done()
        slots.release()
        await patient
        slots.release()
        assert slots.free == 1

    run(work)


@pytest.mark.parametrize("turn_first", [False, True])
def test_a_call_that_is_cancelled_leaves_its_slot_to_the_next_one(turn_first):
    async def work(loop):
        slots = Slots(1)
        assert slots.take()
        cancelled, following = (
            asyncio.ensure_future(slots.wait(monotonic() + TIMEOUT_S + number)) for number in range(2)
        )
        await asyncio.sleep(0)
        if turn_first:
            slots.release()
            cancelled.cancel()
        else:
            cancelled.cancel()
            slots.release()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await following
        slots.release()
        assert slots.free == 1

    run(work)
