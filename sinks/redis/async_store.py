"""The Redis store for readers in an event loop: the reads of ``sinks/redis/store.py`` without threads.

Calls, replies and refusals are those of ``sinks/redis/reads.py``. Every read of rows relies on one
read of the pointer, its version and its listed servers together (docs/decisions/0013), however many
tasks refresh the pointer meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from time import monotonic
from typing import Any

import redis

from tidegate.base.deadline import one_call
from tidegate.base.names import check_name
from tidegate.base.urls import Address, redact
from tidegate.keys.groups import key_group
from tidegate.sinks.aliases import Target
from tidegate.sinks.async_store import AsyncSupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, ReadAt, Reads
from tidegate.sinks.redis.aliases import alias_call, target_in
from tidegate.sinks.redis.client.aio.calls import AsyncCalls, Listed
from tidegate.sinks.redis.client.aio.channel import AsyncNode, Channel, closed, connected
from tidegate.sinks.redis.client.aio.servers import View
from tidegate.sinks.redis.client.origins import Origins, process_in
from tidegate.sinks.redis.client.replies import Call, Refused, answer_of, encoded, pack, plain
from tidegate.sinks.redis.client.settings import RedisSettings, settings_of
from tidegate.sinks.redis.client.single_flight import SingleFlight
from tidegate.sinks.redis.keys import meta_key
from tidegate.sinks.redis.reads import (
    BLOCK_S,
    NO_ENTRY,
    Known,
    ManyReads,
    catalog_in,
    catalog_range,
    following,
    head_of,
    identity_call,
    identity_in,
    in_parts,
    is_passed,
    known_in,
    lease_args,
    many_reads,
    newer_call,
    number,
    of_group,
    refusal,
    scan_steps,
    schemas_in,
    version_after,
    with_entry,
)
from tidegate.sinks.rules.leases import Lease, check_lease
from tidegate.sinks.rules.reads import check_kept, check_visible, live_rows, nothing_here, value_at
from tidegate.wal.record import TableSchema

CLOSING_STEPS = 3
"""A connection that failed while it was opened has its socket closed by asyncio some loop steps
later. The store waits for these steps, since the loop may end after it.
"""


def _none_listed() -> frozenset[bytes]:
    return frozenset()


class AsyncRedisStore(AsyncSupportsReadWithPointer):
    """A namespace on the servers of a URL. Connects on first use."""

    def __init__(self, url: str, namespace: str, options: dict[str, Any]) -> None:
        check_name("namespace", namespace)
        self.where = f"store {redact(url)}, namespace {namespace}"
        self.namespace = namespace
        self._calls = AsyncCalls(settings_of(url, options), self.where, self._accept, self)
        self._origins = Origins()
        self._meta = meta_key(namespace)
        self._identity: Identity | None = None
        self._known = Known(Pointer(), frozenset())
        self._horizon = 0
        self._waiting = _Waiting(self._calls, namespace)

    # -- the pointer and its keys ---------------------------------------------------------------

    async def identity(self) -> Identity | None:
        (fields,) = await self._calls.run([identity_call(self.namespace)], _none_listed)
        identity = identity_in(self.where, fields)
        if self._identity is None:
            self._identity = identity
        return identity

    async def alias(self, alias: str) -> Target | None:
        (content,) = await self._calls.run([alias_call(alias)], _none_listed)
        return target_in(self.where, alias, content)

    async def pointer(self) -> Pointer:
        return (await self._read_pointer()).pointer

    async def pointer_with_entry(self, known: int) -> Pointer:
        fields = await self._ask("pointer", number(known))
        return self._pointer_in(fields)

    async def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        entries: list[CatalogEntry] = []
        following: int | None = oldest
        while following is not None:
            page = catalog_in(self.where, await self._ask("catalog", *catalog_range(following, newest)))
            entries += page
            following = version_after(page, newest)
        return entries

    async def schemas(self) -> dict[str, TableSchema]:
        return schemas_in(self.where, await self._ask("schemas"))

    async def schemas_of(self, ids: Collection[str]) -> dict[str, TableSchema]:
        parts = in_parts([*map(str.encode, ids)]) if ids else ()
        return schemas_in(self.where, [each for part in parts for each in await self._ask("schemas", *part)])

    async def lease(self, lease: Lease, ttl_s: float) -> None:
        check_lease(self.where, lease, ttl_s)
        await self._ask("lease", *lease_args(lease, ttl_s))

    async def release(self, lease_id: str) -> None:
        await self._ask("release", lease_id.encode())

    async def await_newer(self, version: int, timeout_s: float) -> bool:
        return await self._waiting.newer(version, timeout_s)

    async def close(self) -> None:
        try:
            await self._waiting.close()
        finally:
            await self._calls.close()
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)

    # -- rows --------------------------------------------------------------------------------------

    async def get(self, at: ReadAt, key: bytes) -> bytes | None:
        ((stored,),) = await self._asked([await self._read_of(at, key)], at.version)
        return value_at(self.where, at, key, stored)

    async def get_with_pointer(self, at: ReadAt, key: bytes) -> tuple[bytes | None, Pointer]:
        replies, pointer = await self._asked_with_pointer([await self._read_of(at, key)], at.version)
        stored = None if replies is None else replies[0][0]
        return value_at(self.where, at, key, stored), pointer

    async def _read_of(self, at: ReadAt, key: bytes) -> Call:
        """Return the call that reads one key."""
        identity = self._identity or await self._made()
        await self._check_readable(at.version)
        group = key_group(key, identity.key_groups, at.stride)
        return of_group(self.namespace, identity.uuid.encode(), group, "read", *head_of(at), key)

    async def get_many(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        many = await self._many_reads([(at, keys)])
        values = many.values(self.where, [(at, keys)], await self._asked(many.calls, at.version))
        return values and values[0]

    async def get_many_with_pointer(self, reads: Reads) -> tuple[list[Any] | None, Pointer]:
        many = await self._many_reads(reads)
        replies, pointer = await self._asked_with_pointer(many.calls, reads[0][0].version)
        return many.values(self.where, reads, replies), pointer

    async def _many_reads(self, reads: Reads) -> ManyReads:
        identity = self._identity or await self._made()
        await self._check_readable(reads[0][0].version)
        return many_reads(self.namespace, identity, reads)

    async def scan_groups(self, at: ReadAt, groups: Sequence[int]) -> AsyncGenerator[Any, None]:
        uuid = (await self._made()).uuid.encode()
        await self._check_readable(at.version)
        head, steps, replies = head_of(at), scan_steps(self.where, groups), None
        while (step := following(steps, replies)) is not None:
            replies = None
            if isinstance(step, list):
                calls = [
                    of_group(self.namespace, uuid, ask.group, "scan", *head, *ask.args)._replace(
                        server=ask.server
                    )
                    for ask in step
                ]
                with one_call():
                    replies = await self._asked_of_scan(calls, at.version)
                continue
            for batch in step[1].batches():
                await self._check_readable(at.version)
                live = live_rows(batch, at, self.where)
                if live.num_rows:
                    yield live

    async def _check_readable(self, version: int) -> None:
        """Check against the cached pointer; the key group's floor is compared where the rows are read."""
        if version > self._known.pointer.visible:
            check_visible(self.where, version, (await self._read_pointer()).pointer)
        check_kept(self.where, version, self._horizon)

    # -- sending -----------------------------------------------------------------------------------

    async def _ask(self, name: str, *args: bytes) -> Any:
        """Call one function on the pointer."""
        uuid = (self._identity or await self._made()).uuid.encode()
        reply = await self._calls.one(Call(self._meta, name, (uuid, *args)), _none_listed)
        if isinstance(reply, Refused):
            raise await self._refused(reply)
        return reply

    async def _asked(self, calls: list[Call], version: int) -> list[Any]:
        replies = await self._calls.few(calls, self._listed_for(version))
        for reply in replies:
            if isinstance(reply, Refused):
                raise await self._refused(reply)
        return replies

    async def _asked_with_pointer(self, calls: list[Call], version: int) -> tuple[list[Any] | None, Pointer]:
        """Return the replies to reads at this version with the pointer; None: the version was retired."""
        uuid = (self._identity or await self._made()).uuid.encode()
        requests = [Call(self._meta, "pointer", (uuid, number(version))), *calls]
        fields, *replies = await self._calls.few(requests, self._listed_for(version))
        if isinstance(fields, Refused):
            raise await self._refused(fields)
        pointer = self._pointer_in(fields)
        for reply in replies:
            if isinstance(reply, Refused):
                if is_passed(reply, pointer, version):
                    return None, pointer
                raise await self._refused(reply)
        return replies, pointer

    async def _asked_of_scan(self, calls: list[Call], version: int) -> list[Any]:
        """Return the replies, None for a call that names a server and reached another."""
        replies = await self._calls.few(calls, self._listed_for(version))
        for index, reply in enumerate(replies):
            if isinstance(reply, Refused):
                if reply.code != "TGSERVER":
                    raise await self._refused(reply)
                replies[index] = None
        return replies

    async def _refused(self, refused: Refused) -> Exception:
        if refused.code == "TGLOST":
            await self._read_pointer()  # if it was dropped meanwhile, this raises that error
        return refusal(self.where, refused, opened=self._identity is not None)

    async def _made(self) -> Identity:
        if self._identity is None and await self.identity() is None:
            raise nothing_here(self.where)
        assert self._identity is not None
        return self._identity

    async def _read_pointer(self) -> Known:
        return self._note(await self._ask("pointer"))

    def _pointer_in(self, fields: list[Any]) -> Pointer:
        pointer = self._note(fields).pointer
        return pointer if fields[8:] in NO_ENTRY else with_entry(self.where, pointer, fields)

    def _note(self, fields: list[Any]) -> Known:
        known = known_in(self.where, fields)
        known = known._replace(listed=self._origins.trusted(known.listed))
        self._known = known  # as a pair
        self._horizon = max(self._horizon, known.pointer.horizon)
        return known

    def _listed_for(self, version: int) -> Listed:
        """Return a function for the listed servers that have all of this version.

        It returns none when the cached pointer is from before the version. Two tasks that refresh
        the pointer may get their replies in the other order.
        """

        def listed() -> frozenset[bytes]:
            known = self._known
            return known.listed if known.pointer.visible >= version else frozenset()

        return listed

    async def _accept(self, server_id: bytes, listed: Listed) -> bool:
        """Return whether the pointer lists this server: the cached one, or else the current one."""
        if server_id not in listed():
            await self._read_pointer()
        if server_id not in listed():
            await self._survey(await self._calls.servers.view())
            await self._read_pointer()
        return server_id in listed()

    # -- planned changes -----------------------------------------------------------------------------

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """Return the server as calls name it: with the origin of a key group that moved there whole."""
        return self._origins.meant(key, server_id, self._calls.servers.known)

    async def moved(self, call: Call, node: AsyncNode, origin: bytes) -> bool:
        """Return whether a key group that moved to this server is whole, so that the call is sent again."""
        view = await self._calls.servers.view_from(node)
        processes = await self._survey(view)
        listed, server = (await self._read_pointer()).listed, call.server or node.server_id
        if processes is None or not self._origins.proves(origin, server, listed, processes):
            return False
        self._origins.remember(call.key, server, origin, view)
        return True

    async def _survey(self, view: View) -> dict[bytes, bytes] | None:
        """Return the ids of all primaries, each with its process; None when one does not answer."""
        answers = await self._calls.each_primary(view, pack((b"INFO",)))
        if None in answers:
            return None
        processes = dict(map(process_in, answers))
        (noted,) = await self._calls.run([plain(self._meta, b"HGET", self._meta, b"processes")], _none_listed)
        self._origins.learn(noted, processes)
        return processes


