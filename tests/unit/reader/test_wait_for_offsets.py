"""wait_for(offsets=...): a producer learns when what it wrote is visible."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import msgspec
import numpy as np
import pytest

import tidegate.aio
from tidegate.base.source_offsets import checked_offsets, offsets_in, passed
from tidegate.committers import commit as commits
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.errors import ConfigError, CorruptError, WaitTimeoutError
from tidegate.options.endpoints import Endpoints
from tidegate.reader.rules import have_passed
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import Example, TypedBarrier
from tidegate.wal.open_log import open_log
from tidegate.wal.record import LoadOrigin, RestoreOrigin

UA = {"carrier": "UA", "flights": 1}


@pytest.fixture
def place(tmp_path):
    return {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}


def write(example, offsets):
    example.write({"aircraft": {"N1": UA}}, source_offsets=offsets)


def load(example, times):
    for _ in range(times):
        driver, rows = example.driver, {"notes": {b"\x00": b"%d" % example.driver.folded.last_version}}
        origin = LoadOrigin(f"load {driver.folded.last_version}")
        commit(driver, TypedBarrier(driver.log, rows, origin, 8, typed=example.schemas))


def test_records_stay_visible_after_any_number_of_loads(place):
    """After 21 versions that were no batches nobody knew how far the query had read, until its next batch."""
    example = Example(**place)
    load(example, 2)
    write(example, '[{"orders":{"0":43}}]')
    load(example, 21)
    example.close()
    again = Example(**place)
    load(again, 2)
    entry = again.driver.store.catalog(26, 26)[0]
    assert entry.source_offsets == '[{"orders":{"0":43}}]'
    with tidegate.connect(place["store"], "flights") as gate:
        assert gate.wait_for(offsets={"orders": {0: 41}}, timeout=0) == 26
    again.close()


def damaged(*_):
    raise CorruptError("its checksum does not fit")


@pytest.mark.parametrize("of_log", [lambda *_: "", damaged])
def test_a_load_after_a_lost_manifest_has_the_offsets_of_the_store(place, monkeypatch, of_log):
    example = Example(**place)
    write(example, '[{"orders":{"0":43}}]')
    example.close()
    again = Example(**place)
    monkeypatch.setattr(commits, "source_offsets_of", of_log)
    load(again, 1)
    assert again.driver.store.catalog(2, 2)[0].source_offsets == '[{"orders":{"0":43}}]'
    again.close()


def test_a_record_is_visible_once_a_visible_batch_has_read_past_it(place):
    example = Example(**place)
    with tidegate.connect(place["store"], "flights") as gate:
        write(example, '[{"orders":{"0":42,"1":7}}]')
        assert gate.wait_for(offsets={"orders": {0: 41, "1": 6}}, timeout=0) == 1
        with pytest.raises(WaitTimeoutError, match="that has read orders-0@42 was not visible within 0 s"):
            gate.wait_for(offsets={"orders": {0: 42}}, timeout=0)
        load(example, 1)  # no offsets: the last batch's stand
        assert gate.wait_for(offsets={"orders": {0: 41}}, timeout=0) == 2
        write(example, '[{"orders":{"0":43,"1":7}}]')
        assert gate.wait_for(offsets={"orders": {0: 42}}, timeout=60) == 3

    async def later():
        async with await tidegate.aio.connect(place["store"], "flights") as gate:
            return await gate.wait_for(offsets={"orders": {0: 42}}, timeout=60)

    assert asyncio.run(later()) == 3
    example.close()


def restored(place, version):
    log, store = open_log(place["wal"], "flights"), open_store(place["store"], "flights")
    driver = Coordinator(Endpoints("flights", **place), log, store)
    restore(driver, plan_restore(driver, version))
    driver.store.close()
    driver.log.close()


def test_what_a_restore_undid_is_not_visible_and_what_it_kept_is(place):
    example = Example(**place)
    for end in (10, 20, 30):
        write(example, f'[{{"orders":{{"0":{end}}}}}]')
    load(example, 1)
    example.close()
    with tidegate.connect(place["store"], "flights") as gate:
        assert gate.wait_for(offsets={"orders": {0: 29}}, timeout=0) == 4
        restored(place, 2)
        assert gate.wait_for(offsets={"orders": {0: 19}}, timeout=0) == 5
        with pytest.raises(WaitTimeoutError, match="orders-0@20 was not visible"):
            gate.wait_for(offsets={"orders": {0: 20}}, timeout=0)
        restored(place, 4)  # which held the last batch's, and had none of its own
        assert gate.wait_for(offsets={"orders": {0: 29}}, timeout=0) == 6


def test_how_far_a_restored_version_had_read_may_not_be_told(place):
    """By an older release's restore, or where the offsets were too long."""
    example = Example(**place)
    write(example, '[{"orders":{"0":10}}]')
    entries = example.driver.store.catalog()
    undone = msgspec.structs.replace(entries[0], version=2, origin=RestoreOrigin(1), source_offsets="")
    assert have_passed(entries, {("orders", 0): 9})
    assert not have_passed([undone], {("orders", 0): 9})
    assert not have_passed([], {("orders", 0): 9})
    example.close()


