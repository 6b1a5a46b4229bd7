"""The change feed without Spark: which changes of which versions, from the log; holes are loud."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import ConfigError, WalGapError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.arrow_rows import columns_of, readable_type
from tidegate.spark.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.pinned import pin
from tidegate.spark.source_options import SourceOptions
from tidegate.testing.example import SCHEMAS, Example
from tidegate.values import values_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

COLUMNS = pa.schema(
    [
        *(("tailnum", pa.string()), ("carrier", pa.string()), ("flights", pa.int32())),
        *((CHANGE_TYPE, pa.string()), (VERSION, pa.int64())),
    ]
)
UA = {"carrier": "UA", "flights": 1}


@pytest.fixture
def world(tmp_path):
    """A writer on files; ``changes(after, upto)`` is what a feed gives of these versions."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    writer = Example(wal, store, options=Options(key_groups=8))
    opened = []

    class World:
        example = writer

        def planner(self, **options):
            given = {"namespace": "flights", "store": store, "wal": wal, "table": "aircraft", **options}
            checked = SourceOptions.of(given)
            feed = Feed(pin(checked), wal, {}, checked.exact)
            opened[:] = [*opened, open_log(wal, "flights"), open_store(store, "flights")]
            return feed, FeedPlanner(feed, *opened[-2:], 3)

        def changes(self, after, upto, **options):
            feed, planner = self.planner(**options)
            parts = planner.works(after, upto)
            rows = [b.to_pylist() for part in parts for b in feed.rows(encode_works(part), COLUMNS)]
            return [(r[VERSION], r[CHANGE_TYPE], r["tailnum"], r["flights"]) for b in rows for r in b]

    yield World()
    for one in opened:
        one.close()
    writer.close()


def test_each_version_gives_its_own_changes_and_no_others(world):
    world.example.write({"aircraft": {"N1": UA, "N2": UA}})
    world.example.write({"airports": {"EWR": {"departures": 1, "delay": 0.0}}})
    world.example.write({"aircraft": {"N1": {**UA, "flights": 2}, "N2": None, "N9": None}})
    assert sorted(world.changes(0, 3)) == [
        (1, "upsert", "N1", 1),
        (1, "upsert", "N2", 1),
        (3, "delete", "N2", None),
        (3, "delete", "N9", None),
        (3, "upsert", "N1", 2),
    ]
    assert world.changes(1, 2) == []
    assert sorted(world.changes(2, 3, changeTypes="exact")) == [
        (3, "delete", "N2", None),
        (3, "update", "N1", 2),
    ]
    assert {kind for _, kind, *_ in world.changes(0, 1, changeTypes="exact")} == {"insert"}


def test_a_version_that_the_log_has_no_longer_is_a_loud_gap_with_the_ways_out(world):
    for number in range(3):
        world.example.write({"aircraft": {"N1": {**UA, "flights": number}}})
    log = world.example.driver.log
    log.trim_blobs([], 2**60)
    with pytest.raises(
        WalGapError, match=r"(?s)changes of version 1 .*startingVersion=latest.*onRetired=snapshot"
    ):
        world.changes(0, 3)


def test_columns_that_a_running_feed_does_not_know_stop_it(world):
    world.example.write({"aircraft": {"N1": UA}})
    _, planner = world.planner()
    wider = TableSchema(SCHEMAS["aircraft"].key, (*SCHEMAS["aircraft"].value, Column("seats", "int")))
    world.example.schemas["aircraft"] = wider
    world.example.write({"aircraft": {"N2": {**UA, "seats": 2}}})
    with pytest.raises(ConfigError, match=r"has the columns seats from version 2 on.*restart it"):
        planner.works(0, 2)
    assert sorted(world.changes(0, 2)) == [(1, "upsert", "N1", 1), (2, "upsert", "N2", 1)]


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "needs the option 'namespace'"),
        ({"startingVersion": "0"}, "startingVersion is '0'"),
        ({"maxVersionsPerTrigger": "-1"}, "maxVersionsPerTrigger is '-1'"),
        ({"onRetired": "skip"}, "onRetired is 'skip'; it must be 'fail' or 'snapshot'"),
        ({"leaseSeconds": "0"}, "leaseSeconds is '0'"),
        ({"path": "/x"}, "takes no path"),
        ({"timestampAsOf": "2023-01-01"}, "timestampAsOf .* with its zone"),
        ({"versionasof": "x"}, "versionAsOf is 'x'"),
        ({"storeOptions": "no"}, "storeOptions must be a JSON object"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01T00:00:00Z"}, "not both"),
    ],
)
def test_options_that_do_not_fit_are_named(given, message):
    there = {"namespace": "n", "store": "sqlite:///s", "table": "t"} if given else {}
    with pytest.raises(ConfigError, match=message):
        SourceOptions.of({**there, **given})


def test_composite_keys_are_taken_apart_in_columns():
    schema = TableSchema((Column("a", "string"), Column("b", "int"), Column("c", "binary")), ())
    rows = [("x" * 1000, -5, b"\x00,"), ("", 0, b""), ("ü:1,", 7, b"1:a,")]
    from tidegate.key_groups import encode_key

    keys = pa.array([b"sliced off", *(encode_key(row, schema.key_types) for row in rows)]).slice(1)
    batch = pa.record_batch({"key": keys, "value": pa.array([b"{}"] * 3)})
    found = columns_of(batch, values_of(schema), "here")
    assert list(zip(*(found[name].to_pylist() for name in "abc"), strict=True)) == rows


def test_types_that_arrow_has_no_form_for_are_read_as_text():
    assert readable_type("array<interval day to second>") == "array<string>"
    assert readable_type("struct<a:varchar(3),b:string collate UNICODE_CI>") == "struct<a:string,b:string>"
