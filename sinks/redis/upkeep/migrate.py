"""The move of a namespace in Redis to the format of this release: schemas, ``latest`` and the identity."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.redis.client.functions import FORMAT, library_name
from tidegate.sinks.redis.client.replies import Call
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import identity_call, in_parts, refuse_half_made, schemas_in
from tidegate.sinks.redis.upkeep.attempts import schema_parts
from tidegate.sinks.rules.reads import checked_format, decode, encode


def migrate(space: RedisNamespace, check: Callable[[Pointer], None]) -> int:
    """As ``SupportsMigrate.migrate``. Schemas first: either format has them with trees or without. One
    function call changes the pointer, so there is no half of it.
    """
    (fields,) = space.calls.run([identity_call(space.namespace)])
    refuse_half_made(space.where, fields)
    if None in fields:
        return 0
    identity = decode(space.where, fields[0], Identity)
    if identity.format >= FORMAT:
        return checked_format(space.where, identity, FORMAT).format
    check(space.pointer_of(identity))
    moved = msgspec.structs.replace(identity, format=FORMAT)
    schemas = schemas_in(space.where, space.ask("schemas"))
    for part in in_parts(schema_parts(schemas.values())):
        space.ask("put_schemas", *part)
    headers = [header_key(space.namespace, group) for group in range(identity.key_groups)]
    space.calls.run([Call(header, "present", ()) for header in headers])  # each server has the functions now
    space.ask("migrate", encode(moved), library_name().encode())
    return identity.format
