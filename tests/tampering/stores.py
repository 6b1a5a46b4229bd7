"""Stores that are changed at random: a call returns what was there, or raises an error that names the place.

    python -m tampering.stores --cases 100000 --seed 1

A case copies a small namespace in SQLite files, changes one value or one bit of it, and requests: versions,
and in half of the cases each rows by scan, by key, as differences, and as Spark reads them. Failures are
errors other than tidegate's own, errors that do not name the place, and wrong answers while `tidegate verify`
finds nothing. With ``--store redis://host:port`` the namespace is on that server (``tampering_redis``).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import tidegate
from tidegate.committers.operations.verify import verify
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.reader.table import view_of
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.visible import no_schema
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import UNREADABLE

NAMESPACE, KEY_GROUPS = "flights", 2
CHOSEN = 0.5
"""The share of possible calls that a case makes."""
SHAPES: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2, 3, 4, 2**62, -(2**63), 1.5, "", "x", "3"),
    *(b"", b"x", b"\xff", b"-", b"e\0"),
)
DEEP = "array<" * 300 + "int" + ">" * 300
OTHERS: tuple[Any, ...] = (
    None,
    0,
    -1,
    2**63,
    10**30,
    1.5,
    True,
    "x",
    "",
    "evil",
    DEEP,
    "zzz",
    "1e9",
    [],
    {},
    [1],
    {"a": 1},
)
"""Replacements for parts of JSON."""


class Outcome(NamedTuple):
    """The outcome of a call: its answer, or the error's class and text."""

    answer: Any
    error: str = ""


def changed(chance: random.Random, value: Any) -> Any:
    """Return another value: of another type, of another length, or with some bytes changed."""
    if value is None or chance.random() < 0.3:
        return chance.choice(SHAPES)
    if isinstance(value, int | float):
        return value + chance.choice((-1, 1, 2, 2**31, 2**53))
    content = value.encode() if isinstance(value, str) else bytes(value)
    flags = content[:1] if content[:2] == b"+{" else b""
    if content[len(flags) :][:1] == b"{" and chance.random() < 0.6:
        content = flags + _changed_json(chance, content[len(flags) :])
    else:
        content = _changed_bytes(chance, content)
    return content.decode(errors="replace") if isinstance(value, str) and chance.random() < 0.9 else content


def _changed_bytes(chance: random.Random, content: bytes) -> bytes:
    at = chance.randrange(len(content) + 1)
    match chance.randrange(5):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + chance.randbytes(chance.choice((1, 1, 9, 5_000))) + content[at:]
        case 2:
            return content[at:]
        case 3:
            return content[:at] + b"[" * chance.choice((1, 3_000, 200_000)) + content[at:]
        case _:
            return content[:at] + chance.randbytes(1) + content[at + 1 :]


def _changed_json(chance: random.Random, content: bytes) -> bytes:
    try:
        plain = msgspec.json.decode(content)
    except UNREADABLE:
        return content[1:]
    places = list(_places(plain))
    *way, last = chance.choice(places)
    part = plain
    for name in way:
        part = part[name]
    if isinstance(part, dict) and chance.random() < 0.2:
        del part[last]
    else:
        part[last] = chance.choice(OTHERS)
    return msgspec.json.encode(plain)


