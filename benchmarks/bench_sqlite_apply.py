"""What versions cost in SQLite: apply and seal against a bare executemany of the same rows.

    tools/run python benchmarks/bench_sqlite_apply.py --rows 1000000

The bare writer holds its rows as ready-made tuples in memory and puts them, in the same order,
into one table of the same shape in one file and one transaction, with one fsync at its end. It
has no versions to check, no counts, no shards, and no Arrow data to take apart. Both start from
nothing, in turns; the ratio is of the medians. A second round writes the same keys again.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import xxhash

from tidegate.sinks.records import Identity, Stamp
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.wal.frame import Chunk, Run

KEY_GROUPS = 128
FRAME_BYTES = 900_000


def make_chunks(rows: int, value_bytes: int) -> list[Chunk]:
    """Frames as a task stages them: sorted by key group and key, cut at about 900 KB."""
    keys = (b"N%09d" % number for number in range(rows))
    placed = sorted((xxhash.xxh64_intdigest(key, seed=42) % KEY_GROUPS, key) for key in keys)
    value = b"+" + b"v" * value_bytes
    per_chunk = max(1, FRAME_BYTES // (value_bytes + 27))
    chunks = []
    for at in range(0, rows, per_chunk):
        runs = []
        for group, run in itertools.groupby(placed[at : at + per_chunk], lambda row: row[0]):
            of_run = [key for _, key in run]
            values = pa.array([value] * len(of_run), pa.binary())
            runs.append(Run(group, "aircraft", pa.array(of_run, pa.binary()), values))
        chunks.append(Chunk(len(chunks), runs))
    return chunks


def tidegate_writer(folder: Path, chunks: list[Chunk], versions: int) -> list[float]:
    counts: dict[int, dict[str, int]] = {}
    for run in itertools.chain.from_iterable(chunk.runs for chunk in chunks):
        of_group = counts.setdefault(run.group, {"aircraft": 0})
        of_group["aircraft"] += len(run.keys)
    store = SqliteStore(str(folder), "bench")
    store.create(Identity("uuid", "bench", KEY_GROUPS))
    seconds = []
    for version in range(1, versions + 1):
        started = time.perf_counter()
        for chunk in chunks:
            store.apply(Stamp(version, version), chunk)
        store.seal(Stamp(version, version), counts)
        seconds.append(time.perf_counter() - started)
    store.close()
    return seconds


def bare_writer(folder: Path, chunks: list[Chunk], versions: int) -> list[float]:
    folder.mkdir()
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE t (kg INTEGER, key BLOB, version INTEGER, value BLOB, PRIMARY KEY (kg, key, version))"
        " WITHOUT ROWID"
    )
    seconds = []
    for version in range(1, versions + 1):
        rows = [
            (run.group, key, version, value)
            for chunk in chunks
            for run in chunk.runs
            for key, value in zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True)
        ]
        started = time.perf_counter()
        connection.execute("BEGIN")
        connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--versions", type=int, default=2)
    given = parser.parse_args()
    chunks = make_chunks(given.rows, given.value_bytes)
    writers: dict[str, Callable[[Path, list[Chunk], int], list[float]]] = {
        "bare": bare_writer,
        "tidegate": tidegate_writer,
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in writers}
    for _ in range(given.rounds):
        for name, writer in writers.items():
            folder = Path(tempfile.mkdtemp(prefix="bench-"))
            taken[name].append(writer(folder / "store", chunks, given.versions))
            shutil.rmtree(folder)
    for at in range(given.versions):
        medians = {name: statistics.median(round_[at] for round_ in rounds) for name, rounds in taken.items()}
        speeds = ", ".join(
            f"{name} {seconds:.2f} s ({given.rows / seconds / 1e3:.0f} K rows/s)"
            for name, seconds in medians.items()
        )
        ratio = medians["tidegate"] / medians["bare"]
        print(f"version {at + 1}, {given.rows} rows: {speeds}; tidegate takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
