"""SQLite without any guarantee over partitions: a file and a transaction for each."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tidegate.bench.baselines.interface import Baselines
from tidegate.bench.plan import Plan

INSERT = "INSERT OR REPLACE INTO t VALUES (?, ?)"


def baselines(plan: Plan) -> Baselines:
    """Make the baselines; their files are in a folder of their own, next to the store's."""
    store = Path(unquote(urlsplit(plan.store).path))
    folder = store.parent / f".{plan.mark}"
    folder.mkdir(parents=True, exist_ok=True)
    writers = {
        "row by row": functools.partial(write_rows, str(folder / "rows")),
        "Arrow batches": functools.partial(write_arrow, str(folder / "arrow")),
    }

    def get_many(keys: Sequence[str]) -> int:
        marks = ", ".join("?" * len(keys))
        hits: set[str] = set()  # a key that two tasks wrote at different times is in both their files
        for part in _files(folder / "arrow", opened):
            rows = part.execute(f"SELECT key, value FROM t WHERE key IN ({marks})", keys).fetchall()
            hits.update(key for key, _ in rows)
        return len(hits)

    def get(key: str) -> int:
        return get_many([key])

    def remove() -> None:
        for part in opened.values():
            part.close()
        shutil.rmtree(folder, ignore_errors=True)

    opened: dict[Path, sqlite3.Connection] = {}
    return Baselines(writers, "sqlite3", get, get_many, remove)


def _files(folder: Path, opened: dict[Path, sqlite3.Connection]) -> Iterable[sqlite3.Connection]:
    for path in sorted(folder.glob("*.sqlite")):
        if path not in opened:
            opened[path] = sqlite3.connect(path)
        yield opened[path]


@contextlib.contextmanager
def _file(folder: str) -> Iterator[sqlite3.Connection]:
    from pyspark import TaskContext

    context = TaskContext.get()
    Path(folder).mkdir(exist_ok=True)
    path = f"{folder}/part-{context.partitionId() if context else 0}.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")
        file.execute("CREATE TABLE IF NOT EXISTS t (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        file.execute("BEGIN IMMEDIATE")
        yield file
        file.execute("COMMIT")


def write_rows(folder: str, batch: Any) -> None:
    """Write a DataFrame's rows by INSERT OR REPLACE, from each of its tasks in one transaction."""

    def write(rows: Iterable[Any]) -> None:
        with _file(folder) as file:
            file.executemany(INSERT, ((row.key, row.value) for row in rows))

    batch.foreachPartition(write)


def write_arrow(folder: str, batch: Any) -> None:
    """Write a DataFrame's rows by Arrow batches, from each of its tasks in one transaction."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        with _file(folder) as file:
            for rows in batches:
                keys, values = (column.to_pylist() for column in rows.columns)
                file.executemany(INSERT, zip(keys, values, strict=True))
        yield from ()

    batch.mapInArrow(write, "key string").write.format("noop").mode("append").save()
