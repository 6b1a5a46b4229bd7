"""One namespace in Redis as its functions see it: identity, pointer, listed servers, typed refusals."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate import forks
from tidegate.errors import StoreNotVerifiedError, TidegateError
from tidegate.names import check_name
from tidegate.sinks import redis_drop
from tidegate.sinks.reads import decode, dropped, encode, nothing_here
from tidegate.sinks.redis_answers import FLIGHT_CALLS, Call, Later, Refused, plain
from tidegate.sinks.redis_calls import Calls
from tidegate.sinks.redis_functions import readers
from tidegate.sinks.redis_keys import header_key, meta_key
from tidegate.sinks.redis_origins import Origins, listing, process_in
from tidegate.sinks.redis_reads import (
    AnotherServerError,
    identity_call,
    identity_in,
    known_in,
    newer_call,
    of_group,
    refusal,
)
from tidegate.sinks.redis_servers import Node, Servers, servers_of
from tidegate.sinks.redis_settings import settings_of
from tidegate.sinks.store import Identity, Pointer
from tidegate.urls import Address, redact


class Space:
    """A namespace on the servers that a URL names. Connects when it is first used.

    ``visible`` and ``horizon`` are those of the newest pointer read here, ``listed`` the servers
    that were compared with the log: what they hold may be relied on, up to that visible version.
    ``went_back`` counts how often a pointer showed less than the one before it. ``lost``: a merge met rows
    that a header lists and that are gone, and nobody has compared the store with the log since.
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

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, name: str, *args: bytes, once: bool = False) -> Any:
        """One function on the pointer."""
        call = Call(self.meta, name, (self.uuid, *args))
        reply = self.calls.run([call], once=once)[0] if once else self.calls.one(call)
        if isinstance(reply, Refused):
            raise self.refused(reply)
        return reply

    def of_group(self, group: int, name: str, *args: bytes) -> Call:
        return of_group(self.namespace, self.uuid, group, name, *args)

    def asked(self, calls: Sequence[Call], *, flight: int = FLIGHT_CALLS) -> list[Any]:
        """The replies; ``flight`` as in ``Calls.run``. AnotherServerError: a call names a server, and met
        another.
        """
        replies = self.calls.run(calls, flight=flight)
        for reply in replies:
            if isinstance(reply, Refused):
                if reply.code == "TGSERVER":
                    raise AnotherServerError(reply.detail)
                raise self.refused(reply)
        return replies

    def asked_and_looked(self, calls: Sequence[Call]) -> tuple[list[Any], Pointer]:
        """The replies to calls that may be repeated, and the pointer, asked for together."""
        found = self.calls.few([Call(self.meta, "pointer", (self.uuid,)), *calls])
        for reply in found:
            if isinstance(reply, Refused):
                raise self.refused(reply)
        return found[1:], self._looked(found[0])

    def refused(self, refused: Refused) -> TidegateError:
        if refused.code == "TGLOST":
            self.pointer()  # dropped meanwhile? then that is what there is to say
        return refusal(self.where, refused, opened=self._known is not None)

    @property
    def repairing(self) -> bool:
        """Whether this thread is putting back what was lost."""
        return bool(getattr(self._repairing, "ids", frozenset()))

    def _listed_now(self) -> frozenset[bytes]:
        return self._trusted | getattr(self._repairing, "ids", frozenset())

    def _accept(self, server_id: bytes) -> bool:
        """Whether the pointer lists this server, by what is known or else by what stands there now."""
        if server_id not in self._listed_now():
            self.pointer()
        if server_id not in self._listed_now():
            self.learn(self.survey())
        return server_id in self._listed_now()

    # -- planned changes -----------------------------------------------------------------------

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """How a call names the server: with the origin of a key group that moved there and is whole."""
        return self.origins.meant(key, server_id, self.servers.looks)

    def survey(self) -> dict[bytes, bytes]:
        """The ids of all primaries, each with its process."""
        for attempt in self.calls.retrying():
            with attempt:
                found = dict(map(process_in, self.calls.each_primary((b"INFO",))))
                if b"" in found:
                    self.servers.refresh()
                    raise Later("a server that was a primary is a replica now")
        return found

    def trusted_of(self, ids: frozenset[bytes]) -> frozenset[bytes]:
        """Those of these servers that are listed, or are the same processes as listed ones."""
        return ids & self._trusted

    def learn(self, found: dict[bytes, bytes]) -> None:
        """Trust the ids that listed processes have taken since they were listed."""
        (noted,) = self.calls.run([plain(self.meta, b"HGET", self.meta, b"processes")])
        self.origins.learn(noted, found)
        with self._lock:
            self._trusted = self.origins.trusted(self.listed)

    def moved(self, call: Call, node: Node, origin: bytes) -> bool:
        """Whether a key group that moved to this server is whole; a writer notes it there, too."""
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
        if found[1] is None:  # a header that is missing later is a loss (I10), never made anew
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
            # Of one that was dropped, and not to the end.
            if redis_drop.remove_groups(self.calls, self.namespace, uuid) is None:
                raise dropped(self.where)
            self.calls.run(calls)

    def drop(self) -> bool:
        """Remove everything, the identity first; whether there was anything."""
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
        """Sleep on the stream of published versions: not for so long that the answer would come too late."""
        limit_s = self.servers.settings.connection["socket_timeout"]
        self.calls.run([newer_call(self.namespace, version, min(timeout_s, limit_s / 2))])
        return True

    # -- servers that lost something -------------------------------------------------------------------

    def server_ids(self) -> frozenset[bytes]:
        """The replication ids of all primaries, as they are now."""
        for attempt in self.calls.retrying():
            with attempt:
                infos = self.calls.each_primary((b"INFO", b"replication"))
                found = [_id_in(info) for info in infos]
                if None in found:
                    self.servers.refresh()
                    raise Later("a server that was a primary is a replica now")
        return frozenset(each for each in found if each)

    def changed_servers(self) -> frozenset[bytes]:
        """Ids of primaries that were not compared with the log."""
        ids = self.server_ids()
        if not ids <= self.listed:
            self.pointer()
        return ids - self.listed

    def unlisted(self, changed: frozenset[bytes]) -> StoreNotVerifiedError:
        """The error for servers that are not listed."""
        return StoreNotVerifiedError(
            f"{self.where}: {len(changed)} of its servers restarted or were promoted since they were last"
            " compared with the log: their last writes may be lost; `tidegate repair` compares them now"
        )

    @contextlib.contextmanager
    def relying_on(self, ids: frozenset[bytes]) -> Iterator[None]:
        """For repair: these servers too are taken at their word, and no others that come. In this
        thread only: until they are listed nobody else may merge there.
        """
        self._repairing.ids = ids
        try:
            yield
        finally:
            self._repairing.ids = frozenset()


def _id_in(info: bytes) -> bytes | None:
    found = re.search(rb"^master_replid:(\w+)", info, re.MULTILINE)
    return found.group(1) if found and b"role:master" in info else None
