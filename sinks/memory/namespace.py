"""The contents of one namespace of the reference store: dictionaries under one lock."""

from __future__ import annotations

import threading
from collections import defaultdict

from tidegate.options import LEASES_MAX
from tidegate.sinks.memory.attempts import NotedAttempts
from tidegate.sinks.memory.rows import without_versions
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.rules.leases import KeptLease
from tidegate.wal.record import TableSchema


class MemoryNamespace:
    """The contents of one namespace. ``rows``: (table, group) -> key -> version -> stored value."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.empty()

    def empty(self) -> None:
        """Remove everything, as if the namespace had never been created."""
        self.identity: Identity | None = None
        self.pointer = Pointer()
        self.heartbeat_us: int | None = None
        self.catalog: dict[int, CatalogEntry] = {}
        self.schemas: dict[str, TableSchema] = {}
        self.leases: dict[str, KeptLease] = {}
        self.max_leases = LEASES_MAX
        self.rows: dict[tuple[str, int], dict[bytes, dict[int, bytes]]] = defaultdict(dict)
        self.floors: dict[int, int] = {}
        self.applied: dict[tuple[int, int], dict[str, dict[int, int]]] = {}  # group, version -> counts
        self.sealed: set[tuple[int, int]] = set()
        self.attempts = NotedAttempts()

    def holding(self, now_us: int) -> list[KeptLease]:
        """List the leases that have not expired."""
        return [lease for lease in self.leases.values() if lease.expires_us > now_us]

    def published_us(self, version: int) -> int | None:
        """Return the time at which a version became visible."""
        entry = self.catalog.get(version)
        return entry.published_at_us if entry else None

    def drop_from(self, lowest: int) -> None:
        """Drop every row, count and seal of versions from the lowest one on."""
        for place, of_group in self.rows.items():
            self.rows[place] = without_versions(of_group, lowest)
        self.applied = {place: counts for place, counts in self.applied.items() if place[1] < lowest}
        self.sealed = {place for place in self.sealed if place[1] < lowest}

    def raise_floor(self, group: int, version: int) -> None:
        """Raise a key group's floor to at least this version, whose count and seal are needed no more."""
        self.floors[group] = max(self.floors.get(group, 0), version)
        self.applied.pop((group, version), None)
        self.sealed.discard((group, version))

    def raise_floors(self, floor: int) -> None:
        """Raise the floor of every key group, and drop the counts and seals up to it."""
        for group in range(self.identity.key_groups if self.identity else 0):
            self.floors[group] = max(self.floors.get(group, 0), floor)
        self.applied = {place: counts for place, counts in self.applied.items() if place[1] > floor}
        self.sealed = {place for place in self.sealed if place[1] > floor}
