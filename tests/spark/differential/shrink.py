"""A failing round, reduced to the case and the rows that are needed for its difference."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from differential.cases import Case
from differential.rounds import Round, run

TRIES = 60


def shrunk(spark: SparkSession, failed: Round, message: str) -> str:
    """Return the description of the smallest failing part of a round, whose error names tables."""
    command = (
        f"python -m differential.run --seed {failed.seed} --first {failed.first} --cases {len(failed.cases)}"
    )
    for case in sorted(failed.cases, key=lambda case: f"table {case.table}\n" not in message):
        alone = dataclasses.replace(failed, cases=[case])
        if error := _error(spark, alone):
            alone, error = _fewer_rows(spark, alone, error)
            return f"{command}\n{alone}\n{error}"
    return f"{command}\nno case of this round differs alone"


def _fewer_rows(spark: SparkSession, failed: Round, error: str) -> tuple[Round, str]:
    """Leave out rows while the round fails."""
    tries, is_smaller = 0, True
    while is_smaller:
        is_smaller = False
        for case in _smaller(failed.cases[0]):
            tries += 1
            other = dataclasses.replace(failed, cases=[case])
            if tries <= TRIES and (of_other := _error(spark, other)):
                failed, error, is_smaller = other, of_other, True
                break
    return failed, error


def _smaller(case: Case) -> Iterator[Case]:
    """Yield the case without the half of a batch's rows, a quarter, and so on to a single one."""
    for batch, rows in reversed([*enumerate(case.rows)]):  # a later batch is rarely needed
        size = len(rows)
        while size > 0:
            for begin in range(0, len(rows), size):
                kept = [*rows[:begin], *rows[begin + size :]]
                yield dataclasses.replace(case, rows=[*case.rows[:batch], kept, *case.rows[batch + 1 :]])
            size //= 2


def _error(spark: SparkSession, part: Round) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(spark, Path(folder), part)
        except Exception as error:  # noqa: BLE001 - an error of the library is a finding too
            return f"{type(error).__name__}: {error}"
    return ""
