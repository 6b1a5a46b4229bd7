"""The form of the reply of each function and command: the one place where it is checked. Pure.

A reply of another form is no answer: a reply of somebody else has shifted the connection, or another program
answers. So the connection is closed, and the call counts as unanswered. The content of a reply is checked
where it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from tidegate.sinks.redis.client.replies import NO_REPLY, Call

Fits = Callable[[Any, Call], bool]

Types = frozenset[type]

TEXTS: Types = frozenset({bytes})
TEXTS_OR_NIL: Types = frozenset({bytes, type(None)})
NUMBERS: Types = frozenset({int})
MIXED = "another program answers there, or a proxy mixes replies; connect to the server itself"


class WrongReplyError(redis.ConnectionError):
    """Bytes that are no reply to the call that waits for one. The connection is closed."""


def wrong_reply(call: Call) -> WrongReplyError:
    """Return the error for a reply of another form; nothing of it is shown."""
    name = call.name or command_of(call)
    return WrongReplyError(f"its reply to {name} has another form than replies to that: {MIXED}")


def no_reply() -> WrongReplyError:
    """Return the error for bytes that are no reply at all; nothing of them is shown: they may be a login."""
    return WrongReplyError(f"it sent {NO_REPLY}: {MIXED}")


def fits(call: Call, reply: Any) -> bool:
    """Return whether a reply, which is no error, has the form of replies to this call."""
    return SHAPES.get(call.name or command_of(call), _anything)(reply, call)


def command_of(call: Call) -> str:
    """Return the command of a call that names no function."""
    return call.args[1] if len(call.args) > 1 else "HSET"


# -- forms --------------------------------------------------------------------------------------------


def _a_number(reply: Any, _: Call) -> bool:
    return type(reply) is int


def _a_text(reply: Any, _: Call) -> bool:
    return type(reply) is bytes


def _list_of(reply: Any, types: Types) -> bool:
    return type(reply) is list and types.issuperset(map(type, reply))


def _texts(reply: Any, _: Call) -> bool:
    return _list_of(reply, TEXTS)


def _pairs(reply: Any, _: Call) -> bool:
    return _list_of(reply, TEXTS) and not len(reply) % 2


def _values(first: int) -> Fits:
    """Return the form of as many values as the call has arguments from this one on."""

    def values(reply: Any, call: Call) -> bool:
        if type(reply) is list and len(reply) == 1 == len(call.args) - first:  # as most reads
            return reply[0] is None or type(reply[0]) is bytes
        return _list_of(reply, TEXTS_OR_NIL) and len(reply) == len(call.args) - first

    return values


def _each(*types: type, more: type | None = None) -> Fits:
    """Return the form of a list with these types, and any number of ``more`` after them."""

    def each(reply: Any, _: Call) -> bool:
        if type(reply) is not list or len(reply) < len(types) or (more is None and len(reply) > len(types)):
            return False
        kinds = [type(part) for part in reply]
        return kinds[: len(types)] == list(types) and {more}.issuperset(kinds[len(types) :])

    return each


def _pointer(reply: Any, _: Call) -> bool:
    """Of eight fields, or nine with an entry; most are checked where they are decoded."""
    if type(reply) is not list or not 8 <= len(reply) <= 9 or type(reply[7]) is not bytes:
        return False
    return reply[7].isdigit() and (len(reply) == 8 or reply[8] is None or type(reply[8]) is bytes)


def _counted(reply: Any, _: Call) -> bool:
    return (
        type(reply) is list
        and not len(reply) % 2
        and TEXTS.issuperset(map(type, reply[::2]))
        and NUMBERS.issuperset(map(type, reply[1::2]))
    )


def _counted_many(reply: Any, call: Call) -> bool:
    return (
        type(reply) is list
        and len(reply) == 1 + len(call.more)
        and all(_counted(each, call) for each in reply)
    )


def _looked(reply: Any, call: Call) -> bool:
    return _list_of(reply, NUMBERS) and len(reply) == 1 + 2 * (len(call.args) - 2)


def _page(reply: Any, call: Call) -> bool:
    """A page of a scan: server, cursor, number of rows, rows."""
    return (
        type(reply) is list
        and [type(part) for part in reply] == [bytes, bytes, int, list]
        and _pairs(reply[3], call)
    )


def _keys(reply: Any, call: Call) -> bool:
    """A page of SCAN."""
    return type(reply) is list and len(reply) == 2 and type(reply[0]) is bytes and _texts(reply[1], call)


def _leases(reply: Any, call: Call) -> bool:
    head = _each(bytes, bytes, int, int, more=bytes)(reply, call)
    return head and not len(reply) % 4 and reply[0].isdigit()


def _begun(reply: Any, call: Call) -> bool:
    return _texts(reply, call) and len(reply) % 2 == 1


def _fields(reply: Any, call: Call) -> bool:
    """As many values as HMGET has fields."""
    return _list_of(reply, TEXTS_OR_NIL) and len(reply) == call.args[2] - 2


def _text_or_nil(reply: Any, _: Call) -> bool:
    return reply is None or type(reply) is bytes


def _number_or_nil(reply: Any, _: Call) -> bool:
    return reply is None or type(reply) is int


def _anything(_: Any, __: Call) -> bool:
    return True


def _created(reply: Any, _: Call) -> bool:
    return _list_of(reply, TEXTS_OR_NIL) and len(reply) == 2 and reply[0] is not None


SHAPES: dict[str, Fits] = {
    **dict.fromkeys(
        (
            *("ready", "claim", "heartbeat", "begin", "refuse_attempts", "forget_begun", "mark", "publish"),
            *("publish_filled", "put_entries", "resume", "forget", "forget_schemas", "put_schemas", "lease"),
            *(
                "release",
                "leftovers",
                "list_servers",
                "note_tables",
                "drop",
                "remove",
                "discard",
                "begin_fill",
            ),
            *("end_fill", "sweep", "stamp", "keep_lost", "begin_base", "put_bases", "end_rebuild"),
            *("note_moved", "sweep_rebuild", "set_alias", "drop_alias", "present"),
            *("HSET", "HDEL", "HLEN", "EXISTS", "UNLINK"),
        ),
        _a_number,
    ),
    "create": _created,
    "make": _a_text,
    "pointer": _pointer,
    "read": _values(4),
    "rows": _values(3),
    "scan": _page,
    "catalog": _texts,
    "schemas": _pairs,
    "begun": _begun,
    "leases": _leases,
    "announce": _each(int, bytes, int),
    "seal": _counted,
    "seal_again": _counted,
    "seal_many": _counted_many,
    "look": _looked,
    "header": _pairs,
    "merge": _each(int, bytes, int, int),
    "mergeable": _each(bytes, bytes, int),
    "expire": _each(bytes, int, int),
    "begin_rebuild": _each(bytes, int, more=bytes),
    "HGET": _text_or_nil,
    "HMGET": _fields,
    "HGETALL": _pairs,
    "HKEYS": _texts,
    "MEMORY": _number_or_nil,
    "XREAD": _anything,
    "INFO": _a_text,
    "SCAN": _keys,
}
"""By function, and by command of Redis."""
