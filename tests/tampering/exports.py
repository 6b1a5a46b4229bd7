"""Exports that are changed at random: refused in tidegate's own words, or readable by all readers of rows.

    python -m tampering.exports --cases 100000 --seed 1

A case changes a right export: its rows (keys, values, flags, order, key groups, duplicates), the bytes of its
Parquet file, or its manifest, with checksums that fit. An accepted one is read in each way that there is: by
key and value, as Arrow's columns, as Spark's reader does, as retirement reads it. One case in a hundred is
imported into memory, read, and retired. The cases run in a process of their own, so that a case that ends it
is named.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import io
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from tampering.made_export import KEY_GROUPS, MadeTable, make_export, placed
from tampering.stores import changed
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export_format import MANIFEST, manifest_in
from tidegate.committers.exports.export_rows import ROWS, RowsOf, rows_of
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import TidegateError
from tidegate.keys.groups import encode_key, key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.reader.table import view_of
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.expiry import is_hidden
from tidegate.sinks.rules.layout import payloads
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import Column, TableSchema

UTC = datetime.timezone.utc
FLAT = ("int", "bigint", "tinyint", "double", "float", "string", "boolean", "date", "timestamp")
NESTED = (
    *("decimal(10,2)", "array<timestamp>", "map<int,decimal(4,2)>", "struct<a:int,b:array<double>>"),
    *("timestamp_ntz", "binary", "map<date,string>"),
)


def _columns(kinds: tuple[str, ...]) -> tuple[Column, ...]:
    return tuple(Column(f"c{at}", kind) for at, kind in enumerate(kinds))


SCHEMAS = {
    "flat": TableSchema((Column("k", "string"),), _columns(FLAT)),
    "nested": TableSchema(_columns(("bigint", "decimal(4,2)", "date", "boolean")), _columns(NESTED)),
    "blobs": TableSchema((Column("k", "binary"),), (Column("v", "binary"),), "bytes"),
    "numbers": TableSchema((Column("k", "int"),), (Column("n", "bigint"), Column("x", "double"))),
}
AT_US = 10**15
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "none"},
    {"compression": "zstd", "use_dictionary": False},
    {"data_page_version": "2.0"},
)
"""Options for writing Parquet files."""


def _right_rows(chance: random.Random, name: str, count: int) -> list[tuple[Any, ...]]:
    day = datetime.date(1, 1, 1) + datetime.timedelta(days=chance.randrange(3_652_058))
    moment = datetime.datetime(2013, 1, 31, 10, 0, 0, chance.randrange(10**6), UTC)
    cells: dict[str, Any] = {
        "int": -7,
        "bigint": 2**40,
        "tinyint": 1,
        "double": float("nan"),
        "float": 0.1,
        "string": 'a"\n\u00fc\U0001f6eb',
        "boolean": True,
        "date": day,
        "timestamp": moment,
        "decimal(10,2)": decimal.Decimal("1.50"),
        "array<timestamp>": [moment, None],
        "map<int,decimal(4,2)>": {-1: decimal.Decimal("0.25")},
        "binary": b"\0\xff",
        "struct<a:int,b:array<double>>": {"a": 1, "b": [1e-7]},
        "map<date,string>": {day: "x"},
        "timestamp_ntz": moment.replace(tzinfo=None),
    }
    schema = SCHEMAS[name]
    rows = {}
    for number in range(count):
        if name == "blobs":
            key, value = chance.randbytes(3), b"+" + chance.randbytes(5)
        else:
            row = {c.name: cells.get(c.type) if chance.random() < 0.8 else None for c in schema.value}
            value = b"+" + encoder_of(schema).encode(row)
            parts = {"string": f"k{number}", "int": number, "bigint": number, "boolean": True, "date": day}
            of = [parts.get(c.type, decimal.Decimal(number)) for c in schema.key]
            key = encode_key(of, schema.key_types)
        if chance.random() < 0.3:
            value = b"e" + (AT_US + number).to_bytes(8, "big") + value[1:]
        rows[key] = value
    return placed(rows.items())


class Case(NamedTuple):
    """The kind of a change, and its result: refused or read."""

    kind: str
    refused: bool


class Exports:
    """Cases made from right exports of a few rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        chance = random.Random(1)
        self.rows = {name: _right_rows(chance, name, 6) for name in SCHEMAS}
        self.files = {name: [self._parquet(rows, one) for one in WAYS] for name, rows in self.rows.items()}
        self.manifest = (make_export(folder / "right", self._tables()) / MANIFEST).read_bytes()
        self.kinds: dict[str, Callable[[random.Random], bool]] = {
            "rows": self._rows,
            "bytes": self._bytes,
            "manifest": self._manifest,
            "import": self._import,
        }

    def _tables(self) -> dict[str, MadeTable]:
        return {name: MadeTable(schema, [self.rows[name]], expires=True) for name, schema in SCHEMAS.items()}

    @staticmethod
    def _parquet(rows: list[tuple[Any, ...]], options: dict[str, Any]) -> bytes:
        columns = zip(zip(*rows, strict=True), ROWS, strict=True)
        table = pa.Table.from_arrays([pa.array(one, field.type) for one, field in columns], schema=ROWS)
        file = io.BytesIO()
        parquet.write_table(table, file, **options)
        return file.getvalue()

    def run(self, seed: int) -> Case:
        """Run one case. Any error but tidegate's own is raised."""
        chance = random.Random(seed)
        kind = chance.choices(list(self.kinds), (60, 24, 15, 1))[0]
        return Case(kind, self.kinds[kind](chance))

    # -- the kinds ------------------------------------------------------------------------------------

    def _changed_rows(self, chance: random.Random, name: str) -> list[Any]:
        rows = [list(row) for row in self.rows[name]]
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            row = chance.choice(rows)
            match chance.randrange(8):
                case 0 | 1:
                    row[1] = _as_bytes(changed(chance, row[1]))
                    row[0] = key_group(row[1] or b"", KEY_GROUPS)
                case 2 | 3 | 4:
                    row[2] = _as_bytes(_changed_value(chance, row[2] or b"+"))
                case 5:
                    row[0] = chance.choice((None, -1, 0, 1, 2, 3, 4, 2**31 - 1))
                case 6:
                    chance.shuffle(rows)
                case _:
                    rows.insert(chance.randrange(len(rows)), list(row))
        if chance.random() < 0.7 and all(None not in row for row in rows):
            rows.sort()
        return rows

    def _rows(self, chance: random.Random) -> bool:
        name = chance.choice(list(SCHEMAS))
        rows = self._changed_rows(chance, name)
        return self._read(name, self._parquet(rows, {}), len(rows), expires=chance.random() < 0.8)

    def _bytes(self, chance: random.Random) -> bool:
        name = chance.choice(list(SCHEMAS))
        content = bytearray(chance.choice(self.files[name]))
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(content))
            if chance.random() < 0.1:
                del content[at : at + chance.randrange(20)]
            elif chance.random() < 0.1:
                content[at:at] = chance.randbytes(chance.randrange(20))
            else:
                content[at] = (
                    chance.randrange(256) if chance.random() < 0.5 else content[at] ^ 1 << chance.randrange(8)
                )
        return self._read(name, bytes(content), len(self.rows[name]), expires=True)

    def _manifest(self, chance: random.Random) -> bool:
        content = self.manifest
        for _ in range(chance.choice((1, 1, 2))):
            content = _as_bytes(changed(chance, content)) or b""
        try:
            manifest, _ = manifest_in("manifest.json", content)
        except TidegateError:
            return True
        for name, table in manifest.tables.items():
            values_of(table.table_schema)
            if name in SCHEMAS:
                of = RowsOf(table.table_schema, table.expires, manifest.key_groups)
                file = io.BytesIO(self.files[name][0])
                try:
                    batches = list(rows_of(file, f"{name}.parquet", of, len(self.rows[name]), None))
                except TidegateError:
                    continue
                _read_all(batches, table.table_schema, manifest.key_groups)
        return False

    def _import(self, chance: random.Random) -> bool:
        """Import from a folder into memory; read every row, and retire the version by a second one."""
        tables, name = self._tables(), chance.choice(list(SCHEMAS))
        tables[name] = tables[name]._replace(files=[self._changed_rows(chance, name)])
        where = f"{chance.random()}"
        folder, options = make_export(self.folder / where, tables), Options(key_groups=3, keep_versions=1)
        store, log, at = MemoryStore(where, "made"), MemoryLog(where, "made"), f"memory://{where}"
        driver = Coordinator(Endpoints("made", at, at), log, store, options)
        try:
            manifest, digest = read_whole(folder)
            import_rows(driver, folder, manifest, digest)
        except TidegateError:
            assert store.identity() is None or not store.catalog(), "refused, and decided"
            return True
        self._scan(store, 1)
        import_rows(driver, folder, manifest, "again")
        retire_up_to(driver.log, store, driver.folded, options, lambda: False)
        self._scan(store, 2)
        return False

    @staticmethod
    def _scan(store: Any, version: int) -> None:
        identity, (entry,) = store.identity(), store.catalog(version, version)
        for table in SCHEMAS:
            view = view_of(store.where, identity, entry, table, store.schemas())
            assert view is not None
            for group in range(identity.key_groups):
                start = entry.tables[table].start
                for batch in store.scan(ReadAt(table, version, start, at_us=entry.decided_at_us), group):
                    list(view.rows(batch))

    def _read(self, name: str, content: bytes, count: int, *, expires: bool) -> bool:
        of = RowsOf(SCHEMAS[name], expires, KEY_GROUPS)
        try:
            batches = list(rows_of(io.BytesIO(content), f"{name}.parquet", of, count, None))
        except TidegateError:
            return True
        _read_all(batches, SCHEMAS[name], KEY_GROUPS)
        return False


