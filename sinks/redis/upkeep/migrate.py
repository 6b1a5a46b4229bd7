"""The move of a namespace in Redis to the format of this release: ``latest`` is written, and the identity."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.redis.client.functions import FORMAT, library_name
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import identity_call
from tidegate.sinks.rules.reads import checked_format, decode, encode


def migrate(space: RedisNamespace, check: Callable[[Pointer], None]) -> int:
    """As ``SupportsMigrate.migrate``. One function call changes the pointer, so there is no half of it."""
    (fields,) = space.calls.run([identity_call(space.namespace)])
    if None in fields:
        return 0
    identity = decode(space.where, fields[0], Identity)
    if identity.format >= FORMAT:
        return checked_format(space.where, identity, FORMAT).format
    check(space.pointer_of(identity))
    moved = msgspec.structs.replace(identity, format=FORMAT)
    space.ask("migrate", encode(moved), library_name().encode())
    return identity.format
