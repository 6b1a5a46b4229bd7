"""Dialogues with servers, each written once, for threads and for an event loop.

A dialogue is a generator: it yields a request, is sent the reply, or the error in its place, and returns
its result. So what is asked, in which order, and what a reply means is the same code for both.
"""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import redis
from redis import exceptions

from tidegate.base.urls import PORT_MAX, Address
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.replies import is_refusal, pack
from tidegate.sinks.redis.client.settings import RedisSettings, without_words
from tidegate.sinks.redis.client.shapes import WrongReplyError, no_reply

Request = TypeVar("Request")
Result = TypeVar("Result")
Errors = tuple[type[Exception], ...]


def run(
    steps: Generator[Request, Any, Result], ask: Callable[[Request], Any], answers: Errors = ()
) -> Result:
    """Run a dialogue; ``answers`` are the errors of ``ask`` that count as replies, others pass through."""
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            reply = ask(request)
        except answers as error:
            reply = error


async def run_async(
    steps: Generator[Request, Any, Result], ask: Callable[[Request], Awaitable[Any]], answers: Errors = ()
) -> Result:
    """Do ``run`` on an event loop."""
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            reply = await ask(request)
        except answers as error:
            reply = error


# -- which servers ------------------------------------------------------------------------------------

UNNAMED = (
    "set cluster-announce-hostname on each server, or cluster-preferred-endpoint-type ip: the Cluster gives"
    ' "?" for a host name'
)


def slot_ranges(slots: list[Any], address: Address) -> list[tuple[int, int, Address]]:
    """Decode the reply to CLUSTER SLOTS: last slot, first slot and primary of each range, in order.

    A server that does not know its own address has the address that was asked. Raises:
    redis.ConnectionError: a server's address is announced as unknown, or the reply has another form.
    """
    try:
        return _slot_ranges(slots, address)
    except (TypeError, ValueError, LookupError, AttributeError):
        pass
    raise no_reply()


def _slot_ranges(slots: list[Any], address: Address) -> list[tuple[int, int, Address]]:
    if any(not 0 < int(primary[1]) <= PORT_MAX for _, _, primary, *_ in slots):
        raise ValueError("no port")
    if any(primary[0] == b"?" for _, _, primary, *_ in slots):
        raise redis.ConnectionError(f"{address}: {UNNAMED}")
    return sorted(
        (
            int(last),
            int(first),
            Address(primary[0].decode() if primary[0] else address.host, int(primary[1])),
        )
        for first, last, primary, *_ in slots
    )


def place_of(slot: int, ranges: Sequence[tuple[int, int, Any]]) -> int:
    """Return the index of the range with the slot. Raises: redis.ClusterDownError: none has it."""
    index = bisect.bisect_left(ranges, slot, key=lambda each: each[0])
    if index == len(ranges) or ranges[index][1] > slot:
        raise exceptions.ClusterDownError(f"slot {slot} has no server")
    return index


SENTINEL_ANSWERS = (redis.RedisError, OSError, TypeError, ValueError, LookupError, AttributeError)
"""The last four: of redis-py, for a reply of another form."""


def primary_by(sentinel: Any, settings: RedisSettings) -> Generator[Any, Any, Address]:
    """Find the URL's primary: yields the client of each Sentinel, and is sent the primaries that it knows.

    Raises: redis.ConnectionError: no Sentinel answers and knows one that is up. It is not redis-py's own
    error: most of its releases put every argument of the client into it, its password too. ConfigError: a
    server is no Sentinel. redis.ResponseError or AuthenticationError: all Sentinels refuse this user.
    """
    failed, refused = [], []
    for seed, client in zip(settings.seeds, sentinel.sentinels, strict=True):
        masters = yield client
        if isinstance(masters, redis.ResponseError) and "unknown command" in str(masters).lower():
            hosts = ",".join(str(each) for each in settings.seeds)
            raise ConfigError(
                f"{hosts}: this is no Sentinel; write redis://{settings.seeds[0]} for a single server"
            )
        if isinstance(masters, redis.RedisError):
            masters = without_words(masters, settings)
            failed.append(f"{seed}: {masters}")
            refused += [masters] if is_refusal(masters) else []
            continue
        try:
            state = masters.get(settings.master)
            if state is not None and sentinel.check_master_state(state, settings.master):
                return Address(state["ip"], int(state["port"]))
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ):  # it is an error of redis-py, or has another form
            failed.append(f"{seed}: {no_reply()}")
    if refused and len(refused) == len(settings.seeds):
        raise refused[0]
    raise redis.ConnectionError(
        f"no Sentinel knows a primary {settings.master!r} that is up{': ' * bool(failed)}{'; '.join(failed)}"
    )


def sentinel_by(make: Any, settings: RedisSettings, limits: Mapping[str, Any], kinds: Sequence[Any]) -> Any:
    """Return redis-py's clients of the Sentinels. ``kinds``: connections without TLS, and with it.

    ``limits`` has one attempt per Sentinel: the next one may answer. Its client would retry the same one.
    """
    sentinel = make([tuple(seed) for seed in settings.seeds], sentinel_kwargs=limits)
    for client in sentinel.sentinels:
        client.connection_pool.connection_class = kinds[settings.tls]
    return sentinel


CLUSTER_SLOTS = pack((b"CLUSTER", b"SLOTS"))
CLUSTER_ANSWERS = (redis.RedisError, OSError)


def ranges_by(known: Iterable[Address]) -> Generator[Address, Any, list[tuple[int, int, Address]]]:
    """Find the ranges of slots: yields servers until one is sent back the reply to ``CLUSTER_SLOTS``.

    Raises: redis.ConnectionError: no server answers. ConfigError: one is not in a Cluster.
    redis.ResponseError or AuthenticationError: all of them refuse this user.
    """
    errors: list[Any] = []
    for address in dict.fromkeys(known):
        slots = yield address
        if not isinstance(slots, Exception):
            try:
                return slot_ranges(slots, address)
            except WrongReplyError as wrong:
                slots = wrong
        if "cluster support disabled" in str(slots):
            raise ConfigError(f"{address} is no Cluster: write redis://{address}")
        errors.append(slots)
    if errors and all(map(is_refusal, errors)):
        raise errors[0]
    error = next(filter(is_refusal, errors), errors[-1] if errors else None)
    raise redis.ConnectionError(f"no server of the Cluster answered: {error}")
