"""Aliases in Cassandra: rows of ``tidegate_namespaces`` with state ``alias``, written by conditional writes.

A namespace and an alias of one name are one row, so that they shut each other out: an alias is never made
over a namespace, nor a namespace over an alias, whoever is faster.
"""

from __future__ import annotations

import uuid

from cassandra import ConsistencyLevel

from tidegate.errors import ConfigError
from tidegate.names import check_name
from tidegate.sinks.aliases import Aliases, Target, name_is_taken
from tidegate.sinks.cassandra_space import Space
from tidegate.sinks.reads import decode, encode

ALIAS = "alias"


class CassandraAliases(Aliases):
    """The aliases in a store's keyspace."""

    def __init__(self, space: Space) -> None:
        self.where, self._space = space.where, space

    def get(self, alias: str) -> Target | None:
        session = self._space.session
        if not session.has_tables():
            return None
        # SERIAL: whichever data centre it was set in, what was acknowledged is seen.
        found = session.rows("find", alias, level=ConsistencyLevel.SERIAL)
        if not found or found[0][3] != ALIAS:
            return None
        return decode(self.where, found[0][1], Target)

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
        content = encode(target).decode()
        flipped = self._decide("set_alias", content, uuid.uuid4(), alias)
        if not flipped:
            # Repeated after a lost answer it meets its own row, and flips it to the same.
            self._decide("new_alias", alias, uuid.uuid4(), content)
            flipped = self._decide("set_alias", content, uuid.uuid4(), alias)
        if not flipped:
            raise name_is_taken(self.where, alias)

    def drop(self, alias: str) -> bool:
        return self.get(alias) is not None and self._decide("drop_alias", alias)

    def _decide(self, name: str, *values: object) -> bool:
        level = ConsistencyLevel.QUORUM
        return bool(self._space.session.decide((name, *values), level=level, again=True)[0])
