"""Aliases in Cassandra: rows of ``tidegate_namespaces`` with state ``alias``, changed by conditional writes.

A namespace and an alias of one name are one row, so they exclude each other: an alias never
replaces a namespace, nor a namespace an alias, whichever is first. The column ``space`` is an
alias's revision: a change is made only if the revision is still the one that was read.
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
    """A row of ``tidegate_namespaces``; for an alias, ``space`` is its revision."""

    space: uuid.UUID
    identity: str
    settings: str | None
    state: str


class CassandraAliases(Aliases):
    """The aliases in a store's keyspace."""

    def __init__(self, space: CassandraNamespace) -> None:
        self.where, self._space = space.where, space

    def get(self, alias: str) -> Target | None:
        row = self._row(alias)
        return None if row is None or row.state != ALIAS else decode(self.where, row.identity, Target)

    def all(self) -> dict[str, Target]:
        session = self._space.session
        if not session.has_tables():
            return {}
        rows = session.rows("names", level=ConsistencyLevel.QUORUM)
        names = sorted(name for name, state in rows if state == ALIAS)
        targets = ((name, self.get(name)) for name in names)
        return {name: target for name, target in targets if target is not None}

    def set(self, alias: str, target: Target) -> None:
        check_name("alias", alias)
        if not self._space.session.has_tables():
            raise ConfigError(f"{self.where}: {self._space.not_made}")
        content, revision = encode(target).decode(), uuid.uuid4()

        def once() -> bool | None:
            row = self._row(alias)
            if row is None:
                self._decide("new_alias", alias, revision, content)
            elif row.state == ALIAS:
                self._decide("set_alias", content, revision, alias, row.space)
            else:
                raise name_is_taken(self.where, alias)
            # A write repeated after a lost reply is refused because of its own first effect.
            current = self._row(alias)
            return True if current is not None and current.space == revision else None

        changed(self.where, alias, once)

    def drop(self, alias: str) -> bool:
        def once() -> bool | None:
            row = self._row(alias)
            if row is None or row.state != ALIAS:
                return False
            self._decide("drop_alias", alias, row.space)
            current = self._row(alias)
            return True if current is None or current.space != row.space else None

        return changed(self.where, alias, once)

    def _row(self, alias: str) -> Named | None:
        """Return the row under the name, a namespace or an alias; None: no row."""
        session = self._space.session
        if not session.has_tables():
            return None
        # SERIAL: acknowledged changes are seen, whichever data centre they were made in.
        rows = session.rows("find", alias, level=ConsistencyLevel.SERIAL)
        return Named(*rows[0]) if rows else None

    def _decide(self, name: str, *values: object) -> None:
        """Send a conditional write, whose outcome is read back."""
        self._space.session.decide((name, *values), level=ConsistencyLevel.QUORUM, again=True)
