"""A checkpoint is deleted, and its query continues by the commands: no row counts twice, none is left out."""

from __future__ import annotations

import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_sums_driver import TOPIC

import tidegate
from services.support.spark.jars import spark_source_jars
from support.cli import done, done_json, options_for, refused
from tidegate.errors import LineageError
from tidegate.spark import register

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCHEMA = "k string, n int"


def summed(txn, rows):
    txn.reduce("sums", rows, "k", reducers={"n": "sum"})


def rows(start, count=3):
    return [{"k": f"k{n % 2}", "n": n} for n in range(start, start + count)]


def recount(*batches):
    sums = {}
    for row in (row for batch in batches for row in batch):
        sums[row["k"]] = sums.get(row["k"], 0) + row["n"]
    return {key: {"n": total} for key, total in sums.items()}


# -- files ------------------------------------------------------------------------------------------


def options(flights):
    return ["--store", flights.store, "--namespace", "flights", *map(str, flights.log.words)]


def test_files_that_were_read_are_moved_away_and_sums_equal_a_recount(stream):
    flights = stream(SCHEMA)
    batches = [rows(0), rows(10), rows(20)]
    flights.commit(flights.sink().each(summed), *batches)
    shutil.rmtree(flights.checkpoint)
    refused_error = flights.run(flights.sink().each(summed)).error
    assert isinstance(refused_error, LineageError)
    assert "add all rows to sums a second time" in str(refused_error)
    assert "source 0 is a file source" in refused(
        2, "rebuild-checkpoint", flights.folder / "again", *options(flights)
    )
    shutil.rmtree(flights.checkpoint)  # it has planned all files
    for path in flights.input.iterdir():
        path.rename(flights.folder / path.name)
    flights.add(rows(30))
    assert isinstance(flights.run(flights.sink().each(summed)).error, LineageError)
    text = done("adopt", "--checkpoint", flights.checkpoint, "--yes", *options(flights))
    assert "sums (reduce): sum and count add the rows a second time" in text
    assert "move the files that were read out of the folder" in text
    flights.commit(flights.sink().each(summed), rows(40))
    assert flights.rows("sums") == recount(*batches, rows(30), rows(40))


# -- a stream of tidegate's ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_query_over_a_stream_of_tidegates_continues_with_a_checkpoint_made_again(stream, spark):
    flights, copies = stream(SCHEMA), stream(SCHEMA, "copies")
    register(spark)
    source = {"namespace": "flights", "table": "t", "store": flights.store, "maxVersionsPerTrigger": "1"}
    source["wal"] = flights.log.keywords["wal"]

    def copy():
        sink = copies.sink()
        query = (
            spark.readStream.format("tidegate")
            .options(**source)
            .load()
            .select("k", "n")
            .writeStream.foreachBatch(sink.each(summed))
            .option("checkpointLocation", str(copies.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        sink.close()

    for batch in (rows(0), rows(10)):
        flights.commit(flights.sink(table="t", key="k"), batch)
        copy()
    newest = [{"k": key, **value} for key, value in flights.rows("t").items()]
    before = copies.rows("sums")
    shutil.rmtree(copies.checkpoint)
    done("rebuild-checkpoint", copies.checkpoint, *options(copies))
    flights.commit(flights.sink(table="t", key="k"), newest)
    copy()
    added = recount(newest)
    assert copies.rows("sums") == {key: {"n": before[key]["n"] + added[key]["n"]} for key in before}


# -- Kafka ------------------------------------------------------------------------------------------


class Numbers:
    """A topic of numbers in two partitions, and the sums that a query makes of it in a process of its own."""

    def __init__(self, bootstrap, folder, drive):
        self.bootstrap, self.folder, self._drive = bootstrap, folder, drive
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
        self._producer, self.sent = Producer({"bootstrap.servers": bootstrap}), []
        self.options = options_for(folder)

    def send(self, start, count):
        for n in range(start, start + count):
            self._producer.produce(TOPIC, str(n), partition=n % 2)
            self.sent.append(n)
        assert self._producer.flush(60) == 0

    def run(self, checkpoint, starting="earliest"):
        jars = ",".join(map(str, spark_source_jars()))
        words = self.bootstrap, jars, str(checkpoint), starting
        return self._drive("kafka_sums_driver.py", self.folder, *words)

    def check(self):
        with tidegate.connect(f"sqlite://{self.folder}/store", "flights") as gate:
            sums = {key: row["n"] for key, row in gate.table("sums").scan()}
        assert sums == {k: sum(n for n in self.sent if n % 2 == k) for k in (0, 1)}


@pytest.fixture
def numbers(kafka, tmp_path, drive):
    return Numbers(kafka, tmp_path, drive)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_deleted_checkpoint_over_kafka_is_made_again_or_replaced_and_sums_are_right(numbers, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    numbers.send(0, 100)
    assert numbers.run(checkpoint)[0] == 0
    numbers.check()

    shutil.rmtree(checkpoint)
    done("rebuild-checkpoint", checkpoint, *numbers.options)
    numbers.send(100, 50)
    assert numbers.run(checkpoint)[0] == 0
    numbers.check()

    shutil.rmtree(checkpoint)
    numbers.send(150, 30)
    code, text = numbers.run(checkpoint)
    assert code == 1
    assert "its checkpoint was deleted or replaced" in text
    shutil.rmtree(checkpoint)  # it has planned the whole topic
    query = done_json("status", *numbers.options)["lineage"]
    shown = done_json("adopt", "--lineage", query, *numbers.options)["source_offsets"]
    starting = shown.removeprefix("[").removesuffix("]")
    assert numbers.run(checkpoint, starting)[0] == 1
    done("adopt", "--checkpoint", checkpoint, "--yes", *numbers.options)
    assert numbers.run(checkpoint, starting)[0] == 0
    numbers.check()