class _Waiting:
    """A wait for published versions on their stream: one connection, however many tasks wait."""

    def __init__(self, calls: AsyncCalls, namespace: str) -> None:
        self._calls, self._namespace = calls, namespace
        self._above = 0
        self._sleep = SingleFlight(self._until_newer, closed)
        self._channel: Channel | None = None
        self._address: Address | None = None

    async def newer(self, version: int, timeout_s: float) -> bool:
        """Wait for a newer version. True: read the pointer again. False, perhaps at once: not known."""
        if not self._sleep.running:
            self._above = version
        elif self._above > version:
            return True  # the others have seen a newer one already
        try:
            return await asyncio.wait_for(self._sleep.result(), timeout_s)
        except asyncio.TimeoutError:
            return True
        except (redis.RedisError, OSError):
            return False  # the pointer is read next, and raises the error

    async def close(self) -> None:
        """Wake all waiting tasks. Repeatable."""
        await self._sleep.close()
        if self._channel is not None:
            await self._channel.close()

    async def _until_newer(self) -> bool:
        servers = self._calls.servers
        view = await servers.view()
        call = newer_call(self._namespace, self._above, BLOCK_S)
        address = view.node_of(call.key).address
        channel = await self._channel_to(address, servers.settings)
        (reply,) = await channel.send((encoded(call, b"", functions=False),))
        if isinstance(reply, Exception):
            answer_of(reply, call, self._calls.where, address)  # raises what a new look-up does not cure
            channel.until = -math.inf
            servers.forget(view)
            return False
        return True

    async def _channel_to(self, address: Address, settings: RedisSettings) -> Channel:
        channel = self._channel
        if channel is not None and (
            channel.failed is not None or self._address != address or channel.until <= monotonic()
        ):
            self._channel = None
            await channel.close()
        if self._channel is None:
            connection = await connected(address, settings)
            limit_s = BLOCK_S + settings.connection["socket_timeout"]
            self._channel, self._address = Channel(connection, limit_s), address
        return self._channel
