"""The advice where no answer came: TLS only where TLS can be the cause."""

import pytest

from tidegate.sinks.redis.client.replies import RetryLater, no_answer

CUT, RESET = (
    "a:1: Connection closed by server",
    "a:1: Error 104 while writing to socket. Connection reset by peer",
)
ASKS, LACKS, LARGE = "the URL asks for TLS", "if the server speaks TLS", "proto-max-bulk-len"
ADVICE = [
    ("redis", CUT, False, LACKS),
    ("redis", CUT, True, LARGE),
    ("redis", RESET, True, LARGE),
    ("redis", "Error 111 connecting to a:1. Connection refused.", False, None),
    ("redis", "a:1: LOADING Redis is loading the dataset in memory", True, None),
    ("rediss", CUT, False, ASKS),
    ("rediss", "Timeout connecting to server", False, ASKS),
    ("rediss", "[SSL: WRONG_VERSION_NUMBER] wrong version number", False, ASKS),
    ("rediss", CUT, True, LARGE),
    ("rediss", RESET, True, LARGE),
    ("rediss", "Error 111 connecting to a:1. Connection refused.", False, None),
    ("rediss", "Error -2 connecting to a:1. Name or service not known.", False, None),
    ("rediss", "a:1: LOADING Redis is loading the dataset in memory", True, None),
    ("rediss", "a:1: BUSY Redis is busy running a script", True, None),
    ("rediss", "Redis is loading the dataset in memory", False, None),
]


@pytest.mark.parametrize("scheme, cause, answered, advice", ADVICE)
def test_tls_is_named_only_where_it_can_be_the_cause(scheme, cause, answered, advice):
    error = str(
        no_answer(f"store {scheme}://a:1, namespace n", 5.0, RetryLater(cause), has_answered=answered)
    )
    assert [each for each in (ASKS, LACKS, LARGE) if each in error] == [advice] * (advice is not None)
