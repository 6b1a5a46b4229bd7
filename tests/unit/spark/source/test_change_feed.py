"""The change feed without Spark: which changes of which versions, from the log; holes are loud."""

from __future__ import annotations

import contextlib
import re
import sqlite3

import pyarrow as pa
import pytest

from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.errors import ConfigError, CorruptError, WalGapError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.source import change_feed
from tidegate.spark.source.arrow_rows import columns_of, ddl_of
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.testing.example import SCHEMAS, Example
from tidegate.values.decode import values_of
from tidegate.values.kinds import SIMPLE
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

        def again(self):
            return Example(wal, store, options=Options(key_groups=8))

        def options(self, **options):
            given = {"namespace": "flights", "store": store, "wal": wal, "table": "aircraft", **options}
            return SourceOptions.of(given)

        def planner(self, **options):
            checked = self.options(**options)
            feed = Feed(lease_table(checked), wal, {}, checked.exact)
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


def test_a_table_that_a_version_emptied_is_told_also_where_nothing_came_instead(world):
    world.example.write({"aircraft": {"N1": UA}, "airports": {}})
    world.example.write({"aircraft": {}}, starts=frozenset({"aircraft"}))
    world.example.write({"aircraft": {"N2": UA}}, starts=frozenset({"aircraft"}))
    for options in ({}, {"changeTypes": "exact"}):
        emptied = [row for row in world.changes(1, 3, **options) if row[1] == "truncate"]
        assert emptied == [(2, "truncate", None, None), (3, "truncate", None, None)]


def test_a_version_that_emptied_the_table_and_changed_another_one_is_told(world):
    world.example.write({"aircraft": {"N1": UA}})
    world.example.write({"aircraft": {}, "notes": {b"1": b"one"}}, starts=frozenset({"aircraft"}))
    assert world.changes(1, 2) == [(2, "truncate", None, None)]


def test_whatever_task_reads_it_a_row_is_new_in_a_version_that_emptied_its_table(world, monkeypatch):
    monkeypatch.setattr(change_feed, "ROWS_PER_PART", 4)  # so that several tasks read one version
    rows = {f"N{number}": UA for number in range(20)}
    world.example.write({"aircraft": rows})
    world.example.write({"aircraft": rows}, starts=frozenset({"aircraft"}))
    found = [kind for _, kind, *_ in world.changes(1, 2, changeTypes="exact")]
    assert sorted(found) == ["insert"] * 20 + ["truncate"]


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


def given_by(planned, after, upto):
    """What a feed that was planned before gives of these versions, with its own columns."""
    feed, planner = planned
    columns = pa.schema([*feed.leased.values.arrow_schema, *list(COLUMNS)[-2:]])
    parts = planner.works(after, upto)
    return [row for part in parts for b in feed.rows(encode_works(part), columns) for row in b.to_pylist()]


def test_columns_that_a_running_feed_does_not_know_stop_its_snapshot_too(world):
    """It gives the whole table after a gap; its rows without their new columns would never come again."""
    world.example.write({"aircraft": {"N1": UA}})
    feed, _ = world.planner()
    wider = TableSchema(SCHEMAS["aircraft"].key, (*SCHEMAS["aircraft"].value, Column("seats", "int")))
    world.example.schemas["aircraft"] = wider
    world.example.write({"aircraft": {"N2": {**UA, "seats": 2}}})
    options = world.options()
    with pytest.raises(ConfigError, match=r"has the columns seats from version 2 on.*restart it"):
        feed.lease(options, 2)
    restarted, _ = world.planner()
    leased = restarted.lease(options, 2)
    columns = pa.schema([*leased.values.arrow_schema, *list(COLUMNS)[-2:]])
    rows = [row for b in restarted.snapshot(leased, range(8), columns) for row in b.to_pylist()]
    seats = {row["tailnum"]: row["seats"] for row in rows if row[CHANGE_TYPE] == "snapshot"}
    assert seats == {"N1": None, "N2": 2}


def replaced_by(world, value, value_format, row):
    world.example.schemas["aircraft"] = TableSchema(SCHEMAS["aircraft"].key, value, value_format)
    world.example.write({"aircraft": {"N2": row}}, starts=frozenset({"aircraft"}))


def test_a_table_replaced_by_other_values_is_never_given_as_rows_of_nulls(world):
    world.example.write({"aircraft": {"N1": UA}})
    running = world.planner()
    replaced_by(world, (Column("photo", "binary"),), "bytes", b"...")
    with pytest.raises(ConfigError, match=r"holds bytes values at version 2.*gives json ones: restart it"):
        given_by(running, 1, 2)
    (_, row) = given_by(world.planner(), 1, 2)
    assert row["photo"] == b"..."
    with pytest.raises(ConfigError, match=r"holds json values at version 1.*later startingVersion"):
        given_by(world.planner(), 0, 2)


def test_values_of_a_replaced_tables_other_type_stop_a_feed_in_words(world):
    world.example.write({"aircraft": {"N1": UA}})
    running = world.planner()
    replaced_by(world, (Column("carrier", "string"), Column("flights", "string")), "json", {"flights": "ten"})
    with pytest.raises(
        ConfigError, match=r"types from version 2 on.*flights \(string, it was int\).*restart"
    ):
        given_by(running, 1, 2)
    assert [row["flights"] for row in given_by(world.planner(), 0, 2)] == ["1", None, "ten"]


