"""Random calls in both ways of staging, compared byte for byte with each other and with a model.

    python -m differential.run --seed 1 --cases 500

A case is one table or local state with the rows and calls of two batches. 10 cases are a round: the same
transactions, in two namespaces (``rounds.py``). A difference is shrunk to a few rows and printed, with the
command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from differential.rounds import SIZE, random_round, run
from differential.shrink import shrunk


def run_all(spark: SparkSession, seed: int, first: int, rounds: int, end_s: float = 1e9) -> int:
    """Run rounds, no further one after ``end_s``; return the number of cases.

    Raises: AssertionError: a result is wrong.
    """
    begun, cases = time.monotonic(), 0
    for number in range(first, first + SIZE * rounds, SIZE):
        played = random_round(seed, number)
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(spark, Path(folder), played)
            except Exception as error:
                raise AssertionError(f"{error}\n{shrunk(spark, played, str(error))}") from error
        cases += len(played.cases)
        _show(f"seed {seed}: {cases} cases equal, {time.monotonic() - begun:.0f} s")
        if time.monotonic() - begun > end_s:
            break
    return cases


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, default=500, help=f"rounded up to rounds of {SIZE}")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no query after this time")
    words = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        run_all(spark, words.seed, words.first, -(-words.cases // SIZE), words.seconds)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
