"""Diagnosis of wrong answers: traced back to the batches that they show, which selects the broken rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tidegate.torture.history import events
from tidegate.torture.history.files import canonical
from tidegate.torture.history.offers import Offer
from tidegate.torture.history.source import Source
from tidegate.torture.judge.answers import Mismatch
from tidegate.torture.judge.tables import Tables
from tidegate.torture.judge.timeline import Timeline

Place = tuple[str, str]
"""A table and a key."""

LONGEST = 160
"""The number of characters of a value that a finding shows."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The operations of an offer on one key."""

    offer: Offer
    value: bytes | None
    items: list[Any]
    numbers: dict[str, Any]


class Diagnosis:
    """The diagnosis of one namespace. ``made``: the offer that each version is of."""

    def __init__(
        self,
        timeline: Timeline,
        made: dict[int, Offer],
        source: Source,
        witness: Callable[[int, Iterable[str]], bool],
    ) -> None:
        self._timeline, self._made, self._source, self._witness = timeline, made, source, witness
        self._versions = {(offer.origin, offer.content): version for version, offer in made.items()}
        self._parts: dict[Place, list[Part]] = {}
        self._values: dict[Place, dict[bytes | None, list[int]]] = {}
        """By key: the values that it should hold, and the versions that made each."""

    def judge(self, mismatches: list[Mismatch]) -> None:
        """Add a finding for each."""
        self._gather({(m.wrong.table, m.wrong.key) for m in mismatches if m.wrong.key is not None})
        for mismatch in mismatches:
            self._find(mismatch)

    def _gather(self, places: set[Place]) -> None:
        """Collect what each offer did to the keys that were answered wrongly, and their expected values."""
        if not places:
            return
        names = {name for name, _ in places}
        whole = set[str]()  # tables that are counted, and those that count them: all their keys are needed
        for offers in self._timeline.offers.values():
            for offer in offers:
                for change in self._source.changes(offer):
                    if change.counts and change.table in names:
                        whole |= {change.table, change.counts}
                    for key in keys_of(change, places):
                        self._parts.setdefault((change.table, key), []).append(part_of(offer, change, key))
        tables = Tables()
        for version, offer in sorted(self._made.items()):
            changes = self._source.changes(offer)
            tables.apply([each if each.table in whole else only(each, places) for each in changes], version)
            for name, table in tables.by_name.items():
                for key in (key for key, writer in table.writers.items() if writer == version):
                    values = self._values.setdefault((name, key), {})
                    values.setdefault(table.values.get(key), []).append(version)

    # -- one wrong answer ----------------------------------------------------------------------------

    def _find(self, mismatch: Mismatch) -> None:
        wrong = mismatch.wrong
        horizon, retired = self._timeline.horizon.before(mismatch.began)
        lines = [str(mismatch.place)]
        if mismatch.other:
            rule, why = "repeatable", "the same snapshot had another answer before or after"
            lines.append(mismatch.other)
        elif mismatch.version < horizon and mismatch.loose is None:
            rule, why = (
                "retired",
                f"the horizon was {horizon} before the read began, so it may only be refused",
            )
            lines.append(retired)
        elif wrong.key is None:
            rule, why = "atomic", "rows are missing, are too many, or are others"
        else:
            rule, why, more = self._traced(mismatch)
            lines += more
        if (expected := self._made.get(wrong.writer)) is not None:
            lines.append(str(expected.place))
        what = f"{self._reader(mismatch)}: {why}"
        self._timeline.find(
            rule, what, self._expected(wrong.expected, wrong.writer), shown(wrong.seen), *lines
        )

    def _reader(self, mismatch: Mismatch) -> str:
        wrong = mismatch.wrong
        key = "a scan" if wrong.key is None else f"key {wrong.key!r}"
        if mismatch.loose is None:
            return f"snapshot of version {mismatch.version}, table {wrong.table!r}, {key}"
        versions = f"version {mismatch.version}"
        if mismatch.loose < mismatch.version:
            versions = f"versions {mismatch.loose} to {mismatch.version}, of which the last is compared"
        return f"read at the newest version ({versions}), table {wrong.table!r}, {key}"

    def _expected(self, expected: bytes | None, writer: int) -> str:
        if not writer:
            return shown(expected)
        return f"{shown(expected)}, {'deleted' if expected is None else 'written'} in version {writer}"

    def _version(self, offer: Offer) -> int | None:
        return self._versions.get((offer.origin, offer.content))

    def _traced(self, mismatch: Mismatch) -> tuple[str, str, list[str]]:
        """Return rule, reason and further lines, by the cause of a key's seen value."""
        wrong = mismatch.wrong
        place = (wrong.table, wrong.key or "")
        parts = self._parts.get(place, [])
        if wrong.seen is None:
            return self._missing(mismatch)
        if versions := self._values.get(place, {}).get(wrong.seen):
            return self._of_versions(mismatch, versions)
        seen, expected = decoded(wrong.seen), decoded(wrong.expected)
        if isinstance(seen, list) and any(part.items for part in parts):
            return self._by_items(mismatch, parts, seen, expected or [])
        if isinstance(seen, dict) and isinstance(expected, dict):
            diagnosis = self._by_numbers(mismatch, parts, seen, expected)
            if diagnosis is not None:
                return diagnosis
        return self._unmade([part.offer for part in parts if part.value == wrong.seen])

    def _of_versions(self, mismatch: Mismatch, versions: list[int]) -> tuple[str, str, list[str]]:
        """Diagnose a seen value that these versions gave the key."""
        before = [version for version in versions if version <= mismatch.version]
        if not before:
            later = versions[0]
            return "atomic", f"it is already as version {later} makes it", [self._line(later)]
        made, writer = before[-1], mismatch.wrong.writer
        if mismatch.wrong.expected is None:
            why = f"version {writer} deleted it, and it is as version {made} made it"
            return "resurrected", why, [self._line(made)]
        rule, why, lines = self._missing(mismatch)
        return rule, f"{why}; it is as version {made} made it", [*lines, self._line(made)]

    def _unmade(self, writers: list[Offer]) -> tuple[str, str, list[str]]:
        """Diagnose a value of no version at all."""
        if not writers:
            return "ghost", "nobody ever offered this value", []
        lines = [str(offer.place) for offer in writers[:3]]
        fenced = [offer for offer in writers if offer.fenced]
        if fenced:
            return "zombie", f"only {fenced[0].origin} wrote it, and {fenced[0].impossible()}", lines
        why = writers[0].impossible() or "another attempt of the batch is the one that was decided, or none"
        return "ghost", f"only {writers[0].origin} wrote it, which is not decided so: {why}", lines

    def _missing(self, mismatch: Mismatch) -> tuple[str, str, list[str]]:
        """Diagnose a missing change: its whole version is lost, or the snapshot is torn."""
        writer = mismatch.wrong.writer
        offer = self._made.get(writer)
        if offer is None:
            return "atomic", "no version changes this key", []
        tables = {change.table for change in self._source.changes(offer)}
        if self._witness(writer, tables):
            return "atomic", f"the change of version {writer} is missing, others of it were seen", []
        return "lost", f"the change of version {writer} is missing, as are all others of it", []

    def _by_items(
        self, mismatch: Mismatch, parts: list[Part], seen: list[Any], expected: list[Any]
    ) -> tuple[str, str, list[str]]:
        """Diagnose a list, by its items."""
        left, right = counted(seen), counted(expected)
        twice = [item for item in left if left[item] > right.get(item, 0) > 0]
        if twice:
            return "doubled", f"item {shown(twice[0])} is there more often than it was appended", []
        strange = [item for item in left if item not in right]
        if strange:
            owners = [part.offer for part in parts if strange[0] in counted(part.items)]
            later = [version for offer in owners if (version := self._version(offer)) is not None]
            rule, why, lines = self._of_versions(mismatch, later) if later else self._unmade(owners)
            return rule, f"item {shown(strange[0])}: {why}", lines
        missing = [item for item in right if left.get(item, 0) < right[item]]
        if not missing:
            return "order", "the items are in another order than their versions", []
        owners = [part.offer for part in parts if missing[0] in counted(part.items)]
        versions = [version for offer in owners if (version := self._version(offer)) is not None]
        wrong = dataclasses.replace(mismatch.wrong, writer=max(versions, default=mismatch.wrong.writer))
        rule, why, lines = self._missing(dataclasses.replace(mismatch, wrong=wrong))
        return rule, f"item {shown(missing[0])} is missing: {why}", lines

    def _by_numbers(
        self, mismatch: Mismatch, parts: list[Part], seen: dict[str, Any], expected: dict[str, Any]
    ) -> tuple[str, str, list[str]] | None:
        """Diagnose a sum, by its surplus or deficit; None when no batch explains it."""
        columns = [name for name in expected if seen.get(name) != expected[name]]
        if not columns or not isinstance(seen.get(columns[0]), int | float):
            return None
        name = columns[0]
        off = seen[name] - expected[name]
        for part in parts:
            version = self._version(part.offer)
            number = part.numbers.get(name)
            if number is None or number not in (off, -off):
                continue
            if number == -off and version is not None and version <= mismatch.version:
                wrong = dataclasses.replace(mismatch.wrong, writer=version)
                return self._missing(dataclasses.replace(mismatch, wrong=wrong))
            if number == off and version is not None and version <= mismatch.version:
                why = f"{name}: the number that version {version} adds counts twice"
                return "doubled", why, [self._line(version)]
            if number == off and version is None:
                return self._unmade([part.offer])
        return None

    def _line(self, version: int) -> str:
        return str(self._made[version].place)