def _as_bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode(errors="replace")
    return value if isinstance(value, bytes | None) else b"%d" % int(value)


def _changed_value(chance: random.Random, value: bytes) -> Any:
    if chance.random() < 0.25:
        return changed(chance, value)
    head = 9 if value[:1] == b"e" else 1
    rest = changed(chance, value[head:])
    if chance.random() < 0.15:
        return (
            chance.choice((b"s\x02ab", b"x" + bytes(8) + b"\x01a", b"s\xff", b"d\x00", b"-")) + value[head:]
        )
    return value[:head] + (_as_bytes(rest) or b"")


def _read_all(batches: list[Any], schema: TableSchema, key_groups: int) -> None:
    """Read rows in each way that there is. Any error is a fault, because the rows were accepted."""
    values, before = values_of(schema), None
    for batch in batches:
        contents = payloads(batch["value"], AT_US)
        pairs = []
        for group, key, stored, content in zip(
            *(c.to_pylist() for c in (*batch.columns, contents)), strict=True
        ):
            decoded = values.decode_key(key)
            parts: Any = decoded if len(schema.key) > 1 else (decoded,)
            assert encode_key(parts, schema.key_types) == key, "another key is asked for than is there"
            assert group == key_group(key, key_groups)
            assert before is None or (group, key) > before
            before = group, key
            is_hidden(stored[:9], AT_US)
            assert stored[:1] not in b"ex" or len(stored) >= 9
            if content is not None:
                pairs.append((decoded, values.decode(content)))
        values.to_arrow(pairs)
        live = pa.record_batch([batch["key"], contents], ["key", "value"]).filter(contents.is_valid())
        columns_of(live, values, "fuzz")


