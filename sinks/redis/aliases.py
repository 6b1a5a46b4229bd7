"""Aliases on Redis: one hash each, ``tg:{<alias>}:alias``, with ``namespace``, ``uuid`` and ``revision``.

One HSET of all fields flips an alias, if the revision is still the one that was read
(``lua/alias.lua``). Key and commands are those of a namespace of that name, so rights granted for a
name cover its alias. A failover may lose the last HSET, as it may lose any write: readers are then
back at the namespace that the alias named before, with its whole content.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import Any

from tidegate.base.names import NAME, check_name
from tidegate.errors import CorruptError
from tidegate.sinks.aliases import Aliases, Target, changed
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.replies import Call, plain
from tidegate.sinks.redis.keys import beside

logger = logging.getLogger("tidegate")

EVERY = "tg:{*}:alias"
KEY = re.compile(rb"tg:\{([A-Za-z0-9_.-]{1,64})\}:alias")


def alias_key(alias: str) -> bytes:
    """Return the key of an alias."""
    return beside(alias, "alias")


def alias_call(alias: str) -> Call:
    """Return the call whose reply ``target_in`` decodes."""
    return plain(alias_key(alias), b"HMGET", alias_key(alias), b"namespace", b"uuid")


def target_in(where: str, alias: str, reply: Any) -> Target | None:
    """Decode the target of an alias. Raises: CorruptError: tidegate did not write it."""
    if reply == [None, None]:
        return None
    namespace, uuid = ((part or b"").decode(errors="replace") for part in reply)
    if NAME.fullmatch(namespace) is None or not uuid:
        raise CorruptError(
            f"{where}: {alias_key(alias).decode()} is no alias of tidegate's: set it again with"
            f" `tidegate alias set {alias} --namespace NAME`"
        )
    return Target(namespace, uuid)


class RedisAliases(Aliases):
    """The aliases on the servers of a store."""

    def __init__(self, calls: Calls, where: str) -> None:
        self.where, self._calls = where, calls

    def get(self, alias: str) -> Target | None:
        (reply,) = self._calls.run([alias_call(alias)])
        return target_in(self.where, alias, reply)

    def all(self) -> dict[str, Target]:
        keys = {key for key in self._calls.each_primary_scan(EVERY) if KEY.fullmatch(key)}
        aliases = sorted(key[len(b"tg:{") : -len(b"}:alias")].decode() for key in keys)
        targets = dict[str, Target]()
        for alias in aliases:
            try:
                target = self.get(alias)
            except CorruptError as error:
                # On a shared server it may be another tenant's, which must not hide everybody's aliases.
                logger.warning("left out: %s", error)
            else:
                targets |= {} if target is None else {alias: target}
        return targets

    def set(self, alias: str, target: Target) -> None:
        check_name("alias", alias)
        fields = (uuid.uuid4().hex.encode(), target.namespace.encode(), target.uuid.encode())

        def once() -> bool | None:
            _, revision = self._look(alias)
            return self._change("set_alias", alias, revision, *fields) or None

        changed(self.where, alias, once)

    def drop(self, alias: str) -> bool:
        def once() -> bool | None:
            exists, revision = self._look(alias)
            return False if not exists else self._change("drop_alias", alias, revision) or None

        return changed(self.where, alias, once)

    def _look(self, alias: str) -> tuple[bool, bytes]:
        """Return whether the alias exists, also a damaged one, and its revision."""
        key = alias_key(alias)
        fields = self._calls.run([plain(key, b"HMGET", key, b"revision", b"namespace", b"uuid")])[0]
        return any(field is not None for field in fields), fields[0] or b""

    def _change(self, name: str, alias: str, *args: bytes) -> bool:
        """Return whether the change took effect; False if another change came first."""
        return bool(self._calls.run([Call(alias_key(alias), name, args)])[0])
