"""The noted attempts of a namespace in Redis: beside the pointer, and in the headers of its key groups.

A version's rows are written under a name that contains their attempt. Their seal renames them to
the name that is read, so the rows of two attempts never mix. A seal is refused where another
attempt of its version was sealed, or where its own was discarded. On a Cluster the pointer's server
may lose a note while another server keeps the later seal: then the headers are the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.sinks.records import Stamp
from tidegate.sinks.redis.client.replies import Call, Refused, plain
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.reads import in_parts, number, number_in, readable
from tidegate.sinks.redis.upkeep.sweep import unlink_unsealed
from tidegate.sinks.rules.attempts import DISCARDED, DISCARDED_MAX
from tidegate.sinks.rules.schemas import stored_schema
from tidegate.wal.record import TableSchema


def schema_parts(schemas: Iterable[TableSchema]) -> list[bytes]:
    """Return ids and schemas as arguments of ``put_schemas``."""
    return [part for schema in schemas for part in (schema.schema_id.encode(), stored_schema(schema))]


def begin(space: RedisNamespace, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
    """As ``Attempts.begin``; note and schemas are sent together."""
    noted = number(epoch), number(stamp.version), number(stamp.decided_at_us), stamp.attempt.encode()
    calls = [
        *(Call(space.meta, "put_schemas", (space.uuid, *part)) for part in in_parts(schema_parts(schemas))),
        Call(space.meta, "begin", (space.uuid, *noted)),
    ]
    replies = space.calls.few(calls)
    for reply in replies:
        if isinstance(reply, Refused):
            raise space.refused(reply)
    return int(replies[-1]) == 1


def begun(space: RedisNamespace) -> list[Stamp]:
    """As ``Attempts.begun``."""
    discarded, *notes = space.ask("begun")
    stamps = {}
    for version, note in zip(notes[::2], notes[1::2], strict=True):
        number_of, at_us, attempt = _parts(space, b"%b %b" % (version, note))
        stamps[number_of, attempt] = Stamp(number_of, at_us, attempt)
    visible = space.pointer().visible
    for note in filter(None, discarded.split(b",")):
        version, at_us, _ = _parts(space, note)
        stamps[version, DISCARDED] = Stamp(version, at_us, DISCARDED)
    if space.servers.settings.kind == "cluster":
        for note in _sealed_last(space):
            version, at_us, attempt = _parts(space, note)
            stamps[version, attempt] = Stamp(version, at_us, attempt)
    return sorted(
        (stamp for stamp in stamps.values() if stamp.version > visible),
        key=lambda stamp: (stamp.version, stamp.decided_at_us),
    )


def _sealed_last(space: RedisNamespace) -> set[bytes]:
    """Return the headers' notes of the newest version sealed there, which a pointer's loss does not
    affect.
    """
    keys = [header_key(space.namespace, group) for group in range(space.made.key_groups)]
    notes = space.calls.run([plain(key, b"HGET", key, b"sealed") for key in keys])
    return {note for note in notes if note}


def _parts(space: RedisNamespace, note: bytes) -> tuple[int, int, str]:
    with readable(space.where, "a note of an attempt", note):
        version, at_us, attempt = note.split(b" ", 2)
        return number_in(version), number_in(at_us), attempt.decode()


def discard(space: RedisNamespace, lost: Sequence[Stamp], epoch: int) -> None:
    """As ``Attempts.discard``: refuse at the pointer and in every key group, then drop the changes."""
    lowest = min(stamp.version for stamp in lost)
    parts = [
        part
        for stamp in lost
        for part in (number(stamp.version), number(stamp.decided_at_us), stamp.attempt.encode())
    ]
    space.ask("refuse_attempts", number(epoch), number(DISCARDED_MAX), *parts)
    attempts = [stamp.attempt.encode() for stamp in lost]
    groups = range(space.made.key_groups)
    args = number(lowest), number(DISCARDED_MAX), *attempts
    with space.relying_on(space.server_ids()):  # also on servers not yet compared with the log
        space.asked([space.of_group(group, "discard", *args) for group in groups])
    unlink_unsealed(space, lost)
    space.ask("forget_begun", number(lowest))
