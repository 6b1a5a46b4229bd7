"""The keyspace and its tables: their existence, their shape, and their creation.

Only a caller that is allowed to creates them: `tidegate init`, or a store with ``create``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.cassandra.client.statements import shape, shapes, tables

if TYPE_CHECKING:
    from tidegate.sinks.cassandra.client.settings import CassandraSettings

KEYSPACES = "SELECT * FROM system_schema.keyspaces WHERE keyspace_name = %s"
COLUMNS = "SELECT * FROM system_schema.columns WHERE keyspace_name = %s"
CHANGE_WAITS = 6
"""A change of the schema takes longer than a request: this number of times ``timeout_s``."""


class Session(Protocol):
    """The part of ``session.Session`` that is used here."""

    where: str
    settings: CassandraSettings

    @property
    def local_dc(self) -> str: ...
    def hosts(self) -> list[Any]: ...
    def plain(
        self, cql: str, *values: Any, host: Any = None, timeout_s: float | None = None
    ) -> list[dict[str, Any]]: ...
    def agree(self) -> bool: ...


def is_made(session: Session) -> bool:
    """Return whether all tables exist. Raises: ConfigError: one has another shape."""
    existing = _found(session)
    _check_shapes(session, existing)
    return set(tables()) <= set(existing)


def missing(session: Session) -> list[str]:
    """Return tidegate's tables that the keyspace lacks."""
    return sorted(set(tables()) - set(_found(session)))


def make(session: Session) -> list[str]:
    """Create the missing parts of keyspace and tables; return descriptions of them.

    On return all nodes agree on them. Repeatable, and safe to race. Raises: ConfigError: the
    cluster refuses, the number of copies is not known, or a table of tidegate's has another shape.
    """
    settings, created = session.settings, []
    if not session.plain(KEYSPACES, settings.keyspace):
        copies = planned(session)
        if not copies:
            raise ConfigError(
                f"{session.where}: the number of copies of keyspace {settings.keyspace} is not known: set"
                " replication, as in store_options={'replication': {'<data centre>': 3}}, or a line"
                " replication=<data centre>:3 in the file of --store-config"
            )
        places = ", ".join(f"'{dc}': {number}" for dc, number in sorted(copies.items()))
        replication = f"{{'class': 'NetworkTopologyStrategy', {places}}}"
        _change(
            session, f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} WITH replication = {replication}"
        )
        shown = ", ".join(f"{dc}: {number}" for dc, number in sorted(copies.items()))
        created.append(f"keyspace {settings.keyspace} (copies: {shown})")
    existing = _found(session)
    for table, cql in tables().items():
        if table not in existing:
            _change(session, cql.replace(f" {table} ", f" {settings.keyspace}.{table} ", 1))
            created.append(f"table {table}")
    _check_shapes(session, _found(session))
    return created


def planned(session: Session) -> dict[str, int]:
    """Return the copies per data centre of a keyspace created with these settings; empty: not known."""
    return {dc or session.local_dc: number for dc, number in session.settings.replication.items()}


def _change(session: Session, cql: str) -> None:
    """Change the schema, and wait until all nodes agree.

    Every client asks the same node: two nodes that create one table at the same moment would each
    give it another id, and no longer agree.
    """
    timeout_s = CHANGE_WAITS * session.settings.timeout_s
    session.plain(cql, host=next(iter(session.hosts()), None), timeout_s=timeout_s)
    if not session.agree():
        raise StoreUnavailableError(
            f"{session.where}: the nodes do not agree on the schema; look for one that is down with"
            " `nodetool describecluster`, then repeat"
        )


def _found(session: Session) -> dict[str, dict[str, str]]:
    """Return tidegate's tables as they are."""
    columns: dict[str, dict[str, str]] = defaultdict(dict)
    for column in session.plain(COLUMNS, session.settings.keyspace):
        if column["table_name"] in tables():
            columns[column["table_name"]][column["column_name"]] = shape(
                column["kind"], column["type"], column["position"], column["clustering_order"]
            )
    return columns


def _check_shapes(session: Session, existing: dict[str, dict[str, str]]) -> None:
    """Raise ConfigError for a table that lacks a column or has it in another shape; more columns are fine."""
    for table in sorted(existing):
        for column, expected in shapes()[table].items():
            is_there = existing[table].get(column)
            if is_there != expected:
                named = f"table {table} of keyspace {session.settings.keyspace}"
                raise ConfigError(
                    f"{session.where}: {named} differs from tidegate's schema: its column {column} is"
                    f" {is_there or 'missing'}, not {expected}; use another keyspace, or move that table away"
                )
