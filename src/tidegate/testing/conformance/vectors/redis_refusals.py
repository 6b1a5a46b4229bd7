"""Vectors of refusals: the errors of a Redis server, and what a reader does with each. Pure.

Errors of an open reader are those of ``tidegate.connect``, by the same functions.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions

from tidegate.errors import StoreUnavailableError, TidegateError
from tidegate.sinks.redis.client.replies import (
    Call,
    NextAction,
    Refused,
    ServerState,
    answer_of,
    not_compared,
    takes_no_functions,
)
from tidegate.sinks.redis.reads import refusal
from tidegate.testing.conformance.vectors import (
    NO_LEASE,
    OTHER_SERVER,
    READ_POINTER,
    REFUSE,
    SEND_AGAIN,
)

ID = "8e5b4a1d0c9f3e7a6b2d5c8f1e4a7b0d3c6f9e2a"
UUID = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
HEADER = "tg:{flights/5}:h"

REPLIES: tuple[tuple[str, str, type[Exception]], ...] = (
    ("pointer", "TGNONE ", exceptions.ResponseError),
    ("pointer", f"TGOTHER {UUID}", exceptions.ResponseError),
    ("pointer", "TGNUMBER 4503599627370496", exceptions.ResponseError),
    (
        "pointer",
        "NOPERM this user has no permissions to run the 'fcall_ro' command",
        exceptions.NoPermissionError,
    ),
    ("pointer", "BUSY Redis is busy running a script.", exceptions.ResponseError),
    ("pointer", "ERR Function not found", exceptions.ResponseError),
    ("read", f"TGOTHER {UUID}", exceptions.ResponseError),
    ("read", f"TGSERVER {ID}", exceptions.ResponseError),
    ("read", "TGSERVER replica", exceptions.ResponseError),
    ("read", "TGEXPIRED 7", exceptions.ResponseError),
    ("read", f"TGLOST {HEADER}", exceptions.ResponseError),
    ("read", "TGLOST tg:{flights/5}:aircraft:b", exceptions.ResponseError),
    ("read", f"TGLOST {HEADER} lost layer 7 of aircraft", exceptions.ResponseError),
    ("read", f"TGLOST {HEADER} moved from {ID}", exceptions.ResponseError),
    ("read", "TGLISTS 8000000", exceptions.ResponseError),
    ("read", "TGUNKNOWN of a later release", exceptions.ResponseError),
    ("scan", f"TGOTHER {UUID}", exceptions.ResponseError),
    ("scan", f"TGSERVER {ID}", exceptions.ResponseError),
    ("scan", "TGSERVER replica", exceptions.ResponseError),
    ("scan", "TGEXPIRED 7", exceptions.ResponseError),
    ("scan", f"TGLOST {HEADER}", exceptions.ResponseError),
    ("scan", "TGCURSOR 7:0", exceptions.ResponseError),
    (
        "scan",
        "NOPERM this user has no permissions to run the 'fcall_ro' command",
        exceptions.NoPermissionError,
    ),
    ("scan", "LOADING Redis is loading the dataset in memory", exceptions.BusyLoadingError),
    ("scan", "ERR Function not found", exceptions.ResponseError),
    ("lease", f"TGOTHER {UUID}", exceptions.ResponseError),
    ("lease", "TGEXPIRED 7", exceptions.ResponseError),
    ("lease", "TGAHEAD 9", exceptions.ResponseError),
    ("lease", "TGLEASE ", exceptions.ResponseError),
    ("lease", "TGLEASES 4000", exceptions.ResponseError),
    ("lease", "OOM command not allowed when used memory > 'maxmemory'", exceptions.OutOfMemoryError),
    ("lease", "MISCONF Errors writing to the AOF file", exceptions.ResponseError),
    ("lease", "NOREPLICAS Not enough good replicas to write.", exceptions.ResponseError),
    ("lease", "READONLY You can't write against a read only replica.", exceptions.ReadOnlyError),
    ("lease", "BUSY Redis is busy running a script.", exceptions.ResponseError),
    ("lease", "NOPERM this user has no permissions to run the 'fcall' command", exceptions.NoPermissionError),
    (
        "read",
        "NOPERM this user has no permissions to run the 'fcall_ro' command",
        exceptions.NoPermissionError,
    ),
    ("read", "NOAUTH Authentication required.", exceptions.AuthenticationError),
    ("read", "DENIED Redis is running in protected mode", exceptions.ResponseError),
    (
        "read",
        "WRONGPASS invalid username-password pair or user is disabled.",
        exceptions.AuthenticationError,
    ),
    ("read", "READONLY You can't write against a read only replica.", exceptions.ReadOnlyError),
    ("read", "UNBLOCKED force unblock from blocking operation", exceptions.ResponseError),
    ("read", "NOREPLICAS Not enough good replicas to write.", exceptions.ResponseError),
    ("read", "ERR max number of clients reached", exceptions.ResponseError),
    ("read", "ERR DB index is out of range", exceptions.ResponseError),
    ("read", "ERR wrong number of arguments for 'fcall_ro' command", exceptions.ResponseError),
    ("read", "MOVED 3999 127.0.0.1:6381", exceptions.MovedError),
    ("read", "ASK 3999 127.0.0.1:6381", exceptions.AskError),
    ("read", "TRYAGAIN Multiple keys request during rehashing of slot", exceptions.TryAgainError),
    ("read", "CLUSTERDOWN The cluster is down", exceptions.ClusterDownError),
    (
        "read",
        "ERR Script attempted to access a non local key in a cluster node script: f_read.",
        exceptions.ResponseError,
    ),
    ("read", "LOADING Redis is loading the dataset in memory", exceptions.BusyLoadingError),
    ("read", "BUSY Redis is busy running a script.", exceptions.ResponseError),
    ("read", "MASTERDOWN Link with MASTER is down", exceptions.MasterDownError),
    ("read", "ERR Function not found", exceptions.ResponseError),
    ("read", "WRONGTYPE Operation against a key holding the wrong kind of value", exceptions.ResponseError),
    ("read", "ERR an error of a later release", exceptions.ResponseError),
)
"""The function that was called, the error reply, and the class that the client library makes of it."""


def refusal_vectors() -> list[dict[str, Any]]:
    """Return error replies with the reader's next step, and the error that it raises if that is no help."""
    return [{"call": call, "reply": text, **_outcome(call, text, kind)} for call, text, kind in REPLIES]


