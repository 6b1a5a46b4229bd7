"""Rows of a store that are changed at random: each change that a reader could see is a finding of ``verify``.

    python -m tampering.rows --cases 5000 --seed 1
    python -m tampering.rows --cases 5000 --store redis://127.0.0.1:6379
    python -m tampering.rows --cases 500 --store cassandra://127.0.0.1:9042/tampered

A case puts back a small namespace, changes one row or one field of it, reads every version that can be read,
and verifies. A change is missed if a read differs or fails, or a later version would show it, and ``verify``
has no finding. The stores are in ``row_places.py``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tidegate.committers.operations.verify import verify
from tidegate.errors import TidegateError
from tidegate.keys.groups import key_group
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.wal.open_log import open_log

NAMESPACE, KEY_GROUPS = "flights", 2
NEW_TABLE, STRANGE = "gates", "strange"
"""A table that exists since a version above the horizon, and one that no version has."""


class Row(NamedTuple):
    """A stored row."""

    table: str
    group: int
    key: bytes
    version: int
    value: bytes


class Place(Protocol):
    """A store whose rows can be changed. ``metadata`` changes a field of pointer, catalog and the like."""

    url: str
    wal: str
    options: dict[str, Any]
    horizon: int
    visible: int

    def put_back(self) -> None: ...
    def rows(self) -> list[Row]: ...
    def put(self, row: Row) -> None: ...
    def remove(self, row: Row) -> None: ...
    def metadata(self, chance: random.Random) -> str: ...
    def close(self) -> None: ...


Change = Callable[[Place, random.Random, Row], None]
"""Changes one row, or adds one next to it."""


def _flipped(chance: random.Random, content: bytes) -> bytes:
    index = chance.randrange(len(content))
    return content[:index] + bytes([content[index] ^ 1 << chance.randrange(8)]) + content[index + 1 :]


def _replaced(**changed: Callable[[Place, random.Random, Row], Any]) -> Change:
    """Return a change that stores the row with other parts."""

    def change(place: Place, chance: random.Random, row: Row) -> None:
        other = row._replace(**{name: part(place, chance, row) for name, part in changed.items()})
        place.remove(row)
        place.put(other)

    return change


def _added(**changed: Callable[[Place, random.Random, Row], Any]) -> Change:
    """Return a change that adds a row like this one with other parts."""

    def change(place: Place, chance: random.Random, row: Row) -> None:
        place.put(row._replace(**{name: part(place, chance, row) for name, part in changed.items()}))

    return change


def _new_key(_: Place, chance: random.Random, row: Row) -> bytes:
    while True:
        key = b"X%d" % chance.randrange(10**6)
        if key_group(key, KEY_GROUPS) == row.group:
            return key


def _any_version(place: Place, chance: random.Random, _: Row) -> int:
    return chance.randrange(1, place.visible + 1)


def _above(place: Place, chance: random.Random, _: Row) -> int:
    return place.visible + chance.choice((1, 2, 99))


def _other_marker(_: Place, __: random.Random, row: Row) -> bytes:
    return b'+{"departures":1}' if row.value[:1] == b"-" else b"-"


def _expiring(_: Place, chance: random.Random, row: Row) -> bytes:
    return b"e" + chance.choice((1, 2**60)).to_bytes(8, "big") + (row.value[1:] or b"{}")


CHANGES: dict[str, Change] = {
    "flipped value": _replaced(value=lambda _, chance, row: _flipped(chance, row.value)),
    "flipped key": _replaced(key=lambda _, chance, row: _flipped(chance, row.key)),
    "removed": lambda place, _, row: place.remove(row),
    "added": _added(key=_new_key),
    "added at any version": _added(key=_new_key, version=_any_version),
    "other version": _replaced(version=_any_version),
    "marker": _replaced(value=_other_marker),
    "truncated": _replaced(value=lambda _, chance, row: row.value[: chance.randrange(len(row.value))]),
    "expiry": _replaced(value=_expiring),
    "second version": _added(version=_any_version, value=_other_marker),
    "above the visible version": _added(version=lambda place, *_: place.visible + 1),
    "new key above it": _added(key=_new_key, version=_above),
    "other key group": _replaced(group=lambda _, __, row: 1 - row.group),
    "added to a younger table": _added(table=lambda *_: NEW_TABLE, version=_any_version),
    "added to no table": _added(table=lambda *_: STRANGE, version=_any_version),
}
LATER = {"above the visible version", "new key above it"}
"""Changes that a later version would show."""


def reads(place: Place) -> list[Any]:
    """Return every row that readers get at every version that can be read; errors by their class."""
    seen: list[Any] = []
    with contextlib.closing(open_store(place.url, NAMESPACE, place.options)) as store:
        try:
            entries = store.catalog()
        except TidegateError as error:
            return [type(error).__name__]
        for entry in entries:
            for table, start in sorted(entry.starts.items()):
                for group in range(KEY_GROUPS):
                    try:
                        batches = store.scan(
                            ReadAt(table, entry.version, start, at_us=entry.decided_at_us), group
                        )
                        rows = [row for batch in batches for row in batch.to_pylist()]
                    except TidegateError as error:
                        rows = [type(error).__name__]
                    seen.append((entry.version, table, group, rows))
    return seen


def is_found(place: Place) -> bool:
    """Return whether ``verify`` has a finding, or is refused."""
    with (
        contextlib.closing(open_store(place.url, NAMESPACE, place.options)) as store,
        contextlib.closing(open_log(place.wal, NAMESPACE)) as log,
    ):
        try:
            return bool(verify(log, store).findings)
        except TidegateError:
            return True


class Cases:
    """Changes at random of one place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.put_back()
        self.stored, self.right = place.rows(), reads(place)
        self.seen: collections.Counter[str] = collections.Counter()
        if is_found(place):
            raise ValueError("the namespace is wrong before anything is changed")

    def _is_right(self, seen: list[Any]) -> bool:
        """Return whether readers get what was written. A horizon that moved looks like a retirement."""
        oldest = seen[0][0] if seen and isinstance(seen[0], tuple) else self.place.horizon
        return seen == [one for one in self.right if one[0] >= oldest]

    def run(self, seed: int) -> str:
        """Run a case; return the description of a change that was missed, or nothing."""
        chance = random.Random(seed)
        self.place.put_back()
        kind = chance.choice([*CHANGES, "metadata", "metadata"])
        try:
            if kind == "metadata":
                what = self.place.metadata(chance)
            else:
                row = chance.choice(self.stored)
                what = f"{kind}: {row!r:.200}"
                CHANGES[kind](self.place, chance, row)
            seen = kind in LATER or not self._is_right(reads(self.place))
            self.seen[f"{kind}, {'seen' if seen else 'not seen'}"] += 1
            return f"missed: {what}" if seen and not is_found(self.place) else ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a traceback
            return f"{kind}: {type(error).__name__}: {error}"


def run(cases: Cases, count: int, seed: int, show: Callable[[str], None], end_s: float = 1e9) -> int:
    """Run ``count`` cases, or until ``end_s`` have passed; return the number of those that failed."""
    failed, done, begun = 0, 0, time.monotonic()
    for number in range(seed, seed + count):
        wrong = cases.run(number)
        done += 1
        if wrong:
            failed += 1
            show(f"case {number}: {wrong:.400}")
        if time.monotonic() - begun > end_s:
            break
    show(f"{done} cases from seed {seed}: {failed} missed, {time.monotonic() - begun:.0f} s")
    show(", ".join(f"{kind} {times}" for kind, times in sorted(cases.seen.items())))
    return failed


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    from tampering.row_places import place_of

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in", dest="where", help="a folder for the copies; default: a temporary one")
    parser.add_argument("--store", help="the URL of a server for tests; default: SQLite files")
    parser.add_argument("--seconds", type=float, default=1e9, help="the end, if the cases take longer")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.where) as folder,
        contextlib.closing(place_of(Path(folder), arguments.store)) as place,
    ):
        return 1 if run(Cases(place), arguments.cases, arguments.seed, _show, arguments.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