def test_a_feed_from_the_beginning_passes_columns_that_a_replacement_dropped(world):
    world.example.write({"aircraft": {"N1": UA}})
    replaced_by(world, (Column("carrier", "string"),), "json", {"carrier": "AA"})
    found = given_by(world.planner(), 0, 2)
    assert [(row[CHANGE_TYPE], row["tailnum"], row["carrier"]) for row in found] == [
        ("upsert", "N1", "UA"),
        ("truncate", None, None),
        ("upsert", "N2", "AA"),
    ]


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
    from tidegate.keys.groups import encode_key

    keys = pa.array([b"sliced off", *(encode_key(row, schema.key_types) for row in rows)]).slice(1)
    batch = pa.record_batch({"key": keys, "value": pa.array([b"{}"] * 3)})
    found = columns_of(batch, values_of(schema), "here")
    assert list(zip(*(found[name].to_pylist() for name in "abc"), strict=True)) == rows


def ddl(*types):
    return ddl_of(values_of(TableSchema((), tuple(Column("c", one) for one in types))))


def test_types_that_arrow_has_no_form_for_are_read_as_text():
    assert ddl("array<interval day to second>") == "`c` array<string>"
    assert ddl("struct<a:varchar(3),b:string collate UNICODE_CI>") == "`c` struct<`a`: string, `b`: string>"


def test_names_of_fields_are_quoted_as_those_of_columns_are():
    """Else Spark could not read a table that has such a column at all."""
    assert ddl("struct<\u00fc:int,x y:array<struct<a`b:date>>>") == (
        "`c` struct<`\u00fc`: int, `x y`: array<struct<`a``b`: date>>>"
    )


@pytest.mark.parametrize("name", [*SIMPLE, "decimal(20,6)", "map<timestamp, array<decimal(5,0)>>"])
def test_a_type_has_a_name_for_spark_that_no_setting_of_a_session_changes(name):
    assert ddl(name) == f"`c` {re.sub('timestamp(?!_ntz)', 'timestamp_ltz', name)}"


def decisions_from(planner, view, position):
    """The log's records; where the reader stood there is a record's place, as a count would be."""
    entries = list(type(planner._log).decisions(planner._log))
    return iter(entries if position != view.position else [e for e in entries if e.position > position])


@pytest.mark.parametrize("longer", [False, True], ids=["torn place", "same place"])
def test_a_feed_that_had_read_a_lost_decision_gives_the_rows_of_the_one_that_is_visible(
    world, longer, monkeypatch
):
    """The log loses a version that was decided and never visible; the same version is decided again."""
    world.example.write({"aircraft": {"N1": UA}})
    feed, planner = world.planner()
    log = world.example.driver.log
    (decisions,) = log.folder.rglob("decisions.log")
    before = decisions.read_bytes()
    failpoints.arm("decide.after_append=raise")
    with pytest.raises(FailpointError):
        world.example.write({"aircraft": {"LOST": UA}})
    failpoints.arm(None)
    assert planner.has(2)  # it is in the log, and this has folded it
    if longer:  # as on Kafka, where every position is a record's
        view = planner._decided._view
        monkeypatch.setattr(planner._log, "decisions", lambda at=0: decisions_from(planner, view, at))
    decisions.write_bytes(before)
    again = world.again()
    again.write({"aircraft": {"N2": UA}})
    again.write({"aircraft": {"N3": UA}})
    parts = planner.works(1, 3)
    rows = [b.to_pylist() for part in parts for b in feed.rows(encode_works(part), COLUMNS)]
    assert [(r[VERSION], r["tailnum"]) for b in rows for r in b] == [(2, "N2"), (3, "N3")]
    again.close()


def test_a_feed_of_a_log_that_is_not_the_stores_is_refused(world):
    world.example.write({"aircraft": {"N1": UA}})
    _, planner = world.planner()
    meta = world.example.driver.store
    with contextlib.closing(sqlite3.connect(meta.part_of(0).rpartition("/")[0] + "/meta.sqlite")) as files:
        files.execute("UPDATE pointer SET digest = 'another'")
        files.commit()
    with pytest.raises(CorruptError, match="two histories"):
        planner.works(0, 1)


def test_a_dropped_table_is_truncated_and_goes_on_when_it_is_made_again(world):
    world.example.write({"aircraft": {"N1": UA}})
    world.example.write({}, drops=frozenset({"aircraft"}))
    world.example.write({"notes": {b"1": b"one"}})
    world.example.write({"aircraft": {"N2": UA}})
    changes = [(1, "upsert", "N1", 1), (2, "truncate", None, None), (4, "upsert", "N2", 1)]
    assert world.changes(0, 4) == changes
    exact = [row[1:3] for row in world.changes(1, 4, changeTypes="exact")]
    assert exact == [("truncate", None), ("insert", "N2")]


def test_a_table_that_was_made_again_with_another_key_ends_the_feed(world):
    world.example.write({"aircraft": {"N1": UA}})
    world.example.write({}, drops=frozenset({"aircraft"}))
    world.example.schemas["aircraft"] = TableSchema(
        (Column("hull", "string"),), (Column("carrier", "string"),)
    )
    world.example.write({"aircraft": {"H1": {"carrier": "UA"}}})
    with pytest.raises(
        ConfigError, match=r"has the key tailnum string at version 1, .* dropped and made again"
    ):
        world.changes(0, 3)
