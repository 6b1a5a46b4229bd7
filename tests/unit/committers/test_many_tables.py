"""Namespaces with as many tables as a decision has room for."""

import json
import logging

import pytest

from support.places import driver_at
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.record import Decided, decode_record

ROW = {b"k": b"v"}


@pytest.fixture
def driver(place):
    made = driver_at(place)
    open_namespace(made, "q")
    return made


def write(driver, batch_id, tables, **fields):
    barrier = ArrowBarrier(
        driver.log, dict.fromkeys(tables, ROW), batch("q", batch_id), driver.folded.key_groups, **fields
    )
    return commit(driver, barrier)


def names(count, length=20):
    return [f"{number:0{length}}" for number in range(count)]


def decisions(driver):
    records = (decode_record(entry.content, "") for entry in driver.log.decisions())
    return [record for record in records if isinstance(record, Decided)]


def test_a_table_too_many_is_refused_before_staging(driver, monkeypatch):
    """It was refused after the batch was staged, and again at each replay."""
    tables = names(660)
    write(driver, 0, tables)
    monkeypatch.setattr(ArrowBarrier, "stage", lambda *_: pytest.fail("the batch was staged"))
    with pytest.raises(ConfigError, match=r"has 660 tables.* and nothing of this batch was staged"):
        write(driver, 1, names(1_000))
    assert driver.folded.last_version == 1


def test_all_tables_are_emptied_and_the_source_has_more_partitions(driver):
    """Both lowered the limit of a running namespace: its next version was refused, permanently."""
    tables = names(670)
    write(driver, 0, tables)
    for batch_id in range(1, 11):
        write(driver, batch_id, tables[:1])
    offsets = json.dumps([{"topic": dict.fromkeys(map(str, range(1_200)), 1_000)}])
    assert len(offsets) < 16 * 1024
    assert (
        write(
            driver, 11, tables, starts=frozenset(tables), expiring=frozenset(tables), source_offsets=offsets
        ).version
        == 12
    )


def test_source_offsets_are_left_out_when_the_tables_take_their_room(driver, caplog):
    tables = names(670)
    write(driver, 0, tables, source_offsets="x" * 16_000, expiring=frozenset(tables))
    (decided,) = decisions(driver)
    assert decided.source_offsets == ""
    assert "no room for its source offsets" in caplog.text
    (entry,) = driver.store.catalog(1, 1)
    assert entry.source_offsets == "x" * 16_000, "wait_for(offsets=) reads them here"


def test_source_offsets_are_in_the_decision_when_there_is_room(driver):
    write(driver, 0, names(10), source_offsets="x" * 16_000)
    (decided,) = decisions(driver)
    assert decided.source_offsets == "x" * 16_000


def test_a_warning_from_three_quarters_of_the_room_on(driver, caplog):
    caplog.set_level(logging.WARNING)
    write(driver, 0, names(500))
    assert not caplog.records
    write(driver, 1, names(520))
    assert "has 520 tables of about 682 with names of this length" in caplog.text
    caplog.clear()
    write(driver, 2, names(520))
    assert not caplog.records
