"""The memory of a namespace in Redis by contents, from its own lists and INFO: no key is scanned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from tidegate.base.checks import number_of
from tidegate.sinks.records import Usage
from tidegate.sinks.redis.checks import ask_each, evicts, fields
from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.keys import base_key, beside, changes_key, header_key, meta_key
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.removal import OWN
from tidegate.sinks.redis.seals import headers
from tidegate.sinks.redis.upkeep.sweep import unlisted

BASE, KEPT, RETIRED, UNSEALED, NOTES = (
    "rows of the oldest readable version",
    "changes of newer versions",
    "changes of retired versions",
    "rows of versions that are not sealed",
    "catalog, schemas, leases, headers",
)
WAYS = {
    BASE: "fewer rows, or a larger maxmemory",
    KEPT: "a smaller keep_versions of the query: its next retirement merges them",
    RETIRED: "`tidegate vacuum`",
    UNSEALED: "`tidegate recover` makes a decided version visible; `tidegate vacuum` drops the others",
    NOTES: "a smaller keep_versions and max_leases",
}
OTHERS = "other namespaces are dropped by `tidegate drop`; other programs' keys are theirs"


def usage(space: RedisNamespace) -> Iterator[Usage]:
    """Yield rows and bytes by contents, by the servers' own estimate, then the rest of each server."""
    keys = _keys(space)
    own_keys = own_bytes = 0
    for contents, way in WAYS.items():
        of_kind = keys[contents]
        calls = [plain(key, b"MEMORY", b"USAGE", key) for key in of_kind]
        sizes = [size for size in space.calls.run(calls) if size is not None]
        own_keys, own_bytes = own_keys + len(sizes), own_bytes + sum(map(int, sizes))
        rows = None
        if contents != NOTES:
            rows = sum(map(int, space.calls.run([plain(key, b"HLEN", key) for key in of_kind])))
        if sizes:
            yield Usage(contents, rows, sum(map(int, sizes)), way)
    yield from _others(space, own_keys, own_bytes)


def _keys(space: RedisNamespace) -> dict[str, list[bytes]]:
    namespace, horizon = space.namespace, space.pointer().horizon
    keys = defaultdict[str, list[bytes]](list)
    keys[NOTES] = [meta_key(namespace), *(beside(namespace, name) for name in OWN)]
    for group, header in headers(space).items():
        keys[NOTES].append(header_key(namespace, group))
        keys[BASE] += [base_key(namespace, group, table) for table in header.bases]
        for table, versions in header.layers.items():
            for version in versions:
                key = changes_key(namespace, group, table, version, space.uuid)
                keys[RETIRED if version <= horizon else KEPT].append(key)
    keys[UNSEALED] = list(unlisted(space))
    return keys


def _others(space: RedisNamespace, own_keys: int, own_bytes: int) -> Iterator[Usage]:
    """Yield the room of the servers that is not this namespace's: their keys, then all else."""
    used = limit = keys = 0
    for _, (reply,) in ask_each(space, (b"INFO",)):
        info = fields(reply)
        used += number_of(info, "used_memory") or 0
        limit += number_of(info, "maxmemory") or 0
        for name, value in info.items():
            if name.startswith("db") and value.startswith("keys="):
                keys += int(value[len("keys=") :].partition(",")[0])
    of = f" of {limit:,} bytes of maxmemory" if limit else ""
    foreign = max(keys - own_keys, 0)
    contents = f"the servers' rest: {foreign:,} other keys, buffers, functions ({used:,}{of} used in all)"
    yield Usage(contents, None, max(used - own_bytes, 0), OTHERS if foreign else "a larger maxmemory")


def refused_writes(space: RedisNamespace) -> str:
    """Return why primaries take no writes now, by INFO; empty: they do, or bar INFO."""
    replies = ask_each(space, (b"INFO",))
    return "; ".join(f"{address}: {why}" for address, (reply,) in replies if (why := _refused(fields(reply))))


def _refused(info: Mapping[str, str]) -> str:
    used, limit = number_of(info, "used_memory") or 0, number_of(info, "maxmemory") or 0
    if limit and used >= limit and (why := evicts(info)):
        return f"its memory is full ({used:,} of {limit:,} bytes), and {why}"
    if limit and used >= limit:
        return (
            f"its memory is full ({used:,} of {limit:,} bytes): raise maxmemory, or free a part that"
            " `tidegate vacuum --dry-run` lists"
        )
    if "err" in (info.get("rdb_last_bgsave_status"), info.get("aof_last_write_status")):
        return "it could not save its data: check its disk, which is full or failing"
    if info.get("min_slaves_good_slaves") == "0":
        return "it has no replica, and min-replicas-to-write asks for some: bring them back"
    return ""
