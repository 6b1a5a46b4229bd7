"""The largest value that the servers take and give back, by their settings of requests, replies and memory.

A user without CONFIG cannot read them. Then one request of the largest value's size, which changes
nothing, is sent to each server. The limits of replies stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import redis

from tidegate.base.checks import number_of
from tidegate.options import KEY_BYTES_MAX
from tidegate.sinks.redis.checks import fields
from tidegate.sinks.redis.client.replies import LOST, pack
from tidegate.sinks.redis.client.servers import Node
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.rules.limits import Limit, ValueLimit, value_limit

BULK, QUERY, OUTPUT, CLIENTS = (
    *("proto-max-bulk-len", "client-query-buffer-limit"),
    *("client-output-buffer-limit", "maxmemory-clients"),
)
SETTINGS = (BULK, QUERY, OUTPUT, CLIENTS)
BESIDE = KEY_BYTES_MAX + 64 * 1024
"""The bytes of a key, of a page or a flight of small rows, and of a stored value's flags."""
SCANNED = 8
"""The rows that a page of a scan begins with, whatever their size (``SAMPLE_ROWS`` in Lua)."""
IN_MEMORY = 3
"""A server has a value in its connection's buffer, in the next one, which is as large, and in its hash."""
PROBE_MIN = 1024 * 1024
"""No server can be set to refuse a smaller request."""
UNKNOWN = (
    f"CONFIG is barred: not known is {OUTPUT} normal, above which a server cuts a reply off; 0 is no limit"
)


def limits_of(space: RedisNamespace, value_bytes: int, *, thorough: bool) -> ValueLimit:
    """Return the smallest limit of all primaries. ``value_bytes``: the largest value that the options allow.

    It writes nothing. ``thorough``: what is not known is a warning. Raises: StoreUnavailableError: a server
    did not answer.
    """
    commands = [pack((b"INFO", b"memory")), *(pack((b"CONFIG", b"GET", name.encode())) for name in SETTINGS)]
    barred = False

    def limits_at(node: Node) -> list[Limit]:
        nonlocal barred
        info, *replies = node.ask(commands)
        memory, pairs = fields(info), [each for each in replies if isinstance(each, list) and len(each) == 2]
        limits = list(_told(str(node.address), memory, {k.decode(): v.decode() for k, v in pairs}))
        if len(pairs) < len(SETTINGS):
            barred = True
            limits += _probed(node, memory, value_bytes)
        return limits

    by_server = space.calls.on_each_primary(limits_at)
    limits = [limit for of_server in by_server.values() for limit in of_server]
    return value_limit(limits, value_bytes, UNKNOWN if barred and thorough else "")


def _told(at: str, memory: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[Limit]:
    """Yield the limits among a server's memory and settings; 0 is no limit."""
    largest = number_of(memory, "maxmemory") or 0
    if bulk := number_of(settings, BULK):
        yield Limit(BULK, at, bulk, 1, BESIDE)
    if query := number_of(settings, QUERY):
        yield Limit(QUERY, at, query, 1, BESIDE)
    if normal := re.search(r"normal ([1-9]\d*)", settings.get(OUTPUT, "")):
        yield Limit(f"{OUTPUT} normal", at, int(normal[1]), SCANNED, BESIDE)
    if clients := re.fullmatch(r"([1-9]\d*)(%?)", settings.get(CLIENTS, "")):
        number = int(clients[1]) * largest // 100 if clients[2] else int(clients[1])
        if number:
            yield Limit(CLIENTS, at, number, SCANNED, BESIDE)
    if largest:
        yield Limit("maxmemory", at, largest, IN_MEMORY, BESIDE)


def _probed(node: Node, memory: Mapping[str, str], value_bytes: int) -> Iterator[Limit]:
    """Yield the limit of requests that a server shows by refusing one, at most twice too low.

    The request is an error without any effect: TIME takes no argument. A server whose memory has no room for
    it, or does not say so, is not asked.
    """
    used, largest = number_of(memory, "used_memory"), number_of(memory, "maxmemory")
    size = value_bytes + BESIDE
    if used is None or largest is None or (largest and largest - used < 2 * IN_MEMORY * size):
        return
    taken = _takes(node, size)
    while taken is False and size > PROBE_MIN:
        size = max(PROBE_MIN, size // 2)
        taken = _takes(node, size)
        if taken:
            yield Limit(f"{BULK} or {QUERY}, as a request showed,", str(node.address), size, 1, BESIDE)


def _takes(node: Node, size: int) -> bool | None:
    """Return whether the server takes a request of this size; None: it did not answer in time."""
    try:
        (reply,) = node.ask([pack((b"TIME", bytes(size)))])
    except redis.TimeoutError:
        return None
    except LOST:
        return False
    return "rotocol error" not in str(reply)
