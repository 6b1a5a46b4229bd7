"""Changes to a namespace in Redis that no release makes, by plain commands; each returns its undo."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.keys import beside, changes_key, header_key, meta_key
from tidegate.testing.conformance.changes import Undo
from tidegate.testing.conformance.writer import Writer


class RedisChanges:
    """Changes to fields of a namespace's hashes."""

    def __init__(self, writer: Writer) -> None:
        self._store: Any = writer.store
        self._namespace, self._uuid = writer.namespace, writer.uuid.encode()
        self._meta, self.header_key = meta_key(self._namespace), header_key(self._namespace, 0)

    def identity(self, **fields: Any) -> Undo:
        content = msgspec.json.decode(self._ask(self._meta, b"HGET", b"identity"))
        return self._set(self._meta, identity=msgspec.json.encode(content | fields))

    def not_ready(self) -> Undo:
        return self._set(self._meta, ready=None)

    def pointer(self, **fields: Any) -> Undo:
        return self._set(self._meta, **{name: str(value).encode() for name, value in fields.items()})

    def fields(self, **fields: bytes | None) -> Undo:
        """Change fields beside the pointer's; None removes one."""
        return self._set(self._meta, **fields)

    def alias(self, name: str, field: str) -> None:
        """Remove a field of an alias."""
        key = beside(name, "alias")
        self._ask(key, b"HDEL", field.encode())

    def schema(self, schema_id: str, content: bytes) -> Undo:
        return self._set(beside(self._namespace, "schemas"), **{schema_id: content})

    def value(self, table: str, key: bytes, version: int, stored: bytes) -> Undo:
        layer = changes_key(self._namespace, 0, table, version, self._uuid)
        before = self._ask(layer, b"HGET", key)
        self._ask(layer, b"HSET", key, stored)
        return lambda: self._ask(layer, b"HSET", key, before)

    def uuid(self, uuid: str) -> Undo:
        """Give the pointer another uuid, as a namespace of the same name that was made since."""
        return self._set(self._meta, uuid=uuid.encode())

    def header(self, **fields: bytes | None) -> Undo:
        """Change fields of the key group's header; None removes one."""
        return self._set(self.header_key, **fields)

    def without_header(self) -> Undo:
        """Remove the header, as a server does that lost the key group."""
        return self._without(self.header_key)

    def _without(self, key: bytes) -> Undo:
        flat = self._ask(key, b"HGETALL")
        self._ask(key, b"DEL")
        return lambda: self._ask(key, b"HSET", *flat)

    def without_layer(self, table: str, version: int) -> Undo:
        """Remove a layer that the header lists."""
        return self._without(changes_key(self._namespace, 0, table, version, self._uuid))

    def servers(self, server_id: bytes) -> Undo:
        """List one server alone as compared with the log."""
        return self._set(self._meta, servers=server_id, processes=None)

    def listed_servers(self) -> list[str]:
        """Return the ids of the servers that the pointer lists."""
        servers: bytes = self._ask(self._meta, b"HGET", b"servers")
        return servers.decode().split(",")

    def _set(self, key: bytes, **fields: bytes | None) -> Undo:
        before = {name: self._ask(key, b"HGET", name.encode()) for name in fields}
        self._put(key, fields)
        return lambda: self._put(key, before)

    def _put(self, key: bytes, fields: dict[str, bytes | None]) -> None:
        for name, value in fields.items():
            if value is None:
                self._ask(key, b"HDEL", name.encode())
            else:
                self._ask(key, b"HSET", name.encode(), value)

    def _ask(self, key: bytes, command: bytes, *arguments: bytes) -> Any:
        (reply,) = self._store._space.calls.run([plain(key, command, key, *arguments)])  # noqa: SLF001 - its connection
        return reply