def _outcome(name: str, text: str, kind: type[Exception]) -> dict[str, Any]:
    call = Call(HEADER.encode(), name, (), at_server=name in ("read", "scan"))
    try:
        answer = answer_of(_raised(kind, text), call, "here", "server")
    except TidegateError as error:
        if name == "lease" and error.writes_refused:
            return {"does": NO_LEASE}
        return {"does": REFUSE, "error": type(error).__name__, **_final(error)}
    match answer:
        case ServerState(b"replica") | NextAction.LOOK_AGAIN | NextAction.LEAVE:
            return {"does": SEND_AGAIN, "error": StoreUnavailableError.__name__}
        case ServerState():
            return {"does": OTHER_SERVER, "error": type(not_compared("here", "server")).__name__}
        case NextAction():  # the writer's library is not on this server
            return {
                "does": SEND_AGAIN,
                "error": type(takes_no_functions("here", "server", KeyError())).__name__,
            }
    return _refused(answer)


def _raised(kind: type[Exception], text: str) -> Exception:
    """Make the client library's error: it cuts the first word of those that it knows."""
    if kind is exceptions.ResponseError or issubclass(kind, exceptions.AuthenticationError):
        return kind(text)
    return kind(text.partition(" ")[2])


def _final(error: TidegateError) -> dict[str, bool]:
    """Return whether the error ends a wait; any other one passes."""
    return {"final": True} if error.final else {}


def _refused(answer: Refused) -> dict[str, Any]:
    made = refusal("here", answer, opened=True)
    error = type(made).__name__
    if made.writes_refused:
        return {"does": NO_LEASE}
    if answer.code == "TGEXPIRED":
        return {"does": READ_POINTER, "error": error}
    outcome: dict[str, Any] = {"does": REFUSE, "error": error, **_final(made)}
    if (new := type(refusal("here", answer, opened=False)).__name__) != error:
        outcome["error_of_connect"] = new
    return outcome
