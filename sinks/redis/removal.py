"""The removal of a namespace's keys from Redis, by what the namespace itself lists.

A server may hold many other keys, so nothing is scanned unless a person asks for it. The headers list
layers and bases; the hash of tables, the notes of attempts and the catalog name all other places where
a writer may have left rows. A namespace that was made under the name since is spared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.keys.groups import KEY_GROUPS_MAX
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.replies import Call, plain
from tidegate.sinks.redis.keys import (
    base_key,
    beside,
    changes_key,
    dropped_key,
    header_key,
    meta_key,
    owner_key,
    patterns,
    rebuilt_key,
)
from tidegate.sinks.redis.reads import in_parts, number
from tidegate.sinks.rules.reads import windows

REMOVED_AT_ONCE = 1_000
VERSIONS_MAX = 100
"""The newest versions of the catalog whose late rows are looked for."""
OWN = ("catalog", "schemas", "leases", "versions", "tables", "locality")
"""The keys beside the pointer."""

Attempts = dict[tuple[int, bytes], frozenset[str]]
"""Version and attempt, with the tables that it may have written."""


class Places(NamedTuple):
    """The places where a namespace may have keys that no header lists."""

    tables: frozenset[str]
    attempts: Attempts


# -- places ---------------------------------------------------------------------------------------


def places(calls: Calls, namespace: str) -> Places:
    """Read the places from the notes of the namespace; what cannot be decoded is left out."""
    meta, catalog, tables = meta_key(namespace), beside(namespace, "catalog"), beside(namespace, "tables")
    pairs, noted = calls.run([plain(meta, b"HGETALL", meta), plain(tables, b"HKEYS", tables)])
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    visible = fields.get(b"visible", b"0")
    newest = int(visible) if visible.isdigit() else 0
    versions = [number(version) for version in range(newest, max(newest - VERSIONS_MAX, 0), -1)]
    contents = calls.run([plain(catalog, b"HMGET", catalog, *versions)])[0] if versions else []
    entries = [entry for content in contents if (entry := _entry(content))]
    names = {_text(name) for name in noted}.union(*(entry.tables for entry in entries[:1]))
    known = frozenset(names)
    attempts = {(entry.version, entry.attempt.encode()): frozenset(entry.changes) for entry in entries}
    attempts |= dict.fromkeys(_begun(fields), known)
    return Places(known, attempts)


class _Entry(msgspec.Struct):
    """The part of a catalog's entry that names rows."""

    version: int
    attempt: str
    tables: dict[str, object]
    changes: dict[str, int]


