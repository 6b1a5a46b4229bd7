"""The cause that a blocking call names when its deadline ends."""

import pytest

from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.settings import settings_of


class Servers:
    """Servers that cannot be found, each time for the next reason, the last one again."""

    has_answered = True

    def __init__(self, settings, *reasons):
        self.settings, self.reasons = settings, list(reasons)

    def node_of(self, key):
        raise OSError(self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0])

    def refresh(self):
        pass


@pytest.mark.parametrize(
    "reasons, told",
    [
        (("BUSY Redis is busy", "Timeout reading from socket"), "BUSY"),
        (("BUSY Redis is busy", "no time was left for a request to h:1"), "BUSY"),
        (("LOADING", "Timeout connecting to server"), "LOADING"),
        (("Timeout reading from socket",), "Timeout reading"),
        (("refused", "reset"), "reset"),
    ],
)
def test_a_try_that_the_deadline_ended_does_not_replace_the_cause(reasons, told):
    calls = Calls.__new__(Calls)
    calls.servers, calls.where = Servers(settings_of("redis://h", {"timeout_s": 0.1}), *reasons), "h"
    with pytest.raises(StoreUnavailableError, match=told):
        calls.node_of(b"key")
