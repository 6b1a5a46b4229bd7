"""`tidegate restore --reprocess` with a real checkpoint set back: what was undone comes again, once."""

from __future__ import annotations

import json
import shutil

import pytest
from pyspark.sql import functions
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.errors import LineageError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = "k string, n int"
BATCHES = [
    [{"k": "a", "n": 1}, {"k": "b", "n": 10}],
    [{"k": "a", "n": 2}],
    [{"k": "a", "n": 4}, {"k": "c", "n": 100}],
    [{"k": "b", "n": 20}],
]


def summed(factor):
    """Sums into a table: a batch that came twice, or not at all, shows. The factor is what is mended."""

    def write(txn, rows):
        times = functions.when(functions.col("n") == 4, factor).otherwise(1)
        txn.reduce("sums", rows.withColumn("n", functions.col("n") * times), "k", reducers={"n": "sum"})

    return write


def restored(stream, version):
    """What the command tells: the last batch that the restored state holds."""
    words = ["restore", "--to", version, "--reprocess", "--yes", "--json", "--namespace", "flights"]
    words += ["--store", stream.store, "--force", *stream.log.words]
    told = CliRunner().invoke(app, [*map(str, words)])
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def set_back(stream, batch, *folders):
    """As the page says: what is above the batch goes, in these folders of the checkpoint."""
    for folder in folders:
        for path in (stream.checkpoint / folder).iterdir():
            number = path.name.strip(".").split(".")[0]
            if number.isdecimal() and int(number) > batch:
                path.unlink()


def ran_wrong(stream):
    """Four batches, four versions; the third one with wrong code."""
    made = stream(SCHEMA)
    made.commit(made.sink().each(summed(-250)), *BATCHES)
    assert made.rows("sums") == {"a": {"n": 3 - 1_000}, "b": {"n": 30}, "c": {"n": 100}}
    return made


def test_undone_batches_come_again_from_mended_code_and_once(stream):
    flights = ran_wrong(stream)
    told = restored(flights, 2)
    assert flights.rows("sums") == {"a": {"n": 3}, "b": {"n": 10}}
    assert (told["visible"], told["last_batch"]) == (5, 1)
    set_back(flights, told["last_batch"], "offsets", "commits")
    ran = flights.commit(flights.sink().each(summed(1)))
    assert ran.batches[0] == 2
    assert flights.rows("sums") == {"a": {"n": 7}, "b": {"n": 30}, "c": {"n": 100}}
    decided = flights.decided()
    set_back(flights, ran.batches[-1] - 1, "commits")
    again = flights.commit(flights.sink().each(summed(1)))
    assert again.batches == ran.batches[-1:], "Spark replays what it has no commit of"
    assert flights.decided() == decided, "I2"
    flights.commit(flights.sink().each(summed(1)), [{"k": "a", "n": 8}])
    assert flights.rows("sums")["a"] == {"n": 15}
    assert flights.decided() == decided + 1


def test_a_batch_that_the_restored_state_holds_is_not_run_again(stream):
    """Set back too far: with the offsets that were decided it is skipped, with others it is refused."""
    flights = ran_wrong(stream)
    restored(flights, 2)
    kept = flights.checkpoint.with_name("kept")
    shutil.copytree(flights.checkpoint, kept)
    set_back(flights, 1, "offsets")
    set_back(flights, 0, "commits")
    ran = flights.commit(flights.sink().each(summed(1)))
    assert ran.batches[:2] == [1, 2]
    assert flights.rows("sums") == {"a": {"n": 7}, "b": {"n": 30}, "c": {"n": 100}}
    decided = flights.decided()
    shutil.rmtree(flights.checkpoint)
    kept.rename(flights.checkpoint)
    set_back(flights, 0, "offsets", "commits")  # Spark plans batch 1 anew, from all files there are
    assert isinstance(flights.run(flights.sink().each(summed(1))).error, LineageError)
    assert flights.decided() == decided


def test_a_stateful_query_forgets_what_was_undone(stream, spark):
    """Spark's own state goes back with the offsets: what it had seen in an undone batch is new again."""
    flights = stream(SCHEMA)
    flights.add(*BATCHES)

    def run(write):
        seen = (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(flights.input))
            .dropDuplicates(["k"])  # the first row of each key, for ever
        )
        sink = flights.sink()
        query = (
            seen.writeStream.foreachBatch(sink.each(write))
            .option("checkpointLocation", str(flights.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        sink.close()

    def upsert(mark):
        return lambda txn, rows: txn.upsert("firsts", rows.withColumn("by", functions.lit(mark)), "k")

    run(upsert("wrong"))
    assert {key: row["by"] for key, row in flights.rows("firsts").items()} == dict.fromkeys("abc", "wrong")
    told = restored(flights, 2)
    assert sorted(flights.rows("firsts")) == ["a", "b"]
    set_back(flights, told["last_batch"], "offsets", "commits")
    states = flights.checkpoint / "state" / "0"
    for part in [path for path in states.iterdir() if path.name.isdecimal()]:
        for path in part.rglob("*"):
            number = path.name.strip(".").split(".")[0]
            if path.is_file() and number.isdecimal() and int(number) > told["last_batch"] + 1:
                path.unlink()
    run(upsert("mended"))
    found = {key: (row["n"], row["by"]) for key, row in flights.rows("firsts").items()}
    assert found == {"a": (1, "wrong"), "b": (10, "wrong"), "c": (100, "mended")}