def _places(part: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    children = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, child in children:
        yield from _places(child, (*at, name))


# -- requests ---------------------------------------------------------------------------------------


def everything(
    url: str, chosen: Callable[[], bool] = lambda: True, options: dict[str, Any] | None = None
) -> dict[str, Outcome]:
    """Return the outcomes of a reader's calls, those that are chosen."""
    found: dict[str, Outcome] = {}

    def note(name: str, call: Callable[[], Any]) -> Any:
        try:
            found[name] = Outcome(call())
        except TidegateError as error:
            found[name] = Outcome(None, f"{type(error).__name__}: {error}")
        return found[name].answer

    gate = note("connect", lambda: tidegate.connect(url, NAMESPACE, options))
    found["connect"] = found["connect"]._replace(answer=None)
    if gate is None:
        return found
    with gate:
        note("version", gate.version)
        note("history", lambda: [(info.version, *sorted(info.changes.items())) for info in gate.history()])
        for at in (2, 3):
            if chosen():
                for table in TABLES:
                    note(f"scan {table} {at}", partial(_rows, gate, table, at))
        for table in TABLES:
            if chosen():
                note(f"get {table}", partial(_got, gate, table))
        if chosen():
            note("diff", lambda: [tuple(one) for one in gate.diff(2, 3, ["aircraft"])])
    if chosen():
        note("spark", lambda: _as_spark(url, options))
    return found


TABLES = ("aircraft", "airports", "legs", "notes")
KEYS = {name: sorted({key for rows in BATCHES for key in rows.get(name, {})}, key=repr) for name in TABLES}


def _rows(gate: Any, table: str, version: int) -> dict[Any, Any]:
    with gate.snapshot(version=version) as snapshot:
        return dict(snapshot.table(table).scan())


def _got(gate: Any, table: str) -> dict[Any, Any]:
    return {key: gate.table(table).get(key) for key in KEYS[table]}


def _as_spark(url: str, options: dict[str, Any] | None) -> list[Any]:
    """Read the newest version's rows as Spark's reader makes them."""
    with contextlib.closing(open_store(url, NAMESPACE, options)) as store:
        entries = store.catalog(3, 3)
        if not entries:
            raise visible.no_entry(store.where, 3)
        (entry,), schemas, found = entries, store.schemas(), []
        identity = Identity("", NAMESPACE, KEY_GROUPS)
        for table, at in sorted(entry.tables.items()):
            view = view_of(store.where, identity, entry, table, schemas)
            if view is None:
                raise no_schema(store.where, 3, table, at.schema_id)
            for group in range(KEY_GROUPS):
                for batch in store.scan(entry.read_at(table), group):
                    columns = columns_of(batch, view.values, f"{store.where}, table {table}")
                    found.append({name: column.to_pylist() for name, column in columns.items()})
        return found


def faults(found: dict[str, Outcome], right: dict[str, Outcome], url: str, wal: str) -> list[str]:
    """List errors without a place, and wrong answers that a check does not find.

    A version that is no longer listed is no fault: a horizon that moved looks like a retirement.
    """
    place = url.partition("://")[2]
    wrong = [
        f"{name}: {one.error[:300]}"
        for name, one in found.items()
        if one.error and place not in one.error and NAMESPACE not in one.error
    ]
    silent = [name for name, one in found.items() if not one.error and one.answer != right[name].answer]
    if silent == ["history"] and set(found["history"].answer) <= set(right["history"].answer):
        silent = []
    if silent and not is_found(url, wal):
        wrong.append(f"wrong, and verify finds nothing: {silent}")
    return wrong


def is_found(url: str, wal: str) -> bool:
    """Return whether ``tidegate verify`` finds something, or is refused."""
    with contextlib.closing(open_store(url, NAMESPACE)) as store:
        try:
            return bool(verify(open_log(wal, NAMESPACE), store).findings)
        except TidegateError:
            return True


# -- SQLite -------------------------------------------------------------------------------------------


class SqliteCases:
    """Copies of one namespace in files, each with one change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wal = folder, f"file://{folder}/wal"
        made = f"sqlite://{folder}/made"
        example = Example(self.wal, made, NAMESPACE, options=Options(key_groups=KEY_GROUPS, keep_versions=5))
        for rows in BATCHES:
            example.write(rows)
        example.close()
        for file in (folder / "made").rglob("*.sqlite"):
            with contextlib.closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.right = everything(made)
        assert not any(one.error for one in self.right.values()), self.right
        assert not is_found(made, self.wal)
        self.cells = list(self._cells())

    def _cells(self) -> Iterator[tuple[str, str, int, str]]:
        for file in sorted((self.folder / "made").rglob("*.sqlite")):
            with contextlib.closing(sqlite3.connect(file)) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for (table,) in sorted(tables):
                    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                    name = str(file.relative_to(self.folder / "made"))
                    yield from ((name, table, row, column) for row in range(len(rows)) for column in columns)

    def run(self, seed: int) -> tuple[str, list[str]]:
        """Run a case; return the change, and what is wrong after it."""
        chance = random.Random(seed)
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "made", copy)
        what = self._change(chance, copy)
        url = f"sqlite://{copy}"
        try:
            found = everything(url, lambda: chance.random() < CHOSEN)
            return what, faults(found, self.right, url, self.wal)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a traceback
            return what, [f"{type(error).__name__}: {error}"]

    def _change(self, chance: random.Random, copy: Path) -> str:
        file, table, row, column = chance.choice(self.cells)
        path = copy / file
        if chance.random() < 0.05:
            content = bytearray(path.read_bytes())
            at = chance.randrange(len(content))
            content[at] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
            return f"{file}, byte {at}"
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            keys = [one[1] for one in connection.execute(f"PRAGMA table_info({table})") if one[5]]
            asked = f"SELECT {column}, {', '.join(keys)} FROM {table}"
            found = connection.execute(asked).fetchall()[row]
            value = changed(chance, found[0])
            same = " AND ".join(f"{key} IS ?" for key in keys)
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):
                update = f"UPDATE {table} SET {column} = ? WHERE {same}"
                connection.execute(update, (value, *found[1:]))
            return f"{file}, {table}.{column} of row {row}: {found[0]!r:.80} -> {value!r:.80}"


def run(cases: Any, count: int, seed: int, show: Callable[[str], None]) -> int:
    """Run ``count`` cases; return the number of those that failed."""
    failed, begun = 0, time.monotonic()
    seen: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + count):
        what, wrong = cases.run(number)
        failed += bool(wrong)
        for one in wrong:
            seen[one[:100]] += 1
            if seen[one[:100]] <= 2:
                show(f"case {number}: {what}\n    {one}")
        if (number - seed + 1) % 1_000 == 0:
            show(f"{number - seed + 1} cases, {failed} failed, {time.monotonic() - begun:.0f} s")
    show(f"{count} cases from seed {seed}: {failed} failed, {time.monotonic() - begun:.0f} s")
    return failed


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--in", dest="where", help="a folder for the copies; default: a temporary one")
    parser.add_argument("--store", help="redis://host:port of a server for tests; default: SQLite files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.where) as folder:
        if not arguments.store:
            return 1 if run(SqliteCases(Path(folder)), arguments.cases, arguments.seed, _say) else 0
        from tampering.redis_stores import RedisCases

        with contextlib.closing(RedisCases(Path(folder), arguments.store)) as cases:
            return 1 if run(cases, arguments.cases, arguments.seed, _say) else 0


if __name__ == "__main__":
    sys.exit(main())
