"""One namespace in Redis as its functions see it: identity, pointer, listed servers, typed refusals."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tidegate.base import forks
from tidegate.base.names import check_name
from tidegate.base.urls import Address, redact
from tidegate.errors import CorruptError, StoreNotVerifiedError, TidegateError
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.redis import namespace as redis_drop
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.functions import readers
from tidegate.sinks.redis.client.origins import Origins, listing, process_in
from tidegate.sinks.redis.client.replies import FLIGHT_CALLS, Call, Refused, RetryLater, plain
from tidegate.sinks.redis.client.servers import Node, Servers, servers_of
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.sinks.redis.keys import header_key, meta_key, owner_key, patterns
from tidegate.sinks.redis.reads import (
    AnotherServerError,
    identity_call,
    identity_in,
    known_in,
    newer_call,
    of_group,
    refusal,
)
from tidegate.sinks.rules.reads import decode, dropped, encode, nothing_here


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
        self._lock = forks.Lock()

    # -- sending ---------------------------------------------------------------------------------

    def ask(self, name: str, *args: bytes, once: bool = False) -> Any:
        """Call one function on the pointer."""
        call = Call(self.meta, name, (self.uuid, *args))
        reply = self.calls.run([call], once=once)[0] if once else self.calls.one(call)
        if isinstance(reply, Refused):
            raise self.refused(reply)
        return reply

    def of_group(self, group: int, name: str, *args: bytes) -> Call:
        return of_group(self.namespace, self.uuid, group, name, *args)

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

    def asked_with_pointer(self, calls: Sequence[Call]) -> tuple[list[Any], Pointer]:
        """Return the replies to repeatable calls, and the pointer, read together."""
        found = self.calls.few([Call(self.meta, "pointer", (self.uuid,)), *calls])
        for reply in found:
            if isinstance(reply, Refused):
                raise self.refused(reply)
        return found[1:], self._looked(found[0])

    def refused(self, refused: Refused) -> TidegateError:
        if refused.code == "TGLOST":
            self.pointer()  # if it was dropped meanwhile, this raises that error
        return refusal(self.where, refused, opened=self._known is not None)

    @property
    def repairing(self) -> bool:
        """Whether this thread is restoring what was lost."""
        return bool(getattr(self._repairing, "ids", frozenset()))

    def _listed_now(self) -> frozenset[bytes]:
        return self._trusted | getattr(self._repairing, "ids", frozenset())

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
        return self.origins.meant(key, server_id, self.servers.looks)

    def survey(self) -> dict[bytes, bytes]:
        """Return the ids of all primaries, each with its process."""
        for attempt in self.calls.retrying():
            with attempt:
                found = dict(map(process_in, self.calls.each_primary((b"INFO",))))
                if b"" in found:
                    self.servers.refresh()
                    raise RetryLater("a server that was a primary is a replica now")
        return found

    def trusted_of(self, ids: frozenset[bytes]) -> frozenset[bytes]:
        """Return those of these servers that are listed, or are the same processes as listed ones."""
        return ids & self._trusted

    def learn(self, found: dict[bytes, bytes]) -> None:
        """Trust the ids that listed processes have taken since they were listed."""
        (noted,) = self.calls.run([plain(self.meta, b"HGET", self.meta, b"processes")])
        self.origins.learn(noted, found)
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
        found = dict(map(process_in, answers))
        self.learn(found)
        if not self.origins.proves(origin, server, self.listed, found):
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
        (found,) = self.calls.run([identity_call(self.namespace)])
        identity = identity_in(self.where, found)
        if self._known is None:
            self._known = identity
        return identity

    def create(self, identity: Identity) -> Identity:
        uuid = identity.uuid.encode()
        (found,) = self.calls.run([Call(self.meta, "create", (uuid, encode(identity)))])
        stands = decode(self.where, found[0], Identity)
        if found[1] is None:  # a header that is missing later is a loss (I10), and is never created again
            uuid = stands.uuid.encode()
            self._make_headers(uuid, stands.key_groups)
            servers = self.survey()
            (reply,) = self.calls.run([Call(self.meta, "ready", (uuid, *listing(servers)))])
            if isinstance(reply, Refused):
                raise refusal(self.where, reply, opened=True)
        if self._known is None:
            self._known = stands
        return stands

    def _make_headers(self, uuid: bytes, key_groups: int) -> None:
        calls = [Call(header_key(self.namespace, group), "make", (uuid,)) for group in range(key_groups)]
        if any(found != uuid for found in self.calls.run(calls)):
            # A namespace that was dropped, but not completely.
            if redis_drop.remove_groups(self.calls, self.namespace, uuid) is None:
                raise dropped(self.where)
            self.calls.run(calls)

    def drop(self) -> bool:
        """Remove everything, the identity first; return whether there was anything."""
        there, begun = False, redis_drop.made_here(self.calls, self.namespace)
        known, found = self._known, self.identity()
        made_since = found is not None and found.uuid.encode() != begun
        if made_since or (known is not None and begun not in (b"", known.uuid.encode())):
            raise dropped(self.where)
        if found is not None:
            there = bool(self.ask("drop"))
        gone = redis_drop.remove_namespace(self.calls, self.namespace, begun)
        if gone is None:
            raise dropped(self.where)
        self._known, self.visible, self.horizon, self.listed = None, 0, 0, frozenset()
        self._trusted = self.listed
        self.went_back += 1
        return there or gone > 0

    # -- the pointer ---

    def pointer(self) -> Pointer:
        return self._looked(self.ask("pointer"))

    def _looked(self, found: list[Any]) -> Pointer:
        pointer, listed = known_in(self.where, found)
        with self._lock:
            self.went_back += pointer.visible < self.visible
            self.visible = pointer.visible
            self.horizon = max(self.horizon, pointer.horizon)
            self.listed, self._trusted = listed, self.origins.trusted(listed)
        return pointer

    def await_newer(self, version: int, timeout_s: float) -> bool:
        """Block on the stream of published versions, for less than the connection's time-out."""
        limit_s = self.servers.settings.connection["socket_timeout"]
        self.calls.run([newer_call(self.namespace, version, min(timeout_s, limit_s / 2))])
        return True

    # -- servers that lost something -------------------------------------------------------------------

    def server_ids(self) -> frozenset[bytes]:
        """Return the replication ids of all primaries, as they are now."""
        for attempt in self.calls.retrying():
            with attempt:
                infos = self.calls.each_primary((b"INFO", b"replication"))
                found = [_id_in(info) for info in infos]
                if None in found:
                    self.servers.refresh()
                    raise RetryLater("a server that was a primary is a replica now")
        return frozenset(each for each in found if each)

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
    found = re.search(rb"^master_replid:(\w+)", info, re.MULTILINE)
    return found.group(1) if found and b"role:master" in info else None