def keys_of(change: events.Change, places: set[Place]) -> list[str]:
    """Return the keys of a change that were answered wrongly somewhere."""
    keys = {*change.rows, *change.append, *change.reduce}
    return [key for key in keys if (change.table, key) in places]


def part_of(offer: Offer, change: events.Change, key: str) -> Part:
    row = change.rows.get(key)
    value = None if row is None else canonical(row)
    return Part(offer, value, change.append.get(key, []), change.reduce.get(key, {}))


def only(change: events.Change, places: set[Place]) -> events.Change:
    """Copy a change without the keys that are not wanted."""
    keys = keys_of(change, places)
    return events.Change(
        table=change.table,
        replace=change.replace,
        rows={key: change.rows[key] for key in keys if key in change.rows},
        append={key: change.append[key] for key in keys if key in change.append},
        reduce={key: change.reduce[key] for key in keys if key in change.reduce},
        reducers=change.reducers,
    )


def decoded(value: bytes | None) -> Any:
    return None if value is None else msgspec.json.decode(value)


def counted(items: list[Any]) -> dict[bytes, int]:
    """Count each item of a list."""
    counts: dict[bytes, int] = {}
    for item in items:
        key = canonical(item)
        counts[key] = counts.get(key, 0) + 1
    return counts


def shown(value: bytes | None) -> str:
    """Format a value as a finding shows it."""
    if value is None:
        return "absent"
    text = value.decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"
