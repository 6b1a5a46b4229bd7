"""A small namespace with typed tables, written without Spark: for documentation, demonstrations and tests.

``write_flights`` makes three versions of four tables; ``Example`` writes any others. The values are those
that a Spark job would have written, by the same code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.keys.groups import encode_key
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.values.encode import encoder_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import JSON_RENAMED, JSON_STATES, Column, TableSchema

LINEAGE = "8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11"
"""The query id that the example's batches are of."""

SCHEMAS = {
    "aircraft": TableSchema(
        (Column("tailnum", "string"),), (Column("carrier", "string"), Column("flights", "int"))
    ),
    "airports": TableSchema(
        (Column("origin", "string"),), (Column("departures", "bigint"), Column("delay", "double"))
    ),
    "legs": TableSchema((Column("origin", "string"), Column("flight", "int")), (Column("dest", "string"),)),
    "notes": TableSchema((Column("id", "binary"),), (Column("note", "binary"),), "bytes"),
}
"""The example's tables."""

Rows = Mapping[str, Mapping[Any, Any]]
"""By table, values by key as a reader sees them; None deletes."""


@dataclasses.dataclass
class TypedBarrier(ArrowBarrier):
    """An ``ArrowBarrier`` whose tables have schemas of their own."""

    typed: Mapping[str, TableSchema] = dataclasses.field(default_factory=dict)

    @property
    def schemas(self) -> dict[str, TableSchema]:
        return {name: self.typed[name] for name in self.rows}


class Example:
    """A writer of typed rows; its batches are numbered from 0.

    Of several stores it writes to the first; ``followers_in(example.driver)`` bring the others up to date.
    """

    def __init__(
        self,
        wal: str,
        store: str | Sequence[str],
        namespace: str = "flights",
        *,
        lineage: str | None = LINEAGE,
        options: Options | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        where = Endpoints.of(namespace, wal, store)
        primary, *others = (open_store(ref.url, namespace, ref.options, clock) for ref in where.stores)
        self.driver = Coordinator(
            where, open_log(wal, namespace), primary, options or Options(key_groups=8), clock
        )
        self.driver.others = tuple(others)
        self.lineage = lineage or LINEAGE  # None: it is opened for loads alone
        self.schemas = dict(SCHEMAS)
        open_namespace(self.driver, lineage)

    def write(
        self,
        rows: Rows,
        starts: frozenset[str] = frozenset(),
        source_offsets: str = "",
        *,
        batch_id: int | None = None,
        drops: frozenset[str] = frozenset(),
    ) -> int:
        """Commit one batch, by default the next one; return the version that it made.

        ``starts``: tables that it empties first; ``drops``: tables that it drops.
        """
        last = self.driver.folded.last_batch
        number = last[1] + 1 if last else 0
        encoded = {
            name: {self._key(name, key): self._value(name, value) for key, value in of_table.items()}
            for name, of_table in rows.items()
        }
        barrier = TypedBarrier(
            self.driver.log,
            encoded,
            batch(
                self.lineage,
                number if batch_id is None else batch_id,
                generation=self.driver.folded.generation,
            ),
            self.driver.folded.key_groups,
            starts=starts,
            drops=drops,
            typed=self.schemas,
            source_offsets=source_offsets,
        )
        return commit(self.driver, barrier).version

    def close(self) -> None:
        """Release log and store."""
        for store in (self.driver.store, *self.driver.others):
            store.close()
        self.driver.log.close()

    def _key(self, table: str, key: Any) -> bytes:
        return encode_key(key if isinstance(key, tuple) else (key,), self.schemas[table].key_types)

    def _value(self, table: str, value: Any) -> bytes | None:
        if value is None:
            return None
        if self.schemas[table].value_format == "bytes":
            return bytes(value)
        if self.schemas[table].value_format in (JSON_RENAMED, JSON_STATES):
            return encoder_of(self.schemas[table]).encode(value)
        return msgspec.json.encode(value)


BATCHES: tuple[Rows, ...] = (
    {
        "aircraft": {
            "N14228": {"carrier": "UA", "flights": 1},
            "N24211": {"carrier": "UA", "flights": 1},
        },
        "airports": {"EWR": {"departures": 1, "delay": 2.0}, "LGA": {"departures": 1, "delay": 4.0}},
        "legs": {("EWR", 1545): {"dest": "IAH"}, ("LGA", 1714): {"dest": "IAH"}},
    },
    {
        "aircraft": {"N14228": {"carrier": "UA", "flights": 2}},
        "airports": {"EWR": {"departures": 2, "delay": 1.5}},
        "notes": {b"\x00\x01": b"plain bytes"},
    },
    {
        "aircraft": {"N24211": None},
        "airports": {"JFK": {"departures": 1, "delay": -1.0}},
    },
)
"""The batches of ``write_flights``."""


def write_flights(wal: str, store: str, namespace: str = "flights", *, alias: str = "") -> None:
    """Make the example namespace, versions 1 to 3, and set an alias for it."""
    example = Example(wal, store, namespace)
    for rows in BATCHES:
        example.write(rows)
    example.close()
    if alias:
        ref = parse_store(store)
        set_alias(ref, alias, checked_target(ref, alias, namespace))
