"""The comparison of a store's rows with those of a frame. It only reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tidegate.sinks.records import CatalogEntry, Finding, ReadAt
from tidegate.sinks.rules.layout import payload
from tidegate.sinks.rules.reads import values_at
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.staging.validate import shown_key

KEYS_AT_ONCE = 10_000
KEYS_NAMED = 3
"""The number of keys of one run that findings name; the rest are counted."""
KEYS_PER_PASS = 2_000_000
"""The approximate number of keys in memory at once; more are compared in several passes over the log."""


KeyTypes = Mapping[str, Sequence[str]]
"""The types of each table's key, so that findings name keys as a reader writes them."""


def compare_version(
    store: Store, version: int, run: Run, key_types: KeyTypes, stride: int = 1
) -> list[Finding]:
    """Find where the store's rows of exactly this version are not those of the run."""
    wrong = []
    for first in range(0, len(run.keys), KEYS_AT_ONCE):
        keys, values = run.keys.slice(first, KEYS_AT_ONCE), run.values.slice(first, KEYS_AT_ONCE)
        rows = store.rows_of(ReadAt(run.table, version, stride=stride), keys.to_pylist())
        if rows.equals(values):
            continue
        wrong += [
            (key, logged, stored)
            for key, logged, stored in zip(
                keys.to_pylist(), values.to_pylist(), rows.to_pylist(), strict=True
            )
            if logged != stored
        ]
    return _findings(store, version, run, wrong, key_types)


def _findings(
    store: Store,
    version: int,
    run: Run,
    wrong: list[tuple[bytes, bytes | None, bytes | None]],
    key_types: KeyTypes,
) -> list[Finding]:
    place = f"{store.part_of(run.group)}, version {version}, key group {run.group}, table {run.table}"
    types = key_types.get(run.table, ())
    named = [
        Finding(f"{place}, key {shown_key(key, types)}", *_shown(logged, stored))
        for key, logged, stored in wrong[:KEYS_NAMED]
    ]
    if len(wrong) > KEYS_NAMED:
        named.append(Finding(place, "rows as in the log", f"{len(wrong)} others, {KEYS_NAMED} of them named"))
    return named


def _shown(logged: bytes | None, stored: bytes | None) -> tuple[str, str]:
    """Describe two stored values by their sizes and the first byte that differs: findings go into logs."""
    expected, actual = (
        "no row" if each is None else f"a row of {len(each)} bytes" for each in (logged, stored)
    )
    if logged is not None and stored is not None:
        pairs = enumerate(zip(logged, stored, strict=False))
        same = next((index for index, (one, other) in pairs if one != other), min(len(logged), len(stored)))
        actual += f", another from byte {same + 1} on"
    return expected, actual


class Unlike(NamedTuple):
    """A key for which readers get another value than the log has.

    ``stored`` is the log's value, ``wanted`` the value that readers should get (None: no row), ``there`` the
    value that they get. Where they get the right one for now, because only flags, expiry or sequence differ,
    these are stored values.
    """

    key: bytes
    stored: bytes
    wanted: bytes | None
    there: bytes | None


class Horizon:
    """The comparison of a reader's values at one version with the log, read backwards from there."""

    def __init__(
        self, store: Store, entry: CatalogEntry, key_groups: int, changes: int, key_types: KeyTypes
    ) -> None:
        self._store, self._entry, self._key_groups, self._key_types = store, entry, key_groups, key_types
        self._passes = min(key_groups, 1 + changes // KEYS_PER_PASS)
        self._seen: dict[tuple[int, str], dict[bytes, bool]] = {}

    def passes(self) -> Iterator[range]:
        """Yield ranges of key groups, each with few enough keys to be in memory at once (I11)."""
        for number in range(self._passes):
            self._seen = {}
            first, end = (self._key_groups * index // self._passes for index in (number, number + 1))
            yield range(first, end)

    def compare(self, version: int, chunk: Chunk, groups: range) -> list[Finding]:
        """Find the keys, of those not met before, for which a reader does not get this version's value."""
        findings = []
        for run, unlike in self.unlike(version, chunk, groups):
            wrong = [(one.key, one.wanted, one.there) for one in unlike]
            findings += _findings(self._store, self._entry.version, run, wrong, self._key_types)
        return findings

    def unlike(self, version: int, chunk: Chunk, groups: range) -> Iterator[tuple[Run, list[Unlike]]]:
        """Yield, by run, the keys not met before for which a reader does not get this version's value.

        Rows from before a table's start are hidden by it, and may be in other key groups: the table may have
        been dropped and made again. They are not compared.
        """
        for run in chunk.runs:
            of_table, at_us = self._entry.tables.get(run.table), self._entry.decided_at_us
            if run.group not in groups or of_table is None or version < of_table.start:
                continue
            seen = self._seen.setdefault((run.group, run.table), {})
            first_met = {}
            for key, stored in zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True):
                if key not in seen:
                    first_met[key] = stored
                    seen[key] = payload(stored, at_us) is not None
            yield run, self.differing(run.table, first_met)

    def differing(self, table: str, stored: Mapping[bytes, bytes]) -> list[Unlike]:
        """List the keys for which a reader gets another value than the one in ``stored``."""
        read_at, keys = self._entry.read_at(table), list(stored)
        wrong = []
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[first : first + KEYS_AT_ONCE]
            rows = self._store.get_stored(read_at, some)
            values = values_at(self._store.where, read_at, some, rows).to_pylist()
            for key, row, actual in zip(some, rows.to_pylist(), values, strict=True):
                expected = payload(stored[key], read_at.at_us)
                if expected != actual:
                    wrong.append(Unlike(key, stored[key], expected, actual))
                elif expected is not None and row != stored[key]:  # such as another expiry
                    wrong.append(Unlike(key, stored[key], stored[key], row))
        return wrong

    def compare_counts(self, groups: range) -> list[Finding]:
        """Find key groups with more or fewer keys than the log, which was read whole."""
        findings = []
        for group in groups:
            for table in sorted(self._entry.tables):
                expected = sum(self._seen.get((group, table), {}).values())
                batches = self._store.scan(self._entry.read_at(table), group)
                actual = sum(batch.num_rows for batch in batches)
                if expected != actual:
                    place = f"{self._store.part_of(group)}, version {self._entry.version}, key group {group}"
                    findings.append(Finding(f"{place}, table {table}", f"{expected} keys", f"{actual} keys"))
        return findings
