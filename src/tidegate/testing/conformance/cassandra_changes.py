"""Changes to a namespace in Cassandra that no release makes, by plain CQL; each returns its undo."""

from __future__ import annotations

from typing import Any

import msgspec
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from tidegate.testing.conformance.changes import Undo
from tidegate.testing.conformance.writer import Writer


class CassandraChanges:
    """Changes to rows of a namespace. Those of its pointer are conditional writes, as a writer's."""

    def __init__(self, writer: Writer) -> None:
        self._store: Any = writer.store
        self._namespace, self._space = writer.namespace, writer.store._space.made.space  # type: ignore[attr-defined] # noqa: SLF001

    def identity(self, **fields: Any) -> Undo:
        (content,) = self._row("SELECT identity FROM tidegate_namespaces WHERE name = %s", self._namespace)
        changed = msgspec.json.encode(msgspec.json.decode(content) | fields).decode()
        statement = "UPDATE tidegate_namespaces SET identity = %s WHERE name = %s IF space = %s"
        return self._update(statement, (changed,), (content,), (self._namespace, self._space))

    def not_ready(self) -> Undo:
        statement = "UPDATE tidegate_namespaces SET state = %s WHERE name = %s IF space = %s"
        return self._update(statement, ("dropping",), ("here",), (self._namespace, self._space))

    def pointer(self, **fields: Any) -> Undo:
        names = ", ".join(fields)
        before = self._row(f"SELECT {names} FROM tidegate_pointers WHERE space = %s LIMIT 1", self._space)  # noqa: S608
        assignments = ", ".join(f"{name} = %s" for name in fields)
        statement = f"UPDATE tidegate_pointers SET {assignments} WHERE space = %s IF epoch >= 0"  # noqa: S608 - columns
        return self._update(statement, tuple(fields.values()), before, (self._space,))

    def schema(self, schema_id: str, content: bytes) -> Undo:
        of = self._space, schema_id
        (before,) = self._row("SELECT content FROM tidegate_schemas WHERE space = %s AND schema_id = %s", *of)
        statement = "UPDATE tidegate_schemas SET content = %s WHERE space = %s AND schema_id = %s"
        return self._update(statement, (content.decode(),), (before,), of)

    def value(self, table: str, key: bytes, version: int, stored: bytes) -> Undo:
        where = "WHERE space = %s AND tbl = %s AND kg = 0 AND key = %s AND version = %s"
        of = self._space, table, key, version
        (before,) = self._row(f"SELECT value FROM tidegate_rows {where}", *of)  # noqa: S608 - a constant
        statement = f"UPDATE tidegate_rows SET value = %s {where}"  # noqa: S608 - a constant
        return self._update(statement, (stored,), (before,), of)

    def _row(self, statement: str, *values: Any) -> tuple[Any, ...]:
        return tuple(self._execute(statement, values).one())

    def _update(
        self, statement: str, values: tuple[Any, ...], before: tuple[Any, ...], of: tuple[Any, ...]
    ) -> Undo:
        self._execute(statement, (*values, *of))
        return lambda: self._execute(statement, (*before, *of))

    def _execute(self, statement: str, values: tuple[Any, ...]) -> Any:
        space = self._store._space  # noqa: SLF001 - its connection
        text = statement.replace("tidegate_", f"{space.settings.keyspace}.tidegate_")
        return space.session.driver.execute(
            SimpleStatement(text, consistency_level=ConsistencyLevel.QUORUM), values
        )
