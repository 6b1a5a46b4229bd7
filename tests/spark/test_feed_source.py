"""spark.readStream.format("tidegate"): changes by version, resumed from the checkpoint, loud about holes."""

from __future__ import annotations

import json

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tidegate.committers.operations.drop import drop_namespace
from tidegate.errors import ConfigError, WalGapError
from tidegate.options import Options
from tidegate.spark import register
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION
from tidegate.spark.source.data_source import TidegateSource
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.stream import FeedReader
from tidegate.testing.example import Example

pytestmark = pytest.mark.spark

UA = {"carrier": "UA", "flights": 1}
DEADLINE_S = 240
SLOW_START, TRIES = "Python worker failed to connect back", 10
"""Spark gives the process of a stream's source 10 s to start, whatever else the machine does."""


class World:
    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.options = {
            "namespace": "flights", "table": "aircraft", "parallelism": "2",
            "store": f"sqlite://{folder}/store", "wal": f"file://{folder}/wal",
        }  # fmt: skip
        self.writer = Example(self.options["wal"], self.options["store"], options=Options(key_groups=8))
        register(spark)

    def run(self, **options):
        """What the stream gives until it has given all: (batch, version, change, key, flights)."""
        got = []

        def note(rows, batch):
            got.extend((batch, r._version, r._change_type, r.tailnum, r.flights) for r in rows.collect())

        for _ in range(TRIES):
            query = (
                self.spark.readStream.format("tidegate").options(**{**self.options, **options}).load()
                .writeStream.foreachBatch(note).trigger(availableNow=True)
                .option("checkpointLocation", f"{self.folder}/checkpoint").start()
            )  # fmt: skip
            try:
                assert query.awaitTermination(DEADLINE_S), f"the query did not end within {DEADLINE_S} s"
                break
            except StreamingQueryException as error:
                if SLOW_START not in str(error):
                    raise
            finally:
                query.stop()
        return sorted(got)


def test_changes_come_by_version_and_go_on_from_the_checkpoint_until_the_log_has_a_hole(spark, tmp_path):
    world = World(spark, tmp_path)
    world.writer.write({"aircraft": {"N1": UA, "N2": UA}})
    world.writer.write({"aircraft": {"N1": None}})
    takes_all = pyspark.__version__.startswith(("4.0.", "4.1."))  # there a batch takes all that is visible
    second = 0 if takes_all else 1
    assert world.run(maxVersionsPerTrigger=1) == [
        (0, 1, "upsert", "N1", 1),
        (0, 1, "upsert", "N2", 1),
        (second, 2, "delete", "N1", None),
    ]
    world.writer.write({"aircraft": {"N1": {**UA, "flights": 3}}})
    assert world.run(changeTypes="exact") == [(second + 1, 3, "insert", "N1", 3)]
    world.writer.write({"aircraft": {"N2": None}})
    world.writer.driver.log.trim_blobs([], 2**60)
    with pytest.raises(
        StreamingQueryException, match=r"(?s)WalGapError: the changes of version 4 .*onRetired"
    ):
        world.run()
    last = second + 2
    assert world.run(onRetired="snapshot") == [
        (last, 4, "snapshot", "N1", 3),
        (last, 4, "truncate", None, None),
    ]
    world.writer.close()


def test_a_query_does_not_continue_in_a_namespace_that_was_made_again_i12(spark, tmp_path):
    """Red before: it gave versions 3 and 4 of the new namespace, after two of the old one."""
    world = World(spark, tmp_path)
    for flights in (1, 2):
        world.writer.write({"aircraft": {"N1": {**UA, "flights": flights}}})
    assert [row[1] for row in world.run()] == [1, 2]
    drop_namespace(world.writer.driver)
    world.writer.close()
    world.writer = Example(world.options["wal"], world.options["store"], options=Options(key_groups=8))
    for flights in range(1, 5):
        world.writer.write({"aircraft": {f"new{flights}": UA}})
    for options in ({}, {"onRetired": "snapshot"}):
        with pytest.raises(
            StreamingQueryException, match=r"(?s)WalGapError: .*version 2 of .*another history"
        ):
            world.run(**options)
    world.writer.close()


