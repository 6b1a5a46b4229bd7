"""Random cases through the staging job and through the driver, in one query.

    python -m differential.run --seed 1 --cases 500

Each case is two batches into a table of its own. The frames of the two ways are equal byte for byte, and
the rows that a reader gets are those of the model.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidegate
from differential.cases import CELLS, DDL, Case, random_case
from differential.frames import frames_of
from differential.model import Table
from tidegate.spark import VersionedSink
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log

WAYS = ("job", "driver")


def run(spark: SparkSession, folder: Path, seed: int, numbers: range) -> int:
    """Run these cases; return how many versions the driver staged. Raises: AssertionError: they differ."""
    cases = [random_case(seed, number) for number in numbers]
    chance = random.Random(f"{seed}/{numbers.start}")
    options = {"parallelism": chance.randint(1, 3), "key_groups": chance.choice([4, 7, 16])}
    sinks = {way: _sink(folder, way, options) for way in WAYS}
    (folder / "input").mkdir()
    for index in range(2 * len(cases)):
        (folder / "input" / f"{index:06}.json").write_text('{"x": 1}')

    def write(batch_df: Any, batch_id: int) -> None:
        case, batch = cases[batch_id // 2], batch_id % 2
        session = batch_df.sparkSession
        before = {name: session.conf.get(name) for name in case.settings}
        cells = [tuple(row[name] for name in CELLS) for row in case.batches[batch]]
        rows = session.createDataFrame(cells, DDL)
        for name, value in case.settings.items():
            session.conf.set(name, value)
        try:
            for way in WAYS:
                sinks[way]._small.staged(0, 0)  # predicts a small batch
                sinks[way].each(lambda txn, _: case.write(txn, rows, batch))(batch_df, batch_id)
        finally:
            for name, value in before.items():
                session.conf.set(name, value)

    source = spark.readStream.schema("x int").option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    query = (
        source.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for sink in sinks.values():
        sink.close()
    _check(folder, seed, cases)
    return sum(parallelism == 1 for parallelism, _ in _frames(folder, "driver"))


def _sink(folder: Path, way: str, options: dict[str, int]) -> VersionedSink:
    if way == "job":
        options = {**options, "driver_stage_max_rows": 0}
    wal, store = f"file://{folder}/wal-{way}", f"sqlite://{folder}/store"
    return VersionedSink(namespace=way, wal=wal, store=store, **options)


def _frames(folder: Path, way: str) -> list[tuple[int, Any]]:
    log = open_log(f"file://{folder}/wal-{way}", way)
    try:
        state = fold_all(View(), log.decisions()).state
        assert state is not None
        return [frames_of(log, version) for version in state.recent]
    finally:
        log.close()


def _check(folder: Path, seed: int, cases: list[Case]) -> None:
    frames = {way: _frames(folder, way) for way in WAYS}
    with tidegate.connect(f"sqlite://{folder}/store", namespace="job") as gate:
        for index, case in enumerate(cases):
            table: Table = {}
            for batch in range(2):
                version = 2 * index + batch + 1
                where = f"seed {seed}, case {case.number} ({case.kind}), batch {batch}, {case.settings}"
                ours, theirs = (frames[way][version - 1][1] for way in WAYS)
                assert ours == theirs, where
                table = case.follow(table, batch)
                with gate.snapshot(version=version) as snapshot:
                    stored = dict(snapshot.table(case.table).scan())
                assert stored.keys() == table.keys(), where
                for key, value in stored.items():
                    tied = {_shown(row): row for row in table[key]}
                    assert _shown(value) in tied, f"{where}, key {key!r}: {value} is none of {[*tied]}"
                    table[key] = [tied[_shown(value)]]


def _shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--per-query", type=int, default=20)
    words = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    by_driver, end = 0, words.first + words.cases
    for first in range(words.first, end, words.per_query):
        with tempfile.TemporaryDirectory() as folder:
            numbers = range(first, min(first + words.per_query, end))
            by_driver += run(spark, Path(folder), words.seed, numbers)
        done = numbers.stop - words.first
        sys.stdout.write(f"seed {words.seed}: {done} cases equal, {by_driver} versions by the driver\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
