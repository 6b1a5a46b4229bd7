"""Spill and load after a batch: the right groups, enough of them, and never in the way of a task."""

import logging

import numpy as np
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.cache.buffer.balance import Balanced, balance
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.policy import ContainerMemory

KIB = 1024
BUDGET = 1000 * KIB


@pytest.fixture
def opened(tmp_path):
    locals_ = []

    def make(disks=1, disk_bytes_max=10 * BUDGET, **bands):
        names = ["memory", *(f"disk{number}" for number in range(disks))]
        made = [LocalDir(str(tmp_path / name), "flights", "u1") for name in names]
        locals_.extend(made)
        return Buffer(made[0], made[1:], BufferLimits(BUDGET, disk_bytes_max, 64 * KIB, StateSpill(**bands)))

    yield make
    for local in locals_:
        local.close()


def fill(buffer, group, kib, requests, tier="memory", batch=1):
    with buffer.claim(str(group)) as held:
        segment = held.write([bytes([group]) * kib * KIB], tier)
        assert segment.tier == tier
        assert held.keep([segment], b"%d" % group, groups=range(group, group + 1))
    buffer.rates.add(requests * np.eye(32, dtype=np.int64)[group], batch, 0.3)


def tiers(buffer):
    return {int(group): note.segments[0].tier for group, note in buffer.notes().items()}


def whole(buffer):
    """Every group still has its own bytes."""
    for group in buffer.notes():
        with buffer.claim(group) as held:
            assert held.caller == group.encode()
            for segment in held.segments:
                assert held.view(segment).to_pybytes() == bytes([int(group)]) * segment.bytes


def test_big_and_cold_is_spilled_down_to_the_threshold(opened):
    buffer = opened()
    for group in range(9):
        fill(buffer, group, 100, requests=10 * (group + 1))
    fill(buffer, 9, 60, requests=1)
    done = balance(buffer, batch=1)
    assert done == Balanced(spilled=200 * KIB, reason="budget")
    assert [group for group, tier in tiers(buffer).items() if tier == "disk"] == [0, 1]
    assert buffer.used_bytes("memory") <= 0.8 * BUDGET
    assert balance(buffer, batch=2) == Balanced()
    whole(buffer)


def test_hot_and_small_comes_back_when_there_is_room(opened):
    buffer = opened()
    for group in range(5):
        fill(buffer, group, 100, requests=1)
    fill(buffer, 10, 120, requests=1, tier="disk")
    fill(buffer, 11, 120, requests=50, tier="disk")
    fill(buffer, 12, 60, requests=50, tier="disk")
    fill(buffer, 13, 500, requests=900, tier="disk")
    assert balance(buffer, batch=1) == Balanced(loaded=180 * KIB, reason="room")
    assert {group for group, tier in tiers(buffer).items() if tier == "disk"} == {10, 13}
    assert balance(buffer, batch=1) == Balanced()
    whole(buffer)


def test_what_nobody_asks_for_is_not_loaded(opened):
    buffer = opened()
    fill(buffer, 1, 100, requests=1, tier="disk")
    assert balance(buffer, batch=100) == Balanced()
    assert tiers(buffer) == {1: "disk"}


def test_a_claimed_group_is_left_out_and_another_goes(opened):
    buffer = opened()
    for group in range(9):
        fill(buffer, group, 100, requests=10 * (group + 1))
    fill(buffer, 9, 60, requests=1)
    other = opened()
    with other.claim("0") as held:
        assert balance(buffer, batch=1).spilled == 200 * KIB
        assert held.view(held.segments[0]).to_pybytes() == bytes(100 * KIB)
    assert [group for group, tier in tiers(buffer).items() if tier == "disk"] == [1, 2]


def test_one_process_at_a_time_does_it(opened):
    buffer = opened()
    fill(buffer, 1, 950, requests=1)
    with opened().only_one_balances() as mine:
        assert mine
        assert balance(buffer, batch=1) == Balanced()
    assert balance(buffer, batch=1).spilled == 950 * KIB


def test_without_room_on_disk_the_coldest_there_is_given_up(opened):
    buffer = opened(disk_bytes_max=400 * KIB)
    for group, requests in ((20, 50), (21, 1), (22, 60)):
        fill(buffer, group, 120, requests, tier="disk")
    for group in range(9):
        fill(buffer, group, 104, requests=100)
    assert balance(buffer, batch=1).dropped >= 1
    assert "21" not in buffer.notes()
    assert buffer.used_bytes("memory") <= 0.8 * BUDGET
    assert buffer.used_bytes("disk") <= 400 * KIB
    whole(buffer)


