"""The cause that an asynchronous call names when its deadline ends."""

import asyncio

import pytest

from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis.client.aio.calls import AsyncCalls
from tidegate.sinks.redis.client.replies import CUT_OFF
from tidegate.sinks.redis.client.settings import settings_of


class Servers:
    """Servers whose addresses cannot be asked for, each time for the next reason, the last one again."""

    def __init__(self, settings, *reasons):
        self.settings, self.known, self.reasons = settings, None, list(reasons)

    async def view(self):
        reason = self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]
        raise OSError(reason)

    def forget(self, view):
        pass


@pytest.mark.parametrize(
    "reasons, told",
    [
        *((("refused", f"h:1: {late}"), "refused") for late in CUT_OFF),
        *(((f"h:1: {late}",), late) for late in CUT_OFF),
        (("Connection closed by server", "h:1: no reply in time"), "Connection closed by server"),
        (("refused", "reset"), "reset"),
    ],
)
def test_a_try_that_the_deadline_cut_off_does_not_replace_the_cause(reasons, told):
    calls = AsyncCalls.__new__(AsyncCalls)
    calls.servers = Servers(settings_of("redis://h", {"timeout_s": 0.1}), *reasons)
    calls.where, calls.closed = "h", False
    with pytest.raises(StoreUnavailableError, match=told):
        asyncio.run(calls.run([object()], lambda _: True))
