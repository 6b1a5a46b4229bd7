"""Spill and load after a batch: the right groups, enough of them, and never in the way of a task."""

import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.sinks.cache.buffer.balance import Balanced, balance
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits

KIB = 1024
BUDGET = 1000 * KIB


@pytest.fixture
def opened(tmp_path):
    locals_ = []

    def make(disks=1, disk_bytes_max=10 * BUDGET):
        names = ["memory", *(f"disk{number}" for number in range(disks))]
        made = [LocalDir(str(tmp_path / name), "flights", "u1") for name in names]
        locals_.extend(made)
        return Buffer(made[0], made[1:], BufferLimits(BUDGET, disk_bytes_max, 64 * KIB))

    yield make
    for local in locals_:
        local.close()


def fill(buffer, group, kib, requests, tier="memory", batch=1):
    with buffer.claim(str(group)) as held:
        segment = held.write([bytes([group]) * kib * KIB], tier)
        assert segment.tier == tier
        assert held.keep([segment], b"%d" % group, batch=batch, requests=requests)


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
    assert done == Balanced(spilled=200 * KIB)
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
    assert balance(buffer, batch=1) == Balanced(loaded=180 * KIB)
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