def test_without_a_disk_what_would_be_spilled_is_given_up(opened):
    buffer = opened(disks=0)
    for group in range(9):
        fill(buffer, group, 104, requests=10 * (group + 1))
    done = balance(buffer, batch=1)
    assert (done.spilled, done.dropped) == (0, 2)
    assert buffer.notes().keys() == set("2345678")
    whole(buffer)


def test_a_damaged_group_is_given_up(opened):
    buffer = opened()
    for group in range(9):
        fill(buffer, group, 104, requests=10 * (group + 1))
    [file] = buffer.home.unit_folder("0").glob("*.memory")
    file.write_bytes(b"x" * file.stat().st_size)
    done = balance(buffer, batch=1)
    assert done.dropped == 1
    assert "0" not in buffer.notes()
    assert buffer.used_bytes("memory") <= 0.8 * BUDGET


def test_a_count_that_is_wrong_is_mended(opened):
    """A process that is killed between counting and writing leaves it too high."""
    buffer = opened()
    fill(buffer, 1, 100, requests=1)
    buffer.usage.reserve("memory", 700 * KIB, BUDGET, lambda: None)
    assert balance(buffer, batch=1) == Balanced()
    assert buffer.used_bytes("memory") == 100 * KIB


# -- what the monitor adds ------------------------------------------------------------------------


def test_a_full_container_spills_though_the_budget_has_room(opened, caplog):
    caplog.set_level(logging.DEBUG, "tidegate")
    buffer = opened()
    for group in range(5):
        fill(buffer, group, 100, requests=group)
    done = balance(buffer, batch=1, container=ContainerMemory(9_700 * KIB, 10_000 * KIB))
    assert done == Balanced(spilled=500 * KIB, reason="container")  # 700 over 0.9 of the limit
    assert "reason: container" in caplog.text
    assert f"container {9_700 * KIB} of {10_000 * KIB}" in caplog.text
    whole(buffer)


def test_a_wait_spills_once_in_a_batch(opened):
    buffer = opened()
    for group in range(5):
        fill(buffer, group, 100, requests=group + 1)
    assert balance(buffer, batch=1, wait_share=0.5) == Balanced(spilled=100 * KIB, reason="wait")
    for _ in range(3):  # other tasks of the batch that saw the same wait
        assert balance(buffer, batch=1, wait_share=0.5) == Balanced()
    assert balance(buffer, batch=2, wait_share=0.05) == Balanced()
    assert balance(buffer, batch=3, wait_share=0.5) == Balanced(spilled=100 * KIB, reason="wait")
    assert balance(buffer, batch=4, wait_share=0.5) == Balanced(), "not below 0.3 of the budget"
    assert balance(buffer, batch=5).loaded == 200 * KIB
    whole(buffer)


def test_a_batch_moves_no_more_than_its_limit(opened):
    buffer = opened(batch_bytes_max=250 * KIB, spill_above=0.35, spill_to=0.3, load_below=0.1, load_to=0.2)
    for group in range(9):
        fill(buffer, group, 105, requests=1)
    spilled = [balance(buffer, batch=batch).spilled // KIB for batch in (1, 1, 2, 2, 3, 4)]
    assert spilled == [210, 0, 210, 0, 210, 0]
    whole(buffer)


@pytest.mark.parametrize("most,spilled", [(50 * KIB, 105 * KIB), (0, 0)])
def test_a_part_larger_than_the_limit_moves_alone(opened, most, spilled):
    buffer = opened(batch_bytes_max=most)
    for group in range(9):
        fill(buffer, group, 105, requests=1)
    assert balance(buffer, batch=1).spilled == spilled
    assert balance(buffer, batch=1).spilled == 0


def test_a_new_part_of_a_hot_key_group_is_hot(opened):
    """Pieces come and go with every batch: a rate of the piece alone would make each new one cold."""
    buffer = opened()
    for group in range(9):
        fill(buffer, group, 104, requests=10 * (group + 1))
    with buffer.claim("8") as held:  # written again, as by a merge
        held.drop()
    fill(buffer, 8, 104, requests=0, batch=2)
    assert balance(buffer, batch=2).spilled
    assert tiers(buffer)[8] == "memory"


def test_freed_memory_is_filled_again(opened):
    """As by the removal of a table, or by rows that expired."""
    buffer = opened()
    for group in range(9):
        fill(buffer, group, 104, requests=10 * (group + 1))
    assert balance(buffer, batch=1).spilled == 208 * KIB
    for group in (5, 6, 7, 8):
        with buffer.claim(str(group)) as held:
            held.drop()
    assert balance(buffer, batch=2) == Balanced(loaded=208 * KIB, reason="room")
    assert set(tiers(buffer).values()) == {"memory"}
    whole(buffer)