# -- many of them ----------------------------------------------------------------------------------------


def run(
    folder: Path, first: int, count: int, tell: Callable[[int], None] = lambda _: None
) -> tuple[Counter[str], list[str]]:
    """Run cases; return the numbers of refused and read ones by kind, and the faults."""
    exports, counts, wrong = Exports(folder), Counter[str](), []
    for seed in range(first, first + count):
        tell(seed)
        try:
            case = exports.run(seed)
            counts[f"{case.kind} {'refused' if case.refused else 'read'}"] += 1
        except Exception:  # noqa: BLE001 - whatever it is, it is a traceback
            wrong.append(f"case {seed}: {traceback.format_exc()[-1_500:]}")
    return counts, wrong


BLOCK = 5_000


def _note(mark: Path, seed: int) -> None:
    mark.write_text(f"{seed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=BLOCK)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        mark = Path(arguments.here, "case")
        counts, wrong = run(
            Path(arguments.here), arguments.seed, arguments.cases, lambda seed: _note(mark, seed)
        )
        sys.stdout.write(msgspec.json.encode([counts, wrong]).decode())
        return 0
    total, failed, begun = Counter[str](), 0, time.monotonic()
    for first in range(arguments.seed, arguments.seed + arguments.cases, BLOCK):
        count = min(BLOCK, arguments.seed + arguments.cases - first)
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "tampering.exports", "--here", folder]
            words += ["--seed", f"{first}", "--cases", f"{count}"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                last = Path(folder, "case").read_text()
                wrong = [f"case {last} ended its process ({done.returncode}): {done.stderr[-500:]}"]
            else:
                counts, wrong = msgspec.json.decode(done.stdout)
                total.update(counts)
        failed += len(wrong)
        for one in wrong[:5]:
            sys.stdout.write(f"{one}\n")
        sys.stdout.write(
            f"{sum(total.values())} cases, {failed} faults, {time.monotonic() - begun:.0f} s: {dict(total)}\n"
        )
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