def test_a_checkpoint_of_an_earlier_release_continues_and_has_a_history_from_then_on(spark, tmp_path):
    world = World(spark, tmp_path)
    world.writer.write({"aircraft": {"N1": UA}})
    assert [row[1] for row in world.run()] == [1]
    (planned,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    *head, offset = planned.read_text().splitlines()
    planned.write_text("\n".join([*head, json.dumps({"version": json.loads(offset)["version"]})]))
    planned.with_name(f".{planned.name}.crc").unlink()
    assert world.run() == []  # its batch has no rows
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    pointer = world.writer.driver.store.pointer()
    assert json.loads(newest.read_text().splitlines()[-1])["digest"] == pointer.digest
    world.writer.write({"aircraft": {"N2": UA}})
    assert [row[1:4] for row in world.run()] == [(2, "upsert", "N2")]
    world.writer.close()


def test_a_gap_that_is_longer_than_a_batch_is_bridged_to_a_version_that_can_be_read(spark, tmp_path):
    world = World(spark, tmp_path)
    for flights in range(1, 5):
        world.writer.write({"aircraft": {"N1": {**UA, "flights": flights}}})
    world.writer.driver.log.trim_blobs([], 2**60)
    assert world.writer.driver.store.announce(4) == 4
    bridged = [(0, 4, "snapshot", "N1", 4), (0, 4, "truncate", None, None)]
    assert world.run(onRetired="snapshot", maxVersionsPerTrigger=1) == bridged
    world.writer.close()


def test_a_feed_behind_the_log_is_only_truncated_where_the_table_is_dropped_by_then(tmp_path):
    """There is no table to give whole; an error would be repeated until somebody made one of its name."""
    where = {"store": f"sqlite://{tmp_path}/store", "wal": f"file://{tmp_path}/wal"}
    writer = Example(where["wal"], where["store"], options=Options(key_groups=8))
    writer.write({"aircraft": {"N1": UA}})
    types = {"tailnum": StringType(), "carrier": StringType(), "flights": IntegerType()}
    fields = [*types.items(), (CHANGE_TYPE, StringType()), (VERSION, LongType())]
    options = SourceOptions.of(
        {"namespace": "flights", "table": "aircraft", "onRetired": "snapshot", **where}
    )
    reader = FeedReader(lease_table(options), options, StructType([StructField(*field) for field in fields]))
    for rows in ({"N2": UA}, {"N3": UA}):
        writer.write({"aircraft": rows})
    writer.write({}, drops=frozenset({"aircraft"}))
    writer.driver.log.trim_blobs([], 2**60)
    start = {"version": 1}
    (part,) = reader.partitions(start, reader.latestOffset(start, None))
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row[VERSION], row[CHANGE_TYPE], row["tailnum"]) for row in rows] == [(4, "truncate", None)]
    reader.stop()
    writer.close()


@pytest.fixture
def reader(tmp_path):
    """A stream's reader of two versions, as Spark's process for it has it; no session is needed."""
    options = {"namespace": "flights", "table": "aircraft"}
    options |= {"store": f"sqlite://{tmp_path}/store", "wal": f"file://{tmp_path}/wal"}
    writer = Example(options["wal"], options["store"], options=Options(key_groups=2))
    for flights in (1, 2):
        writer.write({"aircraft": {"N1": {**UA, "flights": flights}}})
    writer.close()
    opened = []

    def read(*, available_now, **more):
        opened.append(TidegateSource({**options, **more}).streamReader(StructType()))
        if available_now:
            opened[-1].prepareForTriggerAvailableNow()
        return opened[-1]

    yield read
    for one in opened:
        one.stop()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_store_that_went_back_behind_the_checkpoint_is_told_however_the_query_runs_i10(
    reader, available_now
):
    """With availableNow it had ended as one that is done."""
    mine = reader(available_now=available_now)
    assert mine.latestOffset({"version": 2})["version"] == 2
    with pytest.raises(WalGapError, match="has given version 3, the store's visible version is 2: it went"):
        mine.latestOffset({"version": 3})


@pytest.mark.parametrize("available_now", [False, True])
def test_a_feed_begins_behind_what_is_visible_at_most(reader, available_now):
    """It was called a store that went back, or waited for without a word."""
    next_one = reader(available_now=available_now, startingVersion="3")
    assert next_one.initialOffset()["version"] == 2
    assert next_one.latestOffset(next_one.initialOffset()) == next_one.initialOffset()
    with pytest.raises(ConfigError, match="startingVersion is 4, the visible version is 2: begin at 3"):
        reader(available_now=available_now, startingVersion="4").initialOffset()


def test_writing_by_format_is_refused_with_what_to_use_instead():
    """As Spark's worker asks for a writer, before any row moves."""
    source, schema = TidegateSource({}), StructType()
    with pytest.raises(ConfigError, match=r"df.write.format\('tidegate'\) cannot write: .*\.load\("):
        source.writer(schema, overwrite=False)
    needs = "Spark 4.1 or newer" if pyspark.__version__.startswith("4.0.") else "the option 'namespace'"
    with pytest.raises(ConfigError, match=rf"writeStream.format\('tidegate'\) needs {needs}"):
        source.streamWriter(schema, overwrite=False)
