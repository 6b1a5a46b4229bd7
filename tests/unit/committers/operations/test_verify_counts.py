"""Verify finds rows that no version has, wherever a reader could get them."""

import contextlib
import sqlite3

import pytest

from support.checked_place import OPTIONS, Place
from support.places import new_place, opened
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.sinks.open_store import open_store
from tidegate.sinks.sqlite.disk.tables import TABLE
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.open_log import open_log


@pytest.fixture(params=[False, True], ids=["all kept", "retired"])
def place(request, tmp_path):
    return Place(tmp_path).write(retire=request.param)


@pytest.fixture
def kept(tmp_path):
    return Place(tmp_path).write()


def pair(place, *, touched):
    """A key group of t_airports and a version in which the manifest has, or has not, changes of it."""
    for version in (3, 2):
        counts = place.manifests[version].counts()
        for group in range(4):
            if ("airports" in counts.get(group, {})) == touched:
                return group, version
    raise AssertionError("every key group is touched")


def insert(place, group, version, table="t_airports", key=b"XXX", value=b'+{"departures":1,"delay":0.5}'):
    with contextlib.closing(sqlite3.connect(place.folder / f"shard-{group:02d}.sqlite")) as connection:
        connection.execute(TABLE.format(name=table))
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", (group, key, version, value))
        connection.commit()


def test_a_row_of_a_version_in_a_key_group_that_it_did_not_touch(place):
    """Readers saw it, and verify counted the rows of touched key groups alone."""
    group, version = pair(place, touched=False)
    insert(place, group, version)
    assert f"version {version}, key group {group}, table airports: no row" in place.found()


@pytest.mark.parametrize("version", [4, 9, 2**60, 0, -1])
def test_a_row_of_a_version_that_was_never_decided(place, version):
    insert(place, 1, version)
    assert f"version {version}, key group 1, table airports: no row" in place.found()


def test_a_row_of_a_table_that_did_not_exist_at_the_horizon(tmp_path):
    place = Place(tmp_path).write(BATCHES[:2])
    driver = Example(place.wal, place.store, options=OPTIONS)
    driver.write({"airports": {"SFO": {"departures": 1, "delay": 0.0}}})
    driver.schemas["gates"] = driver.schemas["airports"]
    driver.write({"gates": {"SFO": {"departures": 1, "delay": 0.0}}})
    retire_up_to(driver.driver.log, driver.driver.store, driver.driver.folded, OPTIONS, lambda: False)
    driver.close()
    assert place.found() == ""
    insert(place, 1, 2, "t_gates")
    assert "version 2, key group 1, table gates: no row: version 3 has no such table" in place.found()


def test_a_table_that_no_version_has(place):
    insert(place, 1, 3, "t_evil")
    assert "version 3, key group 1, table t_evil: no row" in place.found()


def test_rows_of_a_dropped_table_that_the_log_could_no_longer_retire_are_no_finding(tmp_path):
    """Retirement leaves them to a vacuum then; no reader gets them, also if the table is made again."""
    place = Place(tmp_path).write()
    example = Example(place.wal, place.store, options=OPTIONS)
    log, store = example.driver.log, example.driver.store
    rows = {"airports": {"SFO": {"departures": 1, "delay": 0.0}}}
    example.write(rows, drops=frozenset({"aircraft"}))
    for _ in range(3):
        example.write(rows)
    store.announce(6)
    assert {count.table for count in store.row_counts(["aircraft", "airports"])} >= {"aircraft"}
    assert verify(log, store).findings == []
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    assert verify(log, store).findings == []
    store.vacuum()
    assert verify(log, store).findings == []
    insert(place, 1, 7, "t_legs")
    assert [finding.expected for finding in verify(log, store).findings]
    example.close()


def test_a_drop_that_is_retired_during_the_check_is_no_finding(kept):
    log, store = open_log(kept.wal, "flights"), open_store(kept.store, "flights")
    example = Example(kept.wal, kept.store, options=OPTIONS)
    driver, plain = example.driver, store.row_counts
    rows = {"airports": {"SFO": {"departures": 1, "delay": 0.0}}}

    def retired_after(tables):
        counts = list(plain(tables))
        example.write(rows, drops=frozenset({"aircraft"}))
        for _ in range(3):
            example.write(rows)
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
        return counts

    store.row_counts = retired_after
    assert verify(log, store).findings == []
    example.close()
    store.close()


@pytest.mark.parametrize("column", ["version", "kg"])
def test_a_row_whose_version_or_key_group_is_no_number(kept, column):
    kept.in_shards(f"UPDATE t_aircraft SET {column} = 'abc' WHERE version = 3")
    assert "rows of a version and a key group" in kept.found()


def test_a_row_of_another_expiry(place):
    """Readers get its value now, and not after its time."""
    far = (2**60).to_bytes(8, "big").hex()
    place.in_shards(
        f"UPDATE t_airports SET value = CAST(X'65{far}' || substr(value, 2) AS BLOB) WHERE version = 1"
    )
    assert "table airports, key '" in place.found()


def test_a_version_that_is_decided_and_applied_during_the_check_is_no_finding(kept):
    log, store = open_log(kept.wal, "flights"), open_store(kept.store, "flights")
    example = Example(kept.wal, kept.store, options=OPTIONS)
    plain = store.row_counts

    def written_first(tables):
        example.write({"airports": {"SFO": {"departures": 1, "delay": 0.0}}})
        return list(plain(tables))

    store.row_counts = written_first
    assert verify(log, store).findings == []
    example.close()
    store.close()


@pytest.mark.parametrize("floor", [9, 3, "'x'"])
def test_a_floor_above_the_horizon(place, floor):
    """Readers were refused for good, and verify took the key group for merged."""
    place.sql("shard-01.sqlite", f"INSERT OR REPLACE INTO floors VALUES (1, {floor})")
    found = place.found()
    assert "shard-01.sqlite, floors, key group 1: at most the horizon" in found
    assert "readers are refused" in found


def test_in_memory_rows_that_no_version_has_and_floors():
    driver = opened(new_place(), 2)
    space = driver.store._space
    (table, group) = next(iter(space.rows))
    space.rows[table, group][b"XXX"] = {9: b"+x"}
    space.floors[1] = 9
    where = [finding.where for finding in verify(driver.log, driver.store).findings]
    assert any("version 9" in place for place in where)
    assert any("key group 1, floor" in place for place in where)