def _entry(content: bytes | None) -> _Entry | None:
    try:
        return json_decoder(_Entry).decode((content or b"").partition(b" ")[2])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _begun(fields: Mapping[bytes, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the attempts of versions that were begun or discarded, and of fills."""
    notes = [
        (name.partition(b":")[2], note.partition(b" ")[2])
        for name, note in fields.items()
        if name.startswith(b"begun:")
    ]
    fills, discarded = (fields.get(name, b"").split(b",") for name in (b"fills", b"discarded"))
    notes += [(version, attempt) for version, _, attempt in (note.partition(b" ") for note in fills)]
    notes += [(note.partition(b" ")[0], note.rpartition(b" ")[2]) for note in discarded]
    for version, attempt in notes:
        if version.isdigit():
            yield int(version), attempt


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _noted(known: Places) -> list[bytes]:
    """Encode the places as fields and values of a record, which ``_recorded`` decodes."""
    parts = [part for table in sorted(known.tables) for part in (b"table:" + table.encode(), b"")]
    for (version, attempt), tables in sorted(known.attempts.items()):
        parts += [b"attempt:%d:%b" % (version, attempt), ",".join(sorted(tables)).encode()]
    return parts


def _recorded(record: Mapping[bytes, bytes]) -> Places:
    tables: set[str] = set()
    attempts: Attempts = {}
    for field, value in record.items():
        kind, _, name = field.partition(b":")
        if kind == b"table":
            tables.add(_text(name))
        elif kind == b"attempt":
            version, _, attempt = name.partition(b":")
            attempts[int(version), attempt] = frozenset(_text(value).split(",")) - {""}
    # Also those that began after the places were read, before the drop.
    attempts |= dict.fromkeys(_begun(record), frozenset(tables))
    return Places(frozenset(tables), attempts)


def unlisted_keys(namespace: str, group: int, uuid: bytes, attempts: Attempts) -> Iterator[bytes]:
    """Yield the keys of a key group that attempts wrote or write, before their seal."""
    for (version, attempt), tables in attempts.items():
        under = b"%b:%b" % (uuid, attempt) if attempt else uuid
        for table in tables:
            yield changes_key(namespace, group, table, version, under)


# -- removal --------------------------------------------------------------------------------------


def made_here(calls: Calls, namespace: str) -> bytes:
    """Return the uuid of the namespace that exists here or is being created; empty: none."""
    return _fields(calls, [meta_key(namespace)], b"uuid")[0]


def drop_call(calls: Calls, namespace: str, uuid: bytes) -> Call:
    """Return the call that ends the namespace: its pointer becomes the record of its places."""
    return Call(meta_key(namespace), "drop", (uuid, *_noted(places(calls, namespace))))


def remove_left(calls: Calls, namespace: str, uuid: bytes, *, thorough: bool = False) -> bool | None:
    """Remove the keys of all namespaces of this name but the one that exists; return whether there were any.

    ``uuid``: the one that exists, or that existed; empty: none. None: another one was created under the
    name meanwhile, and nothing of it was removed. Repeatable. Without a record of the places, all key groups
    that a namespace may have are looked at.
    """
    existed = remove_dropped(calls, namespace, uuid)
    if existed is False:
        key_groups, tables = listed_tables(calls, namespace, KEY_GROUPS_MAX)
        existed = _remove_groups(calls, namespace, uuid, b"", key_groups, Places(tables, {}))
    if existed is None:
        return None
    meta, own = meta_key(namespace), [beside(namespace, name) for name in OWN]
    if made_here(calls, namespace) == b"" and calls.run([plain(meta, b"EXISTS", *own)])[0]:
        existed = True
        if not calls.run([Call(meta, "remove", (b"uuid", b"", *own))])[0]:
            return None
    if not thorough:
        return existed
    scanned = [_remove_scanned(calls, namespace, pattern, uuid) for pattern in patterns(namespace)]
    return None if None in scanned else existed or any(scanned)


def remove_dropped(calls: Calls, namespace: str, uuid: bytes) -> bool | None:
    """Finish the drops that were cut short, as ``remove_left``: those that left a record."""
    dropped = beside(namespace, "dropped")
    (uuids,) = calls.run([plain(dropped, b"HKEYS", dropped)])
    for each in uuids:
        record = dropped_key(namespace, each)
        (pairs,) = calls.run([plain(record, b"HGETALL", record)])
        fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
        key_groups = _key_groups(fields)
        if _remove_groups(calls, namespace, uuid, each, key_groups, _recorded(fields)) is None:
            return None
        calls.run([plain(record, b"UNLINK", record), plain(dropped, b"HDEL", dropped, each)])
    return bool(uuids)


class _Identity(msgspec.Struct):
    key_groups: int


def _key_groups(record: Mapping[bytes, bytes]) -> int:
    if not record:
        return 0  # it was removed, and its name in the list was not yet
    try:
        return json_decoder(_Identity).decode(record[b"identity"]).key_groups
    except (KeyError, msgspec.DecodeError):
        return KEY_GROUPS_MAX


def listed_tables(calls: Calls, namespace: str, key_groups: int) -> tuple[int, frozenset[str]]:
    """Return the number of key groups up to the last one with a header, and the tables that headers list."""
    last, tables = 0, set[str]()
    for first in range(0, key_groups, REMOVED_AT_ONCE):
        groups = range(first, min(first + REMOVED_AT_ONCE, key_groups))
        keys = [header_key(namespace, group) for group in groups]
        for group, names in zip(groups, calls.run([plain(key, b"HKEYS", key) for key in keys]), strict=True):
            last = group + 1 if names else last
            tables |= {_text(name[2:]) for name in names if name[:2] in (b"l:", b"b:")}
    return last, frozenset(tables)


def _remove_groups(
    calls: Calls, namespace: str, uuid: bytes, dropped: bytes, key_groups: int, known: Places
) -> bool | None:
    """Remove the keys of key groups, of any uuid but the existing one's; a page of key groups at a time.

    A namespace writes its uuid into the pointer first, and into each header before its rows. So a header
    that shows the uuid of a namespace made since is read before the pointer that shows it, too.
    """
    existed = False
    for groups in windows(range(key_groups)):
        keys = [header_key(namespace, group) for group in groups]
        replies = calls.run([plain(key, b"HGETALL", key) for key in keys])
        made = made_here(calls, namespace)
        if made not in (b"", uuid):
            return None
        removals = []
        for group, key, pairs in zip(groups, keys, replies, strict=True):
            header = dict(zip(pairs[::2], pairs[1::2], strict=True))
            owner = header.get(b"u", b"")
            if made and owner.partition(b"!")[0] == made:
                continue
            existed = existed or bool(header)
            left = dict.fromkeys(_keys_of(namespace, group, header, dropped, known))
            # The header is removed last: until then it proves the ownership.
            removals += [Call(key, "remove", (b"u", owner, *part)) for part in in_parts([*left, key])]
        # Otherwise the headers that changed are of another creator of this namespace, which removed the rest.
        if not all(calls.run(removals)) and made_here(calls, namespace) not in (b"", uuid):
            return None
    return existed


def _keys_of(
    namespace: str, group: int, header: Mapping[bytes, bytes], dropped: bytes, known: Places
) -> Iterator[bytes]:
    """Yield the keys that a header lists, and those of the places, which it may have lost."""
    uuid = header.get(b"u", dropped).partition(b"!")[0]
    for field, value in header.items():
        kind, _, name = field.partition(b":")
        if kind == b"l":
            versions = [int(version) for version in value.split(b",") if version.isdigit()]
            yield from (changes_key(namespace, group, _text(name), version, uuid) for version in versions)
        elif kind == b"b":
            yield base_key(namespace, group, _text(name))
        elif kind == b"r":
            table, _, token = name.partition(b":")
            yield rebuilt_key(namespace, group, _text(table), token)
    yield from (base_key(namespace, group, table) for table in known.tables)
    yield from unlisted_keys(namespace, group, uuid, known.attempts)
    sealed = {(version, b""): tables for (version, _), tables in known.attempts.items()}
    yield from unlisted_keys(namespace, group, uuid, sealed)


def _remove_scanned(calls: Calls, namespace: str, pattern: str, uuid: bytes) -> int | None:
    """Remove the keys of a pattern whose owner still shows the uuid; return their number, or None.

    Where a header changes after the check, its keys stay.
    """
    owned = defaultdict[bytes, list[bytes]](list)
    for key in calls.each_primary_scan(pattern):
        if not key.endswith(b"}:alias"):  # it names another namespace, and is not this one's
            owned[owner_key(key)].append(key)
    owners = _fields(calls, list(owned), b"u" if "/" in pattern else b"uuid")
    if made_here(calls, namespace) not in (b"", uuid):
        return None
    removals = []
    for (owner, keys), owner_uuid in zip(owned.items(), owners, strict=True):
        keys.sort(key=owner.__eq__)  # the owner is removed last, as above
        field = b"u" if owner.endswith(b":h") else b"uuid"
        removals += [Call(owner, "remove", (field, owner_uuid, *part)) for part in in_parts(keys)]
    if not all(calls.run(removals)):
        return None
    return sum(map(len, owned.values()))


def _fields(calls: Calls, keys: Iterable[bytes], field: bytes) -> list[bytes]:
    """Return this field of each key; empty where it is missing."""
    return [content or b"" for content in calls.run([plain(key, b"HGET", key, field) for key in keys])]
