"""A call, and the meaning of its reply, for ``calls.py`` and ``aio/calls.py``. Pure."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import redis
from redis import exceptions

from tidegate.base.urls import over_its_time
from tidegate.errors import (
    ConfigError,
    CorruptError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    TidegateError,
    refused_to_write,
)
from tidegate.sinks.redis.client.functions import call_head, readers, script_of

FLIGHT_BYTES = 256 * 1024
FLIGHT_CALLS = 500
FEW_CALLS = 2  # so the first and the last are all of them
"""Up to this number of calls take the fast path: a read of the pointer together with one of rows."""

NON_LOCAL = "non local key"
OPEN_SLOT = (
    "the slot of a key moves to another server, and the call is refused until it has moved;"
    " `redis-cli --cluster check HOST:PORT` lists slots that were left open, `redis-cli --cluster fix"
    " HOST:PORT` closes them"
)
REPLICA = "replica"
"""A server that follows another one, in the place of its id."""
IS_REPLICA = (
    "it is a replica now, and tidegate uses primaries only: connect to its primary, which `INFO replication`"
    " names there, or through Sentinels; if no other server took its place, `REPLICAOF NO ONE` makes it a"
    " primary"
)
CROSS_SLOT = "CROSSSLOT"
"""The keys of one call are in several slots, on a server that is part of a Cluster, or in front of one."""
NO_REPLICAS = "NOREPLICAS"
"""Fewer replicas than ``min-replicas-to-write``: a writer tries again, a reader does without a lease."""
DENIED = (exceptions.AuthenticationError, exceptions.NoPermissionError)
LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
OUT_OF_MEMORY = (
    "its memory is full: set maxmemory-policy noeviction if it is another, and raise maxmemory, or free some"
    " (`tidegate vacuum`, smaller keep_versions); with noeviction the visible version is unchanged"
)
NOT_SAVED = (
    "it cannot save its data (MISCONF): check its disk, which is full or failing; the visible version"
    " is unchanged"
)
CUT_BY_SERVER = ("losed by server", "reset by peer", "onnection lost")
NO_REPLY = "bytes that are no reply of Redis"
LATE_REPLY = "Timeout reading"
NOT_IN_TIME = "no connection in time"
NOT_FOUND_IN_TIME = "the servers were not found in time"
NO_TIME_LEFT = "no time was left for a request"
NO_REPLY_LEFT = "no reply in time"
CUT_OFF = (LATE_REPLY, "Timeout connecting", NOT_IN_TIME, NOT_FOUND_IN_TIME, NO_TIME_LEFT, NO_REPLY_LEFT)
"""Words of a try that the deadline ended: they do not name its cause."""
TOO_LARGE = (
    "a server closes a connection without a word if a reply is larger than client-output-buffer-limit normal,"
    " if a request is larger than proto-max-bulk-len or client-query-buffer-limit, or when maxmemory-clients"
    " is reached: raise it there, or read fewer keys at once"
)
NOBODY_THERE = ("refused", "unreachable", "not known", "no route", "name resolution", "loading")
"""The words of errors that a server without TLS, or with it, does not cause."""
UNREACHED = (
    "nothing that is visible or decided is lost by that. Look whether its server runs and can be reached at"
    " this address (`tidegate doctor`); then read again, or start a query that has ended"
)


class Effect(enum.Enum):
    """The effect of an error reply. An unknown one proves nothing, and counts as ``LATER``."""

    ELSEWHERE = "another server has taken over: its connections are closed, its name is looked up again"
    LATER = "the server does nothing at present: the same call again, until its deadline"
    LOGIN = "this login may not: ConfigError at once, and the next call tries again"
    FULL = "no room for writes: StoreUnavailableError at once, reads go on"
    MISTAKE = "the server never takes this call: ConfigError at once"
    DAMAGE = "the value at the key is not what a release writes: CorruptError at once"


WORDS: tuple[tuple[str, Effect], ...] = (
    ("READONLY", Effect.ELSEWHERE),
    ("MASTERDOWN", Effect.ELSEWHERE),
    ("UNBLOCKED", Effect.ELSEWHERE),  # a blocked read was ended, since the server is a replica now
    ("MOVED", Effect.LATER),  # one slot of a server that keeps the others
    ("ASK", Effect.LATER),
    ("TRYAGAIN", Effect.LATER),
    ("CLUSTERDOWN", Effect.LATER),
    ("LOADING", Effect.LATER),
    ("BUSY", Effect.LATER),  # a script of anybody
    ("NOREPLICAS", Effect.LATER),  # fewer replicas than min-replicas-to-write
    ("NOAUTH", Effect.LOGIN),
    ("WRONGPASS", Effect.LOGIN),
    ("NOPERM", Effect.LOGIN),
    ("DENIED", Effect.LOGIN),  # a server without a password, of another machine
    ("OOM", Effect.FULL),
    ("MISCONF", Effect.FULL),
    ("WRONGTYPE", Effect.DAMAGE),
    ("CROSSSLOT", Effect.MISTAKE),
    ("NOPROTO", Effect.MISTAKE),
)
"""The effect of an error reply by its first word."""
PARTS: tuple[tuple[str, Effect], ...] = (
    ("max number of clients", Effect.LATER),
    ("non local key", Effect.LATER),  # of a slot that moves
    ("user executing the script", Effect.LOGIN),
    ("unauthenticated", Effect.LOGIN),  # of a request of more than 10 words
    ("invalid password", Effect.LOGIN),
    ("invalid username-password", Effect.LOGIN),
    ("no password is set", Effect.LOGIN),
    ("without any password configured", Effect.LOGIN),
    ("wrong number of arguments", Effect.MISTAKE),
    ("unknown command", Effect.MISTAKE),
    ("unknown subcommand", Effect.MISTAKE),
    ("syntax error", Effect.MISTAKE),
    ("rotocol error", Effect.MISTAKE),
    ("DB index", Effect.MISTAKE),
    ("compiling", Effect.MISTAKE),  # of a function or a script
    ("support disabled", Effect.MISTAKE),
    ("not allowed in cluster mode", Effect.MISTAKE),
    ("attempt to ", Effect.DAMAGE),  # Lua, where a field is not what a release writes there
    ("bad argument", Effect.DAMAGE),
    ("not an integer", Effect.DAMAGE),
)
"""The effect of another error reply, by words in it."""
CUT: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MovedError, "MOVED"),  # a kind of AskError
    (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.MasterDownError, "MASTERDOWN"),  # a kind of ClusterDownError
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "NOAUTH"),
)
"""The first word of a reply, which redis-py cuts where it has a class for it."""
PASSING = (Effect.ELSEWHERE, Effect.LATER)


def effect_of(error: Exception) -> Effect:
    """Return the effect of an error reply.

    >>> effect_of(exceptions.ResponseError("BUSY Redis is busy running a script."))
    <Effect.LATER: 'the server does nothing at present: the same call again, until its deadline'>
    """
    message = str(error)
    word = next((word for kind, word in CUT if isinstance(error, kind)), message.partition(" ")[0])
    for begin, effect in WORDS:
        if word == begin:
            return effect
    return next((effect for part, effect in PARTS if part in message), Effect.LATER)


def passes(error: Exception) -> bool:
    """Return whether the same call may succeed later, at this server or at another one."""
    return effect_of(error) in PASSING


def is_refusal(error: Exception) -> bool:
    """Return whether a server has answered, and refuses the same request later, too."""
    return isinstance(error, (redis.ResponseError, *DENIED)) and not passes(error)


class Refused(NamedTuple):
    """A function's refusal: its code (``lua/calls.lua``) and the detail."""

    code: str
    detail: str