# -- the header of a key group in Redis, as it is read: sealed and merged versions -------------------------

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Header(NamedTuple):
    """The decoded header of a key group. ``layers`` and ``bases`` are by table.

    ``sealed``: version and attempt of the newest version that was sealed, (0, b"") without a note
    of it. ``marked``: its losses are being restored. ``since``: versions from this one on may be
    missing, 0: all of the key group. ``lost_layers`` and ``lost_bases``: entries that were listed
    and are gone.
    """

    marked: bool
    server: bytes
    floor: int
    whole: int
    filling: int
    layers: dict[str, list[int]]
    bases: dict[str, int]
    since: int | None = None
    lost_layers: Mapping[str, list[int]] = NOTHING
    lost_bases: Mapping[str, int] = NOTHING
    sealed: tuple[int, bytes] = (0, b"")

    @property
    def newest(self) -> int:
        """Everything below this version was sealed on this server when it was written (decision 0013)."""
        return max([self.floor, self.whole, *(at for of_table in self.layers.values() for at in of_table)])


def headers(space: RedisNamespace) -> dict[int, Header]:
    """Return the header of every key group. Raises: CorruptError, no release writes such a header."""
    found = {}
    for group, header in headers_of(space):
        if isinstance(header, CorruptError):
            raise header
        found[group] = header
    return found


