"""Aliases in Cassandra: rows of ``tidegate_namespaces`` with state ``alias``, written by conditional writes.

A namespace and an alias of one name are one row, so that they shut each other out: an alias is never made
over a namespace, nor a namespace over an alias, whoever is faster. The column ``space`` is an alias's
revision: each change is made if it is still what was read before.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from cassandra import ConsistencyLevel

from tidegate.base.names import check_name
from tidegate.errors import ConfigError
from tidegate.sinks.aliases import Aliases, Target, changed, name_is_taken
from tidegate.sinks.cassandra.namespace import CassandraNamespace
from tidegate.sinks.rules.reads import decode, encode

ALIAS = "alias"


class Named(NamedTuple):
    """A row of ``tidegate_namespaces``; of an alias, ``space`` is its revision."""

    space: uuid.UUID
    identity: str
    settings: str | None
    state: str


class CassandraAliases(Aliases):
    """The aliases in a store's keyspace."""

    def __init__(self, space: CassandraNamespace) -> None:
        self.where, self._space = space.where, space

    def get(self, alias: str) -> Target | None:
        found = self._row(alias)
        return None if found is None or found.state != ALIAS else decode(self.where, found.identity, Target)

    def all(self) -> dict[str, Target]:
        session = self._space.session
        if not session.has_tables():
            return {}
        rows = session.rows("names", level=ConsistencyLevel.QUORUM)
        names = sorted(name for name, state in rows if state == ALIAS)
        found = ((name, self.get(name)) for name in names)
        return {name: target for name, target in found if target is not None}

    def set(self, alias: str, target: Target) -> None:
        check_name("alias", alias)
        if not self._space.session.has_tables():
            raise ConfigError(f"{self.where}: {self._space.not_made}")
        content, revision = encode(target).decode(), uuid.uuid4()

        def once() -> bool | None:
            found = self._row(alias)
            if found is None:
                self._decide("new_alias", alias, revision, content)
            elif found.state == ALIAS:
                self._decide("set_alias", content, revision, alias, found.space)
            else:
                raise name_is_taken(self.where, alias)
            # Asked again after a lost answer, a write is refused by what it wrote itself the first time.
            stands = self._row(alias)
            return True if stands is not None and stands.space == revision else None

        changed(self.where, alias, once)

    def drop(self, alias: str) -> bool:
        def once() -> bool | None:
            found = self._row(alias)
            if found is None or found.state != ALIAS:
                return False
            self._decide("drop_alias", alias, found.space)
            stands = self._row(alias)
            return True if stands is None or stands.space != found.space else None

        return changed(self.where, alias, once)

    def _row(self, alias: str) -> Named | None:
        """What stands under the name, a namespace or an alias; None: nothing."""
        session = self._space.session
        if not session.has_tables():
            return None
        # SERIAL: whichever data centre it was set in, what was acknowledged is seen.
        found = session.rows("find", alias, level=ConsistencyLevel.SERIAL)
        return Named(*found[0]) if found else None

    def _decide(self, name: str, *values: object) -> None:
        """A conditional write, whose outcome is read back."""
        self._space.session.decide((name, *values), level=ConsistencyLevel.QUORUM, again=True)
