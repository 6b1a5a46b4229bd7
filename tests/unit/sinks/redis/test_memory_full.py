"""A Redis that takes no writes now, for want of memory or of a disk: asked again, not refused. No server."""

from __future__ import annotations

import pytest
from redis import exceptions

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.redis.client.replies import Call, NextAction, answer_of, takes_no_functions

CALL = Call(b"tg:{n}:meta", "publish", (b"uuid",))
SNAPSHOT = (
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."
    " Commands that may modify the data set are disabled, because this instance is configured to report"
    " errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option)."
)
APPENDING = "MISCONF Errors writing to the AOF file: No space left on device"
FULL = "command not allowed when used memory > 'maxmemory'."


@pytest.mark.parametrize(
    "error, cause",
    [
        (exceptions.ResponseError(SNAPSHOT), "check its disk"),
        (exceptions.ResponseError(APPENDING), "check its disk"),
        (
            exceptions.ResponseError(f"{APPENDING} script: f_publish, on @user_function:1."),
            "check its disk",
        ),
        (exceptions.OutOfMemoryError(FULL), "its memory is full"),
        (exceptions.ResponseError(f"OOM {FULL}"), "its memory is full"),
    ],
)
def test_a_server_without_room_is_not_there_now(error, cause):
    with pytest.raises(StoreUnavailableError, match=cause):
        answer_of(error, CALL, "store", "host:6379")
    loading = takes_no_functions("store", "host:6379", error)
    assert isinstance(loading, StoreUnavailableError)
    assert cause in str(loading)


def test_what_is_not_known_proves_nothing_and_is_sent_again():
    error = exceptions.ResponseError("no such thing")
    assert answer_of(error, CALL, "store", "host:6379") is NextAction.LOOK_AGAIN


def test_what_a_server_never_takes_is_refused():
    with pytest.raises(ConfigError, match="answered: syntax error"):
        answer_of(exceptions.ResponseError("syntax error"), CALL, "store", "host:6379")