class Call(NamedTuple):
    """One command.

    A function has its ``name``, and gets the server's id as an argument if it is ``at_server``;
    otherwise ``args`` are the bytes to send, then the command and the number of its words. ``server``: the
    only one that may answer. ``more``: the keys besides ``key``, which one server takes in one call unless it
    is part of a Cluster.
    """

    key: bytes
    name: str
    args: tuple[Any, ...]
    at_server: bool = False
    server: bytes = b""
    more: tuple[bytes, ...] = ()


class RetryLater(Exception):  # noqa: N818 - drives a retry
    """Some calls have no answer yet; the message has the reason."""


class Cause:
    """The last reason of a retry but for the deadline's own, which names nothing; ``tenacity`` calls it."""

    def __init__(self) -> None:
        self._named: BaseException | None = None

    def __call__(self, attempt: Any) -> None:
        error = attempt.outcome.exception()
        if not any(said in str(error) for said in CUT_OFF):
            self._named = error

    def of(self, last: RetryLater) -> RetryLater:
        return self._named if isinstance(self._named, RetryLater) else last


class ServerState(NamedTuple):
    """The id of a server that is not the expected one, or ``replica``."""

    server_id: bytes


class NextAction(enum.Enum):
    """The step before the same call is sent again."""

    LOOK_AGAIN = "look again which server holds the key"
    LEAVE = "close the connections to this server, then look again"
    LOAD = "load the functions there"
    LOAD_SCRIPT = "load the script there"
    EVAL = "use no functions any more"


