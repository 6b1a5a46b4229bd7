"""``writeStream.format("tidegate")``: Spark's own plans and processes; the protocol's cases are unit tests.

I1 Atomic, I2 Exactly once; T10.
"""

from __future__ import annotations

import datetime
import decimal

import pytest
from pyspark.errors import StreamingQueryException

from support.cli import run
from support.places import rows_by_table
from tidegate.errors import ConfigError, LineageError
from tidegate.spark import cause, prepare, register
from tidegate.spark.session.releases import type_of_ddl

WRITERS = pytest.importorskip("pyspark.sql.datasource")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not hasattr(WRITERS, "DataSourceStreamArrowWriter"), reason="for this it takes PySpark 4.1 or newer"
    ),
]

UTC = datetime.timezone.utc
SCHEMA = """k string, n int, big bigint, d double, dec decimal(12,3), b boolean, day date, at timestamp,
    naive timestamp_ntz, raw binary, l array<struct<t:timestamp,x:double>>, m map<string,int>"""
WHOLE = {
    "n": 1, "big": 2**60, "d": float("inf"), "dec": decimal.Decimal("-1.250"), "b": True,
    "day": datetime.date(2023, 1, 2), "at": datetime.datetime(2023, 1, 2, 3, tzinfo=UTC),
    "naive": datetime.datetime(1969, 1, 2, 3, 0, 0, 5), "raw": b"\x00\xff", "m": {"x": 1},  # noqa: DTZ001
    "l": [{"t": datetime.datetime(2023, 1, 2, tzinfo=UTC), "x": 0.5}, None],
}  # fmt: skip
BATCHES = [
    [{"k": "a", **WHOLE}, {"k": 'ü"\\\n', "n": None}],
    [{"k": "a", "n": 5}, {"k": "a", "n": 3}, {"k": "b", **WHOLE}],
    [{"k": "b", "n": -1}, {"k": "c", "n": 2}],
]


def by_format(stream, mode="append", shape=lambda rows: rows, options=None, **words):
    """Run the stream's query to its end, into a table."""
    rows = stream.spark.readStream.schema(type_of_ddl(stream.schema)).option("maxFilesPerTrigger", 1)
    writer = prepare(shape(rows.parquet(str(stream.input))), "k", parallelism=2, **words).writeStream
    where = {"namespace": "flights", "store": stream.store, "table": "all", "keep_versions": 50}
    where |= {"wal": stream.log.keywords["wal"], "checkpointLocation": str(stream.checkpoint)}
    where |= options or {}
    writer = writer.format("tidegate").outputMode(mode).options(**where)
    query = writer.trigger(availableNow=True).queryName(f"to {stream.checkpoint.name}").start()
    assert query.awaitTermination(400)


def forget_commit(stream, batch):
    """As if the driver had died before it wrote Spark's commit log."""
    for name in (str(batch), f".{batch}.crc"):
        (stream.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.only_log("file")
def test_rows_are_those_of_foreachbatch_and_a_query_moves_between_the_two(spark, stream):
    """The same rows and fingerprints, so a batch that one of them has decided is skipped by the other."""
    register(spark)
    one, two = stream(SCHEMA, "one"), stream(SCHEMA, "two")
    words = {"order_by": "n", "delete_when": "n < 0"}
    one.commit(one.sink(table="all", key="k", **words), *BATCHES)
    two.commit(two.sink(table="all", key="k", **words), BATCHES[0])
    forget_commit(two, 0)
    two.add(*BATCHES[1:])
    by_format(two, **words)
    assert (two.version(), two.decided()) == (3, 3), "batch 0 was skipped"
    for version in (1, 2, 3):
        assert two.rows("all", version) == one.rows("all", version) != {}
    marks = [[fact.origin.fingerprint for fact in each.view().state.recent] for each in (one, two)]
    assert len(set(marks[1])) == 3
    forget_commit(two, 2)
    assert two.commit(two.sink(table="all", key="k", **words)).batches == [2]
    assert two.decided() == 3, "and the other way round"
    second = stream(SCHEMA, "second")
    second.add(BATCHES[0])
    with pytest.raises(StreamingQueryException, match=r"tidegate\.errors\.LineageError: ") as ended:
        by_format(second, options={"store": two.store, "wal": two.log.keywords["wal"]})
    assert type(cause(ended.value)) is LineageError, "as a supervisor reads it"
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        by_format(second, "update")


@pytest.mark.only_log("file")
def test_complete_mode_replaces_and_rows_in_their_order_win(spark, stream):
    register(spark)
    namespace = stream("k string, n int")
    namespace.add([{"k": "a", "n": 1}], [{"k": "b", "n": 1}] * 3, [])
    by_format(namespace, "complete", lambda rows: rows.groupBy("k").count().orderBy("count").limit(1))
    assert [namespace.rows("all", version) for version in (1, 2)] == [{"a": {"count": 1}}] * 2
    ordered = stream("k string, n int", "ordered")
    ordered.add([{"k": "a", "n": n} for n in (3, 1, 2)], [])
    by_format(ordered, schema="k string, n int")
    assert ordered.rows("all") == {"a": {"n": 2}}, "without order_by the last row of a file wins"
    assert ordered.version() == 2


@pytest.mark.parametrize(
    "words,why",
    [
        ({"order_by": "l"}, "does not order as Spark does"),
        ({"order_by": "N"}, "column 'N' of order_by is missing"),
        ({"newer_by": "n", "order_by": "n"}, "do not go together"),
        ({"newer_by": "k"}, "column 'k' of newer_by is missing"),
        ({"value": "n"}, "must be binary or string"),
        ({"schema": "int"}, "must name columns"),
        ({"parallelism": 0}, "must be a whole number"),
        ({"parallelism": 300, "key_groups": 128}, "parallelism is 300"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_prepare_is_one_sentence(spark, words, why):
    with pytest.raises(ConfigError, match=why):
        prepare(spark.createDataFrame([], SCHEMA), "k", **words)


def test_a_schema_is_compared_with_the_rows(spark):
    rows = spark.createDataFrame([("a", 1)], "k string, n int")
    assert prepare(rows, "k", schema="k string, n int", parallelism=2).where("k is not null").count() == 1
    with pytest.raises(Exception, match="k, n are string, bigint there, and in the rows string, int"):
        prepare(rows, "k", schema="k string, n bigint", parallelism=2).collect()


@pytest.mark.only_log("file")
def test_what_an_earlier_query_left_open_does_not_refuse_the_next_one(spark, stream):
    """Red before: ConflictError after batches by foreachBatch, WalGapError and LineageError after a drop."""
    register(spark)
    one = stream("k string, n int", "one")
    for number in range(3):
        one.add([{"k": f"k{number}", "n": number}])
        if number == 1:
            one.commit(one.sink(table="all", key="k"))
        else:
            by_format(one)
    assert one.rows("all") == {f"k{number}": {"n": number} for number in range(3)}
    where = [f"--store={one.store}", f"--wal={one.log.keywords['wal']}", "--namespace=flights"]
    assert run("drop", "--yes", "--force", *where).exit_code == 0
    again = stream("k string, n int", "again")
    again.add([{"k": "new", "n": 0}])
    by_format(again, options={"store": one.store, "wal": one.log.keywords["wal"]})
    assert rows_by_table(one.store)["all"] == {"new": {"n": 0}}
