"""Removing the keys of a namespace from Redis, and of none that is made under its name meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tidegate.sinks.redis_answers import Call, plain
from tidegate.sinks.redis_calls import Calls
from tidegate.sinks.redis_keys import meta_key, owner_key, patterns

KEYS_AT_ONCE = 1_000


def made_here(calls: Calls, namespace: str) -> bytes:
    """The uuid of the namespace that is here, made or being made; empty: none is."""
    return _stands(calls, [meta_key(namespace)], b"uuid")[0]


def remove_namespace(calls: Calls, namespace: str, uuid: bytes) -> int | None:
    """Remove every key of it, its key groups' too; how many there were, or None as ``remove_groups``."""
    own, _ = patterns(namespace)
    beside = _remove(calls, namespace, own, b"uuid", uuid)
    of_groups = None if beside is None else remove_groups(calls, namespace, uuid)
    return None if beside is None or of_groups is None else beside + of_groups


def remove_groups(calls: Calls, namespace: str, uuid: bytes) -> int | None:
    """Remove every key of its key groups, whatever it is; how many there were.

    None: a namespace of another uuid was made under the name meanwhile, and nothing of it was removed. May be
    repeated.
    """
    _, of_groups = patterns(namespace)
    return _remove(calls, namespace, of_groups, b"u", uuid)


def _remove(calls: Calls, namespace: str, pattern: str, field: bytes, uuid: bytes) -> int | None:
    """A namespace writes its uuid into the pointer first, and into each header before its rows. So while the
    pointer shows no other than ours, no header does; and where a header changes after that, its keys stay.
    """
    owned = defaultdict[bytes, list[bytes]](list)
    for key in calls.each_primary_scan(pattern):
        owned[owner_key(key)].append(key)
    owners = _stands(calls, list(owned), field)
    if made_here(calls, namespace) not in (b"", uuid):
        return None
    removals = []
    for (owner, keys), stands in zip(owned.items(), owners, strict=True):
        keys.sort(key=owner.__eq__)  # the owner goes last: until then it tells whose they are
        parts = [keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE)]
        removals += [Call(owner, "remove", (field, stands, *part)) for part in parts]
    if not all(calls.run(removals)):
        return None
    return sum(map(len, owned.values()))


def _stands(calls: Calls, keys: Sequence[bytes], field: bytes) -> list[bytes]:
    """What this field of each key holds; empty where there is none."""
    return [found or b"" for found in calls.run([plain(key, b"HGET", key, field) for key in keys])]
