"""The effects of error replies of Redis: the one table for writers, readers, mirrors and waits. Pure.

``conformance/vectors/refusals.json`` is made of it, for readers in other languages.
"""

from __future__ import annotations

import enum

from redis import exceptions


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
