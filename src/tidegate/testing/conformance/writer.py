"""The namespaces that the conformance program writes, and what every reader has to see of each version.

``Writer`` commits batches through the code that Spark's driver runs. ``Expected`` computes the rows of each
version from the batches alone, without a store.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.drop import drop_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.keys.groups import encode_key
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.conformance.canonical import arrow_of, canonical, canonical_key
from tidegate.testing.example import TypedBarrier
from tidegate.testing.process.driver import make_driver_of
from tidegate.values.encode import encoder_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import TableSchema

LINEAGE = "b1d7c1d2-6a8e-4b64-9a0f-5a1d4f1d7a01"
Rows = Mapping[str, Mapping[Any, Any]]
"""By table, values by key as Python values; None deletes."""


class SteppedClock(Clock):
    """A clock whose wall time is moved, so that rows expire without waiting."""

    def __init__(self, ahead_us: int = 0) -> None:
        self.ahead_us = ahead_us

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


@dataclasses.dataclass(frozen=True)
class Place:
    """A store, and the log of the program's own."""

    store: str
    store_options: dict[str, Any]
    wal: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A row as it was written: values by field, and the time at which it expires; 0: never."""

    fields: Any
    expiry_us: int = 0


class Expected:
    """The rows of every version, by table and canonical key as JSON."""

    def __init__(self) -> None:
        self.versions: dict[int, dict[str, dict[Any, Row]]] = {0: {}}
        self.schemas: dict[int, dict[str, TableSchema]] = {0: {}}
        self.decided_us: dict[int, int] = {0: 0}

    def tables(self, version: int) -> list[str]:
        return sorted(self.versions[version])

    def schema(self, version: int, table: str) -> TableSchema:
        return self.schemas[version][table]

    def rows(self, version: int, table: str) -> list[tuple[list[Any], Any]]:
        """List the live rows of a table at a version, as canonical keys and values."""
        schema, at_us = self.schema(version, table), self.decided_us[version]
        return [
            (canonical_key(schema.key_types, key), shown(schema, row.fields))
            for key, row in self.versions[version][table].items()
            if not row.expiry_us or at_us < row.expiry_us
        ]

    def absent(self, version: int, table: str) -> list[list[Any]]:
        """List keys of the table that are absent at this version, and present at another one or expired."""
        schema, at_us = self.schema(version, table), self.decided_us[version]
        every = {key for tables in self.versions.values() for key in tables.get(table, ())}
        rows = self.versions[version][table]
        expired = {key for key, row in rows.items() if row.expiry_us and row.expiry_us <= at_us}
        return [
            canonical_key(schema.key_types, key) for key in sorted((every - rows.keys()) | expired, key=repr)
        ]


def shown(schema: TableSchema, fields: Any) -> Any:
    """Return the canonical value of a row that was written with these fields."""
    if schema.value_format == "bytes":
        return bytes(fields).hex()
    return {
        column.name: canonical(arrow_of(column.type), fields.get(column.field)) for column in schema.value
    }


class Writer:
    """A writer of one namespace, which ``open`` makes, and what its readers have to see."""

    def __init__(
        self,
        place: Place,
        namespace: str,
        schemas: dict[str, TableSchema],
        clock: SteppedClock,
        **options: Any,
    ) -> None:
        self.place, self.namespace, self.schemas, self.clock = place, namespace, schemas, clock
        self.expected = Expected()
        endpoints = Endpoints(namespace, place.wal, place.store, {}, place.store_options)
        self.store = open_store(place.store, namespace, place.store_options, clock)
        log = open_log(place.wal, namespace)
        settings = Options(allow_unsafe=True, parallelism=1, heartbeat_s=3_600.0, **options)
        self.driver = make_driver_of(endpoints, log, self.store, settings, clock)
        self._stack = contextlib.ExitStack()
        self._stack.callback(log.close)
        self._stack.callback(self.store.close)

    def open(self) -> None:
        """Make the namespace. Durable: on return it is in the log and in the store."""
        open_namespace(self.driver, LINEAGE)

    @property
    def uuid(self) -> str:
        return str(self.driver.folded.namespace)

    @property
    def visible(self) -> int:
        return max(self.expected.versions)

    def write(
        self, rows: Rows, *, starts: frozenset[str] = frozenset(), drops: frozenset[str] = frozenset()
    ) -> int:
        """Commit a batch; return its version, which is visible."""
        last = self.driver.folded.last_batch
        encoded = {
            table: {self._key(table, key): self._value(table, value) for key, value in of_table.items()}
            for table, of_table in rows.items()
        }
        barrier = TypedBarrier(
            self.driver.log,
            encoded,
            batch(LINEAGE, last[1] + 1 if last else 0),
            self.driver.folded.key_groups,
            parallelism=1,
            starts=starts,
            drops=drops,
            typed=self.schemas,
        )
        staged_at = self.clock.ahead_us
        decided = commit(self.driver, barrier)
        assert staged_at == self.clock.ahead_us
        self._expect(decided.version, decided.decided_at_us, rows, starts | drops, drops)
        return decided.version

    def _key(self, table: str, key: Any) -> bytes:
        return encode_key(key if isinstance(key, tuple) else (key,), self.schemas[table].key_types)

    def _value(self, table: str, value: Any) -> bytes | None:
        if value is None:
            return None
        schema = self.schemas[table]
        if schema.value_format == "bytes":
            return bytes(value)
        return encoder_of(schema).encode({c.name: value[c.field] for c in schema.value if c.field in value})

    def _expect(
        self, version: int, decided_us: int, rows: Rows, emptied: frozenset[str], drops: frozenset[str]
    ) -> None:
        expected = self.expected
        tables = {
            table: {} if table in emptied else dict(of_table)
            for table, of_table in expected.versions[version - 1].items()
            if table not in drops or table in rows
        }
        for table, of_table in rows.items():
            ttl_us = self.driver.options.ttl_us(table)
            for key, fields in of_table.items():
                if fields is None:
                    tables.setdefault(table, {}).pop(key, None)
                else:
                    # Decided after it was staged: within the time to live that tests step over.
                    tables.setdefault(table, {})[key] = Row(fields, decided_us + ttl_us if ttl_us else 0)
        expected.versions[version] = tables
        known = {name: one for name, one in expected.schemas[version - 1].items() if name in tables}
        expected.schemas[version] = known | {table: self.schemas[table] for table in rows}
        expected.decided_us[version] = decided_us

    def release_leases(self) -> None:
        """Release the leases of all readers."""
        for info in self.store.leases():
            self.store.release(info.lease_id)

    def retire(self) -> int:
        """Retire the versions that neither the options nor leases keep; return the oldest readable one."""
        retire_up_to(self.driver.log, self.store, self.driver.folded, self.driver.options, lambda: False)
        return max(self.store.pointer().horizon, 1)

    def close(self) -> None:
        """Release log and store."""
        self._stack.close()

    def drop(self) -> None:
        """Remove the namespace from store and log. Repeatable."""
        drop_namespace(self.driver)
