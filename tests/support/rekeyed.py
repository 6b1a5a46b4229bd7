"""Namespace ``flights`` with 8 key groups and tables of every kind, to be moved to ``flights_32``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from support.places import rows_by_table
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.transfer.rekey.move import finish, follow, is_finished
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.example import BATCHES, LINEAGE, Example, Rows, TypedBarrier
from tidegate.wal.record import Column, LoadOrigin, TableSchema
from tidegate.wal.staging.due_queue import TIMES, Due, Parts, place_key
from tidegate.wal.staging.own_tables import DUE_COLUMNS, QUEUE_SCHEMA
from tidegate.wal.value_flags import DELETES

NEW = "flights_32"
QUEUES = "_due_at."
OFFSETS = '[{"numbers":{"0":7}}]'
LGA = {"departures": 2, "delay": 3.0}
MORE: Rows = {"airports": {"LGA": LGA}}
DUES = TableSchema((Column("tailnum", "string"),), DUE_COLUMNS)


class RekeyedPlace:
    """The namespace, by default with three batches; ``old`` is its writer."""

    def __init__(
        self, wal: str, store: str, batches: Sequence[Rows] = BATCHES, lineage: str | None = LINEAGE
    ) -> None:
        self.wal, self.store = wal, store
        self.old = self.writer(lineage=lineage, key_groups=8)
        for rows in batches:
            self.old.write(rows, source_offsets=OFFSETS)

    def writer(self, namespace: str = "flights", lineage: str | None = LINEAGE, **options: Any) -> Example:
        given: dict[str, Any] = {
            "apply_deadline_s": 0.5,
            "table_key_groups": {"aircraft": 2},
            "ttl": {"notes": "1d"},
        }
        return Example(self.wal, self.store, namespace, lineage=lineage, options=Options(**given | options))

    def load(self, token: str, rows: Rows) -> None:
        """Write a load, once per token."""
        driver = self.old.driver
        encoded = {
            name: {self.old._key(name, key): self.old._value(name, value) for key, value in of.items()}
            for name, of in rows.items()
        }
        commit(driver, TypedBarrier(driver.log, encoded, LoadOrigin(token), 8, typed=self.old.schemas))

    def write_all_kinds(self) -> Mapping[str, Due]:
        """Write six versions: deletes, an emptied, a dropped and a remade table, a load, due times."""
        own = {"_due.aircraft": DUES, "_due_at.aircraft": QUEUE_SCHEMA}
        self.old.schemas |= {"gone": self.old.schemas["airports"], **own}
        self.old.write({"gone": {"EWR": {"departures": 1, "delay": 1.0}}, "legs": {("EWR", 1545): None}})
        self.old.write({"legs": {("JFK", 7): {"dest": "LAX"}}}, starts=frozenset({"legs"}))
        self.old.write({}, drops=frozenset({"gone"}))
        self.old.write({"gone": {"BOS": {"departures": 5, "delay": 0.0}}, "notes": {b"k": b"v"}})
        self.load("airports-1", MORE)
        dues = {f"N{n}": Due(1_000 * (n % 3 + 1), 1_000 * (n % 2 + 1)) for n in range(9)}
        self.old.write(
            {
                "_due.aircraft": {key: msgspec.to_builtins(due) for key, due in dues.items()},
                "_due_at.aircraft": {(group, *TIMES): b"of the old key groups" for group in (0, 4)},
                "aircraft": {key: {"carrier": "AA", "flights": 1} for key in dues},
            }
        )
        return dues

    @contextlib.contextmanager
    def coordinators(self, key_groups: int | None = 32) -> Iterator[tuple[Coordinator, Coordinator]]:
        """Give coordinators of both namespaces, not open yet, as the command makes them."""
        where = [Endpoints.of(name, self.wal, [parse_store(self.store)]) for name in ("flights", NEW)]
        options = Options(key_groups=key_groups)
        with coordinator_for(where[0]) as old, coordinator_for(where[1], options) as new:
            yield old, new

    def follow(self) -> int:
        """Follow, and return the number of versions that the copy lacks."""
        with self.coordinators() as (old, new):
            return follow(old, new).behind

    def finish(self) -> None:
        """Do the rest, as with ``--finish``."""
        with self.coordinators() as (old, new):
            if not is_finished(old, new):
                finish(old, new, follow(old, new).source, lambda _, __: None)

    def rows(self, namespace: str = "flights") -> tuple[Any, Any]:
        """Return the rows as readers get them, and as they are stored, but those of queues."""
        stored = {at: value for at, value in self.stored(namespace).items() if not at[0].startswith(QUEUES)}
        return rows_by_table(self.store, namespace), stored

    def stored(self, namespace: str) -> dict[tuple[str, bytes], bytes]:
        """Return the rows as they are stored, each of which is in its key group."""
        found = {}
        with contextlib.closing(open_store(self.store, namespace)) as store:
            visible, identity = store.pointer().visible, store.identity()
            assert identity is not None
            (entry,) = store.catalog(visible, visible)
            every = range(identity.key_groups)
            for table, at in entry.tables.items():
                for group, rows in store.scan_groups_stored(ReadAt(table, visible, at.start), every):
                    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
                        assert group == key_group(key, identity.key_groups, at.apart)
                        found[table, key] = value
        return {at: value for at, value in found.items() if value[:1] not in DELETES}


def queue_of(place: RekeyedPlace) -> dict[str, int]:
    """Read the queue of ``aircraft`` in the copy: the time of each key; every row is in its place."""
    queue = {key: value[1:] for (table, key), value in place.stored(NEW).items() if table.startswith(QUEUES)}
    times: dict[str, int] = {}
    for group in range(0, 32, 16):
        listed = queue.pop(place_key(group, *TIMES), None)
        for parts in [] if listed is None else msgspec.msgpack.decode(listed, type=list[Parts]):
            for part in range(parts.first, parts.end):
                content = queue.pop(place_key(group, parts.due_us, part))
                keys = msgspec.msgpack.decode(content, type=list[bytes])
                assert {key_group(key, 32, 16) for key in keys} == {group}
                times |= {key.decode(): parts.due_us for key in keys}
    assert not queue
    return times
