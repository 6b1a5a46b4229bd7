"""A store, and its log, are lost; `restore-from` makes them again, and sums equal a recount of the input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.cli import done, run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = "k string, n int"


def summed(txn, rows):
    txn.reduce("sums", rows, "k", reducers={"n": "sum"})


def rows(start):
    return [{"k": f"k{n % 2}", "n": n} for n in range(start, start + 3)]


def recount(*batches):
    sums = {}
    for row in (row for batch in batches for row in batch):
        sums[row["k"]] = sums.get(row["k"], 0) + row["n"]
    return {key: {"n": total} for key, total in sums.items()}


@pytest.mark.parametrize("way", ["continue", "again", "new"])
def test_sums_equal_a_recount_after_each_way(stream, way):
    flights = stream(SCHEMA)
    options = ["--store", flights.store, "--namespace", "flights", *map(str, flights.log.words)]
    batches = [rows(10 * number) for number in range(5)]
    flights.commit(flights.sink().each(summed), *batches[:2])
    done("backup", flights.folder / "backup", *options)
    flights.commit(flights.sink().each(summed), batches[2])
    done("backup", flights.folder / "backup", *options)
    flights.commit(flights.sink().each(summed), *batches[3:])
    shutil.rmtree(Path(flights.store.removeprefix("sqlite://")))
    if way == "new":
        run("drop", *options, "--yes", "--force")
        shutil.rmtree(flights.folder / "wal", ignore_errors=True)
    to = ["--to", "2"] if way == "again" else []
    result = run("restore-from", flights.folder / "backup", *options, "--yes", "--json", *to)
    assert result.exit_code == 0, result.output
    assert f'"way": "{way}"' in result.stdout or f'"way":"{way}"' in result.stdout, result.stdout
    if way != "continue":
        last = 1 if way == "again" else 2
        assert flights.rows("sums") == recount(*batches[: last + 1])
        for folder in ("offsets", "commits"):
            for path in (flights.checkpoint / folder).iterdir():
                if int(path.name.strip(".").removesuffix(".crc")) > last:
                    path.unlink()
    flights.commit(flights.sink().each(summed), rows(70))
    flights.commit(flights.sink().each(summed), rows(80))
    assert flights.rows("sums") == recount(*batches, rows(70), rows(80))