def pack(parts: tuple[bytes, ...] | list[bytes]) -> bytes:
    r"""Encode one command.

    >>> pack((b"GET", b"k"))
    b'*2\r\n$3\r\nGET\r\n$1\r\nk\r\n'
    """
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def plain(key: bytes, *parts: bytes) -> Call:
    """Return a command of Redis itself, for the server that holds the key."""
    return Call(key, "", (pack(parts), parts[0].decode(), len(parts)))


def encoded(call: Call, server_id: bytes, *, functions: bool) -> bytes:
    """Return the call's bytes on the wire.

    ``server_id``: the server that is meant, with the origin of the key group that moved there.
    Empty: the server replies with its id.
    """
    if not call.name:
        return call.args[0]  # type: ignore[no-any-return]
    head = call_head(call.name, functions=functions)
    name = () if functions else (call.name.encode(),)
    args = call.args
    if call.at_server:
        args = (args[0], server_id, *args[1:])
    if call.more:
        head = (*head[:-1], b"%d" % (1 + len(call.more)))
    return pack((*head, call.key, *call.more, *name, *args))


def answer_of(
    error: Exception, call: Call, where: str, address: object
) -> Refused | ServerState | NextAction:
    """Classify an error among the replies.

    ``WORDS`` and ``PARTS`` are the table. An ASK is not followed: while a slot moves, its keys are
    on both servers, and a function on the receiving one would take the keys that are still to come for
    absent. The sending one refuses such a call as a whole, so the call is repeated there until the slot has
    moved.

    Raises: StoreUnavailableError: the server's memory or disk is full. ConfigError: it refuses this
    user, or never takes this call. CorruptError: a key has a type or a number that no release writes.
    """
    message = str(error)
    if message.startswith("TG"):
        code, _, detail = message.partition(" ")
        if code != "TGSERVER" or call.server:
            return Refused(code, detail.split(" script: ")[0])
        return ServerState(detail.split()[0].encode()) if detail.strip() else NextAction.LOOK_AGAIN
    if (full := no_room(where, address, error)) is not None:
        raise full
    if call.name in ("lease", "release") and message.startswith(NO_REPLICAS):
        few = StoreUnavailableError(f"{where}: {address} refused to write: {message}")
        raise refused_to_write(few)
    effect = effect_of(error)
    if effect is Effect.LOGIN:
        user_error = denied(where, error)
        raise refused_to_write(user_error) if call.name and call.name not in readers() else user_error
    if isinstance(error, exceptions.NoScriptError):
        return NextAction.LOAD_SCRIPT
    if "not found" in message.lower() and "unction" in message:
        return NextAction.LOAD
    if barred(error):
        return NextAction.EVAL
    if call.more and (isinstance(error, exceptions.ClusterCrossSlotError) or message.startswith(CROSS_SLOT)):
        return Refused(CROSS_SLOT, message)
    if effect in PASSING:
        return NextAction.LEAVE if effect is Effect.ELSEWHERE else NextAction.LOOK_AGAIN
    if effect is Effect.DAMAGE:
        key = call.key.decode(errors="replace")
        remedy = "if somebody changed it, restore the store from a copy"
        if message.startswith("WRONGTYPE"):  # the reply does not name the key: a function uses several
            remedy = (
                f"or at another one that begins with {key.rpartition(':')[0]}: tidegate's own are hashes, and"
                " somebody wrote one that is none (`TYPE KEY`). Remove that key alone (`DEL KEY`), then"
                " `tidegate repair` writes what was there again from the log"
            )
        raise CorruptError(f"{where}: {address} cannot use the value at {key}: {message}; {remedy}")
    large = f"; {TOO_LARGE}" * ("bulk length" in message)
    raise ConfigError(f"{where}: {address} answered: {message}{large}")