def headers_of(space: RedisNamespace) -> Iterator[tuple[int, Header | CorruptError]]:
    """Yield the header of every key group, or the error of one that no release writes."""
    groups = range(space.made.key_groups)
    replies = space.asked([space.of_group(group, "header") for group in groups])
    for group, reply in zip(groups, replies, strict=True):
        try:
            yield group, _header(reply)
        except (ValueError, KeyError) as error:
            key = header_key(space.namespace, group).decode()
            place = f"{space.where}, key group {group}: its header {key}"
            message = f"{place} cannot be read: {error!s:.200}: restore the store from a copy"
            yield group, CorruptError(message)


def _header(reply: list[bytes]) -> Header:
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    by_kind: dict[bytes, dict[str, bytes]] = {kind: {} for kind in (b"l", b"b", b"lost", b"lost_base")}
    for name, value in fields.items():
        kind, _, table = name.partition(b":")
        if kind in by_kind and table:
            by_kind[kind][table.decode()] = value
    layers, lost = (
        {table: [int(version) for version in value.split(b",")] for table, value in by_kind[kind].items()}
        for kind in (b"l", b"lost")
    )
    bases, lost_bases = (
        {table: int(value) for table, value in by_kind[kind].items()} for kind in (b"b", b"lost_base")
    )
    floor, whole, filling = (int(fields.get(name, 0)) for name in (b"floor", b"whole", b"filling"))
    since = int(fields[b"lost"]) if b"lost" in fields else None
    version, _, attempt = fields.get(b"sealed", b"0  ").split(b" ", 2)
    marked, server = b"!" in fields[b"u"], fields.get(b"s", b"")
    return Header(
        marked, server, floor, whole, filling, layers, bases, since, lost, lost_bases, (int(version), attempt)
    )


# -- removal of a namespace's keys from Redis, sparing a namespace made under its name since ---------------

KEYS_AT_ONCE = 1_000


def made_here(calls: Calls, namespace: str) -> bytes:
    """Return the uuid of the namespace that exists here or is being created; empty: none."""
    return _stands(calls, [meta_key(namespace)], b"uuid")[0]


def remove_namespace(calls: Calls, namespace: str, uuid: bytes) -> int | None:
    """Remove every key, its key groups' too; return their number, or None as ``remove_groups``."""
    own, _ = patterns(namespace)
    beside = _remove(calls, namespace, own, b"uuid", uuid)
    of_groups = None if beside is None else remove_groups(calls, namespace, uuid)
    return None if beside is None or of_groups is None else beside + of_groups


def remove_groups(calls: Calls, namespace: str, uuid: bytes) -> int | None:
    """Remove every key of its key groups, whatever it is; return their number.

    None: a namespace of another uuid was created under the name meanwhile, and nothing of it was
    removed. Repeatable.
    """
    _, of_groups = patterns(namespace)
    return _remove(calls, namespace, of_groups, b"u", uuid)


def _remove(calls: Calls, namespace: str, pattern: str, field: bytes, uuid: bytes) -> int | None:
    """Remove the keys of a pattern whose owner still shows the uuid.

    A namespace writes its uuid into the pointer first, and into each header before its rows. So
    while the pointer shows no other uuid, no header does. Where a header changes after that, its
    keys stay.
    """
    owned = defaultdict[bytes, list[bytes]](list)
    for key in calls.each_primary_scan(pattern):
        owned[owner_key(key)].append(key)
    owners = _stands(calls, list(owned), field)
    if made_here(calls, namespace) not in (b"", uuid):
        return None
    removals = []
    for (owner, keys), stands in zip(owned.items(), owners, strict=True):
        keys.sort(key=owner.__eq__)  # the owner is removed last: until then it proves the ownership
        parts = [keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE)]
        removals += [Call(owner, "remove", (field, stands, *part)) for part in parts]
    if not all(calls.run(removals)):
        return None
    return sum(map(len, owned.values()))


def _stands(calls: Calls, keys: Sequence[bytes], field: bytes) -> list[bytes]:
    """Return this field of each key; empty where it is missing."""
    return [found or b"" for found in calls.run([plain(key, b"HGET", key, field) for key in keys])]
