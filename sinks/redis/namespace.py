"""One namespace in Redis as its functions see it: identity, pointer, listed servers, refusals, reads."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from tidegate.base import forks
from tidegate.base.deadline import one_call
from tidegate.base.names import check_name
from tidegate.base.urls import Address, redact
from tidegate.errors import StoreNotVerifiedError, TidegateError
from tidegate.keys.groups import key_group
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import Identity, Pointer, ReadAt, Reads
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.functions import FORMAT, readers
from tidegate.sinks.redis.client.origins import Origins, listing, process_in
from tidegate.sinks.redis.client.replies import FLIGHT_CALLS, Call, Refused, RetryLater, plain
from tidegate.sinks.redis.client.servers import Node, Servers, servers_of
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.sinks.redis.keys import header_key, meta_key
from tidegate.sinks.redis.reads import (
    KEYS_AT_ONCE,
    NO_ENTRY,
    AnotherServerError,
    Ask,
    following,
    head_of,
    identity_call,
    identity_in,
    in_places,
    is_passed,
    known_in,
    many_reads,
    newer_call,
    number,
    refusal,
    scan_steps,
    with_entry,
)
from tidegate.sinks.redis.removal import drop_call, made_here, remove_dropped, remove_left
from tidegate.sinks.rules.reads import (
    by_group,
    check_kept,
    check_visible,
    checked_format,
    decode,
    dropped,
    encode,
    nothing_here,
    value_at,
)
from tidegate.wal.value_flags import VALUE

Replies = TypeVar("Replies")


class RedisNamespace:
    """A namespace on the servers of a URL. Connects on first use.

    ``visible`` and ``horizon`` are those of the newest pointer read here, ``listed`` the servers
    that were compared with the log: their data may be relied on, up to that visible version.
    ``went_back`` counts the pointers that were below the one before. ``lost``: a merge found that
    rows listed in a header are gone, and the store has not been compared with the log since.
    """

    def __init__(self, url: str, namespace: str, options: dict[str, Any]) -> None:
        check_name("namespace", namespace)
        self.where = f"store {redact(url)}, namespace {namespace}"
        self.namespace = namespace
        self.servers: Servers = servers_of(settings_of(url, options))
        self.calls = Calls(self.servers, self.where, self._accept, self._listed_now, self)
        self.meta = meta_key(namespace)
        self.visible = self.horizon = self.went_back = 0
        self.listed = self._trusted = frozenset[bytes]()
        self.origins = Origins()
        self.lost = False
        self._repairing = threading.local()
        self.compared_at: tuple[Address, ...] = ()
        self.look_again_at = 0.0
        self._known: Identity | None = None
        self._lock = forks.BriefLock()
        self._noted: tuple[list[Any], Pointer] | None = None  # the newest reply without its time

    # -- sending ---------------------------------------------------------------------------------

    def ask(self, name: str, *args: bytes, once: bool = False) -> Any:
        """Call one function on the pointer."""
        call = Call(self.meta, name, (self.uuid, *args))
        reply = self.calls.run([call], once=once)[0] if once else self.calls.one(call)
        if isinstance(reply, Refused):
            raise self.refused(reply)
        return reply

    def of_group(self, group: int, name: str, *args: bytes) -> Call:
        """Return a call of a function on a key group."""
        return Call(header_key(self.namespace, group), name, (self.uuid, *args), at_server=True)

    def asked(self, calls: Sequence[Call], *, flight: int = FLIGHT_CALLS) -> list[Any]:
        """Return the replies; ``flight`` as in ``Calls.run``.

        Raises: AnotherServerError, a call names a server and reached another.
        """
        replies = self.calls.run(calls, flight=flight)
        for reply in replies:
            if isinstance(reply, Refused):
                if reply.code == "TGSERVER":
                    raise AnotherServerError(reply.detail)
                raise self.refused(reply)
        return replies

    def asked_of_scan(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies, None for a call that names a server and reached another."""
        replies = self.calls.run(calls)
        for reply in replies:
            if isinstance(reply, Refused) and reply.code != "TGSERVER":
                raise self.refused(reply)
        return [None if isinstance(reply, Refused) else reply for reply in replies]

    def asked_with_pointer(self, calls: Sequence[Call], version: int) -> tuple[list[Any] | None, Pointer]:
        """Return the replies to reads at this version with the pointer; None: the version was retired."""
        fields, *replies = self.calls.few([Call(self.meta, "pointer", (self.uuid, b"%d" % version)), *calls])
        if isinstance(fields, Refused):
            raise self.refused(fields)
        pointer = self._note(fields)
        for reply in replies:
            if isinstance(reply, Refused):
                if is_passed(reply, pointer, version):
                    return None, pointer
                raise self.refused(reply)
        return replies, pointer

    def asked_few(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies to repeatable calls that name no server; fast if they are few."""
        replies = self.calls.few(calls) if calls else []
        for reply in replies:
            if isinstance(reply, Refused):
                raise self.refused(reply)
        return replies

    def refused(self, refused: Refused) -> TidegateError:
        if refused.code == "TGLOST":
            self.pointer()  # if it was dropped meanwhile, this raises that error
        return refusal(self.where, refused, opened=self._known is not None)

    @property
    def repairing(self) -> bool:
        """Whether this thread is restoring what was lost."""
        return bool(getattr(self._repairing, "ids", frozenset()))

    def _listed_now(self) -> frozenset[bytes]:
        repaired = getattr(self._repairing, "ids", None)
        return self._trusted | repaired if repaired else self._trusted

    def _accept(self, server_id: bytes) -> bool:
        """Return whether the pointer lists this server: the cached one, or else the current one."""
        if server_id not in self._listed_now():
            self.pointer()
        if server_id not in self._listed_now():
            self.learn(self.survey())
        return server_id in self._listed_now()

    # -- planned changes -----------------------------------------------------------------------

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """Return the server as calls name it: with the origin of a key group that moved there whole."""
        if not self.origins.moved:
            return server_id
        return self.origins.meant(key, server_id, self.servers.looks)

    def survey(self) -> dict[bytes, bytes]:
        """Return the ids of all primaries, each with its process."""
        for attempt in self.calls.retrying():
            with attempt:
                processes = dict(map(process_in, self.calls.each_primary((b"INFO",))))
                if b"" in processes:
                    self.servers.refresh()
                    raise RetryLater("a server that was a primary is a replica now")
        return processes

    def trusted_of(self, ids: frozenset[bytes]) -> frozenset[bytes]:
        """Return those of these servers that are listed, or are the same processes as listed ones."""
        return ids & self._trusted

    def learn(self, processes: dict[bytes, bytes]) -> None:
        """Trust the ids that listed processes have taken since they were listed."""
        (noted,) = self.calls.run([plain(self.meta, b"HGET", self.meta, b"processes")])
        self.origins.learn(noted, processes)
        with self._lock:
            self._trusted = self.origins.trusted(self.listed)

    def moved(self, call: Call, node: Node, origin: bytes) -> bool:
        """Return whether a key group that moved to this server is whole; a writer notes it there, too."""
        server = call.server or node.server_id
        self.pointer()
        self.servers.look_from(node)
        answers = self.calls.each_primary_once((b"INFO",))
        if None in answers:
            return False
        processes = dict(map(process_in, answers))
        self.learn(processes)
        if not self.origins.proves(origin, server, self.listed, processes):
            return False
        self.origins.remember(call.key, server, origin, self.servers.looks)
        if call.name not in readers() and call.name != "note_moved":
            self.calls.run([Call(call.key, "note_moved", (self.uuid,), at_server=True)])
        return True

    # -- identity ------------------------------------------------------------------------------

    @property
    def uuid(self) -> bytes:
        return self.made.uuid.encode()

    @property
    def made(self) -> Identity:
        if self._known is None and self.identity() is None:
            raise nothing_here(self.where)
        assert self._known is not None
        return self._known

    def identity(self) -> Identity | None:
        (fields,) = self.calls.run([identity_call(self.namespace)])
        identity = identity_in(self.where, fields)
        if self._known is None:
            self._known = identity
        return identity

    def create(self, identity: Identity, lost_at: int) -> Identity:
        uuid, made = identity.uuid.encode(), msgspec.structs.replace(identity, format=FORMAT)
        (fields,) = self.calls.run([Call(self.meta, "create", (uuid, encode(made)))])
        existing = checked_format(self.where, decode(self.where, fields[0], Identity), FORMAT)
        if fields[1] is None:  # a header that is missing later is a loss (I10), and is never created again
            uuid = existing.uuid.encode()
            removed = remove_dropped(self.calls, self.namespace, uuid)
            if not self.make_headers(uuid, existing.key_groups, is_lost=lost_at > 0):
                # A namespace that was dropped, but not completely, and that left no record.
                removed = remove_left(self.calls, self.namespace, uuid)
                if removed is not None:
                    self.make_headers(uuid, existing.key_groups, is_lost=lost_at > 0)
            if removed is None:
                raise dropped(self.where)
            servers = {} if lost_at else self.survey()  # without one, each has to be compared with the log
            (reply,) = self.calls.run([Call(self.meta, "ready", (uuid, *listing(servers)))])
            if isinstance(reply, Refused):
                raise refusal(self.where, reply, opened=True)
        if self._known is None:
            self._known = existing
        return existing

    def make_headers(self, uuid: bytes, key_groups: int, *, is_lost: bool) -> bool:
        """Make the headers that are not there; return whether all are of this namespace."""
        args = (uuid, b"lost") if is_lost else (uuid,)
        calls = [Call(header_key(self.namespace, group), "make", args) for group in range(key_groups)]
        return all(owner.partition(b"!")[0] == uuid for owner in self.calls.run(calls))

    def drop(self, *, thorough: bool = False) -> bool:
        """Remove everything, the identity first; return whether there was anything."""
        uuid = made_here(self.calls, self.namespace)
        known, identity = self._known, self.identity()
        made_since = identity is not None and identity.uuid.encode() != uuid
        if made_since or (known is not None and uuid not in (b"", known.uuid.encode())):
            raise dropped(self.where)
        if uuid:
            (reply,) = self.calls.run([drop_call(self.calls, self.namespace, uuid)])
            if isinstance(reply, Refused) and reply.code != "TGNONE":  # another drop was faster
                raise refusal(self.where, reply, opened=True)
        removed = remove_left(self.calls, self.namespace, uuid, thorough=thorough)
        if removed is None:
            raise dropped(self.where)
        self._known, self.visible, self.horizon, self.listed = None, 0, 0, frozenset()
        self._noted = None
        self._trusted = self.listed
        self.went_back += 1
        return removed or uuid != b""

    # -- the pointer ---

    def pointer(self, known: int | None = None) -> Pointer:
        """Read the pointer; ``known``: with the entry of its version, unless it is this one."""
        return self._note(self.ask("pointer") if known is None else self.ask("pointer", number(known)))

    def _note(self, fields: list[Any]) -> Pointer:
        """Note the pointer. If only time has passed since the last one, it is not decoded again."""
        content, noted = fields[:7], self._noted
        if noted is not None and noted[0] == content:
            pointer = _aged(noted[1], content[5], int(fields[7]))
            return pointer if fields[8:] in NO_ENTRY else with_entry(self.where, pointer, fields)
        pointer, listed = known_in(self.where, fields)
        with self._lock:
            self._noted = content, pointer
            self.went_back += pointer.visible < self.visible
            self.visible = pointer.visible
            self.horizon = max(self.horizon, pointer.horizon)
            self.listed, self._trusted = listed, self.origins.trusted(listed)
        return pointer if fields[8:] in NO_ENTRY else with_entry(self.where, pointer, fields)

    def await_newer(self, version: int, timeout_s: float) -> bool:
        """Block on the stream of published versions, for less than the connection's time-out."""
        limit_s = self.servers.settings.connection["socket_timeout"]
        self.calls.run([newer_call(self.namespace, version, min(timeout_s, limit_s / 2))])
        return True

    # -- servers that lost something -------------------------------------------------------------------

    def server_ids(self) -> frozenset[bytes]:
        """Return the replication ids of all primaries, as they are now."""
        return frozenset(self.ids_by_address().values())

    def ids_by_address(self) -> dict[str, bytes]:
        """Return the replication id of each primary, as it is now."""
        for attempt in self.calls.retrying():
            with attempt:
                infos = self.calls.on_each_primary(
                    lambda node: self.calls.at(node, (b"INFO", b"replication"))
                )
                ids = {address: _id_in(info) for address, info in infos.items()}
                if None in ids.values():
                    self.servers.refresh()
                    raise RetryLater("a server that was a primary is a replica now")
        return {address: server_id for address, server_id in ids.items() if server_id}

    def changed_servers(self) -> frozenset[bytes]:
        """Return the ids of primaries that were not compared with the log."""
        ids = self.server_ids()
        if not ids <= self.listed:
            self.pointer()
        return ids - self.listed

    def unlisted(self, changed: frozenset[bytes]) -> StoreNotVerifiedError:
        """Return the error for servers that are not listed."""
        return StoreNotVerifiedError(
            f"{self.where}: {len(changed)} of its servers restarted or were promoted since they were last"
            " compared with the log: their last writes may be lost; `tidegate repair` compares them now"
        )

    @contextlib.contextmanager
    def relying_on(self, ids: frozenset[bytes]) -> Iterator[None]:
        """Rely on these servers too, and on no others that appear; for repair.

        In this thread only: until they are listed no other thread may merge there.
        """
        self._repairing.ids = ids
        try:
            yield
        finally:
            self._repairing.ids = frozenset()


def _id_in(info: bytes) -> bytes | None:
    server_id = re.search(rb"^master_replid:(\w+)", info, re.MULTILINE)
    return server_id.group(1) if server_id and b"role:master" in info else None


class RedisReads(SupportsReadWithPointer):
    """The reads of rows at a version, of ``RedisStore``."""

    def __init__(self, space: RedisNamespace) -> None:
        self._space = space
        self.where = space.where

    def get_stored_one(self, at: ReadAt, key: bytes) -> bytes | None:
        ((stored,),) = self._read(at.version, self._space.asked_few, [self._call_of(at, key)])
        return stored  # type: ignore[no-any-return]

    def get_with_pointer(self, at: ReadAt, key: bytes) -> tuple[bytes | None, Pointer]:
        call = self._call_of(at, key)
        replies, pointer = self._read(at.version, self._space.asked_with_pointer, [call], at.version)
        if replies is None:
            return None, pointer
        ((stored,),) = replies
        if stored is not None and stored[:1] == VALUE:  # no expiry and no sequence, as most values
            return stored[1:], pointer
        return value_at(self.where, at, key, stored), pointer

    def _call_of(self, at: ReadAt, key: bytes) -> Call:
        """Return one call, without the grouping of many keys."""
        group = key_group(key, self._space.made.key_groups, at.stride)
        return self._space.of_group(group, "read", *head_of(at), key)

    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        groups = by_group(keys, self._space.made.key_groups, KEYS_AT_ONCE, at.stride)
        calls = self._calls_of(groups, "read", head_of(at), keys)
        return in_places(groups, self._read(at.version, self._space.asked_few, calls), len(keys))

    def get_many_with_pointer(self, reads: Reads) -> tuple[list[Any] | None, Pointer]:
        many, version = many_reads(self._space.namespace, self._space.made, reads), reads[0][0].version
        replies, pointer = self._read(version, self._space.asked_with_pointer, many.calls, version)
        return many.values(self.where, reads, replies), pointer

    def pointer_with_entry(self, known: int) -> Pointer:
        return self._space.pointer(known)

    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        groups = by_group(keys, self._space.made.key_groups, KEYS_AT_ONCE, at.stride)
        calls = self._calls_of(groups, "rows", (at.table.encode(), number(at.version)), keys)
        return in_places(groups, self._space.asked(calls), len(keys))

    def _calls_of(
        self, groups: list[tuple[int, list[int]]], name: str, head: tuple[bytes, ...], keys: Sequence[bytes]
    ) -> list[Call]:
        return [
            self._space.of_group(group, name, *head, *(keys[index] for index in indexes))
            for group, indexes in groups
        ]

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        for _, batch in self.scan_groups_stored(at, (group,)):
            yield batch

    def scan_groups_stored(self, at: ReadAt, groups: Sequence[int]) -> Iterator[tuple[int, Any]]:
        head, steps, replies = head_of(at), scan_steps(self.where, groups), None
        began: dict[int, int] = {}
        while (step := following(steps, replies)) is not None:
            replies = None
            if isinstance(step, list):
                replies = self._read(at.version, self._step, step, head, began)
                continue
            group, rows = step
            for batch in rows.batches():
                self._check_readable(at.version)
                yield group, batch

    def _step(self, asks: list[Ask], head: tuple[bytes, ...], began: dict[int, int]) -> list[Any]:
        """Return the replies, None for a key group whose scan starts again: the pointer stepped back.

        ``began``: the pointer's steps back when the key group's scan began.
        """
        space = self._space
        began.update((ask.group, space.went_back) for ask in asks if not ask.server)
        calls = [space.of_group(ask.group, "scan", *head, *ask.args) for ask in asks]
        with one_call():
            replies = space.asked_of_scan(
                [call._replace(server=ask.server) for call, ask in zip(calls, asks, strict=True)]
            )
        pairs = zip(asks, replies, strict=True)
        return [reply if began[ask.group] == space.went_back else None for ask, reply in pairs]

    def _read(self, version: int, ask: Callable[..., Replies], *args: Any) -> Replies:
        """Return the result of ``ask``, made while the version was visible all the time.

        A server that is accepted in the middle of a read is covered by the pointer that lists it,
        and that pointer may be at a lower version: then the read is repeated, or refused. So each
        further try needs another step back of the pointer.
        """
        while True:
            before = self._space.went_back
            self._check_readable(version)
            replies = ask(*args)
            if self._space.went_back == before:
                return replies

    def _check_readable(self, version: int) -> None:
        """Check against the cached pointer; the key group's floor is compared where the rows are read."""
        if version > self._space.visible:
            check_visible(self.where, version, self._space.pointer())
        if version < self._space.horizon:
            check_kept(self.where, version, self._space.horizon)


def _aged(pointer: Pointer, noted_us: bytes | None, now_us: int) -> Pointer:
    """Return the pointer with its ages of now, as ``heartbeat_ages`` computes them."""
    if noted_us is None:
        return pointer
    age_s = abs(now_us - abs(int(noted_us))) / 1e6
    if pointer.closed_age_s is None:
        return msgspec.structs.replace(pointer, heartbeat_age_s=age_s)
    return msgspec.structs.replace(pointer, closed_age_s=age_s)