def why_again(address: object, error: Exception) -> str:
    """Describe why a call is sent again."""
    if isinstance(error, exceptions.ReadOnlyError) or str(error).startswith(f"TGSERVER {REPLICA}"):
        return f"{address}: {IS_REPLICA}"
    moving = isinstance(error, exceptions.AskError | exceptions.TryAgainError) or NON_LOCAL in str(error)
    return f"{address}: {OPEN_SLOT if moving else error}"


def origin_in(refused: Refused) -> bytes:
    """Return the server where a refused, moved key group was compared; b'': another refusal."""
    _, moved, origin = refused.detail.partition(" moved from ")
    return origin.encode() if moved and refused.code == "TGLOST" else b""


def no_room(where: str, address: object, error: Exception) -> TidegateError | None:
    """Return the error for a server out of memory or disk, which takes no writes now; None: another error."""
    message, cause = str(error), ""
    if isinstance(error, exceptions.OutOfMemoryError) or message.startswith("OOM"):
        cause = OUT_OF_MEMORY
    if message.startswith("MISCONF"):
        cause = NOT_SAVED
    if not cause:
        return None
    return refused_to_write(StoreUnavailableError(f"{where}: {address} refused to write: {cause}"))


def refused_command(where: str, address: object, error: Exception) -> TidegateError:
    """Return the error for a command that a server refuses for good, such as INFO of a full one."""
    if effect_of(error) is Effect.LOGIN:
        return denied(where, error)
    return no_room(where, address, error) or ConfigError(f"{where}: {address} answered: {error}")


def why_not_found(where: str, error: Exception) -> str:
    """Return why no server is found now. Raises: ConfigError: all servers that are asked refuse this user."""
    if is_refusal(error):
        raise refused_command(where, "a server", error) from error
    return str(error) or type(error).__name__


def barred(error: Exception) -> bool:
    """Return whether Functions are unavailable here (on an older server, or a managed one)."""
    message = str(error).lower()
    ours = "function" in message or "fcall" in message
    return "unknown command" in message or (ours and "permission" in message)


def load_script(name: str) -> bytes:
    """Return the command that loads the script with this function."""
    return pack((b"SCRIPT", b"LOAD", script_of(name).text))


# -- errors ---------------------------------------------------------------------------------------


def denied(where: str, error: Exception) -> ConfigError:
    """Return the error for a user without the rights."""
    return ConfigError(
        f"{where}: the server refuses this user: {error}; check the user, the password and its ACL"
    )


def not_compared(where: str, address: object) -> StoreNotVerifiedError:
    """Return the error for a server that the pointer does not list."""
    return StoreNotVerifiedError(
        f"{where}: {address} restarted or was promoted, and was not compared with the log"
        " yet: its last writes may be lost. A running query compares it within seconds, `tidegate"
        " repair` at once; then read again"
    )


def takes_no_functions(where: str, address: object, error: Exception) -> TidegateError:
    """Return the error for a server on which the functions cannot be loaded."""
    if (full := no_room(where, address, error)) is not None:
        return full
    if effect_of(error) is Effect.LOGIN:
        return denied(where, error)
    if "DB index" in str(error):
        return ConfigError(
            f"{where}: {address} has no such database: {error}; correct the number after the '/'"
        )
    return ConfigError(f"{where}: {address} does not take our functions: {error}")


def no_answer(
    where: str,
    timeout_s: float,
    later: RetryLater,
    certificate: str | None = None,
    *,
    has_answered: bool = False,
) -> StoreUnavailableError | ConfigError:
    """Return the error for calls without an answer in time: ConfigError where a certificate has expired.

    ``certificate``: the file of this client's certificate. ``has_answered``: a server has answered before, so
    that TLS is not the cause.
    """
    text, tls = (
        f"{where}: no answer within {timeout_s} s: {str(later).rstrip('.')}",
        "rediss" in where.partition("://")[0],
    )
    if tls and (renew := over_its_time(str(later), certificate)):
        return ConfigError(f"{text}; {renew}")
    cut = any(said in str(later) for said in CUT_BY_SERVER)
    if has_answered:
        text += f" ({TOO_LARGE})" * cut
    elif tls and not any(said in str(later).lower() for said in NOBODY_THERE):
        text += " (the URL asks for TLS: does the server speak it?)"
    elif not tls and (cut or NO_REPLY in str(later)):
        text += " (if the server speaks TLS, the URL begins with rediss)"
    return StoreUnavailableError(f"{text}; {UNREACHED}")