@pytest.mark.parametrize(
    "given", [{}, {"orders": 1}, {"orders": {0: -1}}, {"orders": {"x": 1}}, [1], {1: {0: 1}}]
)
def test_offsets_of_another_form_are_refused(given):
    with pytest.raises(ConfigError, match="by topic and partition"):
        checked_offsets(given)


def test_wait_for_takes_one_of_the_two(place):
    example = Example(**place)
    with tidegate.connect(place["store"], "flights") as gate:
        for given in ({}, {"version": 1, "offsets": {"orders": {0: 1}}}):
            with pytest.raises(ConfigError, match="a version or offsets"):
                gate.wait_for(**given)
    example.close()


def test_of_two_sources_of_one_topic_both_have_read_past_it():
    """A query that reads a topic twice, one of them behind the other: what it makes of it is to come."""
    text = '[{"orders":{"0":9}}, {"orders":{"0":5}, "others":{"0":7}}]'
    assert passed(text, {("orders", 0): 4, ("others", 0): 6})
    assert not passed(text, {("orders", 0): 5})


def test_several_sources_and_other_kinds_beside_them():
    text = '[{"logOffset":3}, -, {"orders":{"0":5}}, {"orders":{"0":9,"1":2}}, 7]'
    assert len(list(offsets_in(text))) == 5
    assert passed(text, {("orders", 0): 4, ("orders", 1): 1})
    assert not passed(text, {("orders", 1): 2})
    assert not passed(text, {("others", 0): 0})


@pytest.mark.parametrize("timeout", [None, "5", True, float("nan"), float("inf")])
def test_a_wait_has_an_end(place, timeout):
    """NaN is never over; None is no "for ever"."""
    Example(**place).close()
    for waited in ({"version": 1}, {"offsets": {"orders": {0: 41}}}):
        with (
            tidegate.connect(place["store"], "flights") as gate,
            pytest.raises(ConfigError, match=r"timeout is .* must be a number of seconds"),
        ):
            gate.wait_for(timeout=timeout, **waited)

        async def later(waited=waited):
            async with await tidegate.aio.connect(place["store"], "flights") as gate:
                await gate.wait_for(timeout=timeout, **waited)

        with pytest.raises(ConfigError, match=r"timeout is .* must be a number of seconds"):
            asyncio.run(later())


@pytest.mark.parametrize("timeout", [np.float32(0.05), np.float64(0.05), np.int64(0), Fraction(1, 20), 0])
def test_a_wait_ends_after_any_kind_of_number(place, timeout):
    """A number of numpy's that is no Python float ended the wait in a TypeError of its clock."""
    Example(**place).close()
    with tidegate.connect(place["store"], "flights") as gate, pytest.raises(WaitTimeoutError):
        gate.wait_for(1, timeout=timeout)

    async def later():
        async with await tidegate.aio.connect(place["store"], "flights") as gate:
            await gate.wait_for(1, timeout=timeout)

    with pytest.raises(WaitTimeoutError):
        asyncio.run(later())
