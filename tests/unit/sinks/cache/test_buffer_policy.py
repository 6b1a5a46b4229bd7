"""What is spilled, loaded and dropped: enough, never more than needed, big and cold before small and hot."""

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.sinks.cache.buffer.note import (
    EMPTY,
    MAGIC,
    Segment,
    UnitManifest,
    UnitStats,
    decode_note,
    encode_note,
)
from tidegate.sinks.cache.buffer.policy import (
    RATE_MIN,
    after_batch,
    per_key_group,
    rate_at,
    to_drop,
    to_load,
    to_spill,
    with_sizes,
)
from tidegate.sinks.cache.buffer.pressure import PressureMonitor, Sample, Thresholds, resident_bytes

BATCH = 100
accounts = st.builds(
    UnitStats,
    memory_bytes=st.integers(0, 1000),
    disk_bytes=st.integers(0, 1000),
    rate=st.floats(0, 1e6) | st.just(0.0),
    batch=st.integers(0, BATCH),
)
several = st.dictionaries(st.integers(0, 127), accounts, max_size=20)


def colder(left, right):
    return rate_at(left, BATCH) < rate_at(right, BATCH)


@given(several, st.integers(1, 8000))
def test_a_spill_is_enough_and_not_more_than_needed(groups, target):
    chosen = to_spill(groups, target, BATCH)
    total = sum(groups[group].memory_bytes for group in chosen)
    assert len(chosen) == len(set(chosen))
    assert all(groups[group].memory_bytes for group in chosen)
    if total < target:
        assert total == sum(account.memory_bytes for account in groups.values())
    else:
        assert all(total - groups[group].memory_bytes < target for group in chosen)


@given(several)
def test_big_and_cold_goes_out_before_small_and_hot(groups):
    order = to_spill(groups, 10**9, BATCH)
    for at, group in enumerate(order):
        for later in order[at + 1 :]:
            bigger = groups[later].memory_bytes > groups[group].memory_bytes
            assert not (bigger and colder(groups[later], groups[group]))


@given(several, st.integers(0, 8000))
def test_a_load_fits_and_leaves_out_only_what_does_not(groups, room):
    chosen = to_load(groups, room, BATCH)
    left = room - sum(groups[group].disk_bytes for group in chosen)
    assert left >= 0
    assert len(chosen) == len(set(chosen))
    for group, account in groups.items():
        if group not in chosen and account.disk_bytes:
            assert account.disk_bytes > left or rate_at(account, BATCH) < RATE_MIN
    for at, group in enumerate(chosen):
        for later in chosen[at + 1 :]:
            smaller = groups[later].disk_bytes < groups[group].disk_bytes
            assert not (smaller and colder(groups[group], groups[later]))


@given(several, st.integers(1, 8000))
def test_what_is_dropped_is_the_coldest_on_disk(groups, target):
    chosen = to_drop(groups, target, BATCH)
    total = sum(groups[group].disk_bytes for group in chosen)
    assert total >= target or total == sum(account.disk_bytes for account in groups.values())
    assert all(total - groups[group].disk_bytes < target for group in chosen)
    rates = [rate_at(groups[group], BATCH) for group in chosen]
    assert rates == sorted(rates)


def test_only_size_or_only_rate_may_count():
    groups = {
        1: UnitStats(memory_bytes=10, disk_bytes=10, rate=9.0, batch=BATCH),
        2: UnitStats(memory_bytes=90, disk_bytes=90, rate=50.0, batch=BATCH),
    }
    assert to_spill(groups, 1, BATCH, size_share=1.0) == [2]
    assert to_spill(groups, 1, BATCH, size_share=0.0) == [1]
    assert to_load(groups, 90, BATCH, size_share=1.0) == [1]
    assert to_load(groups, 90, BATCH, size_share=0.0) == [2]


@given(st.lists(st.integers(0, 1000), max_size=5), st.integers(0, BATCH))
def test_requests_of_one_batch_add_up(requests, batch):
    apart = UnitStats(rate=7.0, batch=3)
    for count in requests:
        apart = after_batch(apart, batch, count)
    together = after_batch(UnitStats(rate=7.0, batch=3), batch, sum(requests))
    assert apart.rate == pytest.approx(together.rate if requests else 7.0)


def test_a_rate_follows_what_is_asked_and_cools_down():
    account = UnitStats()
    for batch in range(1, 40):
        account = after_batch(account, batch, 1000)
    assert account.rate == pytest.approx(1000, rel=0.01)
    assert rate_at(account, account.batch + 10) == pytest.approx(1000 * 0.7**10, rel=0.01)
    assert rate_at(account, 1) == account.rate, "a batch from before changes nothing"


def test_sizes_are_those_of_the_segments():
    segments = (Segment("memory", 0, "a", 0, 5, 1), Segment("disk", 1, "b", 64, 7, 2))
    assert with_sizes(UnitStats(1, 2, 3.0, 4), segments) == UnitStats(5, 7, 3.0, 4)


@given(st.lists(st.tuples(accounts, st.integers(0, 100), st.integers(1, 30)), max_size=5))
def test_what_units_take_up_is_what_their_key_groups_do(units):
    notes = [UnitManifest(account, groups=(first, first + count)) for account, first, count in units]
    found = per_key_group(notes)
    for name in ("memory_bytes", "disk_bytes"):
        assert sum(getattr(one, name) for one in found.values()) == sum(
            getattr(account, name) for account, *_ in units
        )
    assert sum(one.rate for one in found.values()) == pytest.approx(
        sum(account.rate for account, *_ in units)
    )
    assert set(found) == {group for _, first, count in units for group in range(first, first + count)}


def test_a_unit_of_several_key_groups_is_spread_evenly():
    notes = [
        UnitManifest(UnitStats(10, 0, 3.0, 7), groups=(4, 7)),
        UnitManifest(UnitStats(1, 5, 1.0, 8), groups=(6, 7)),
        EMPTY,
    ]
    assert per_key_group(notes) == {
        4: UnitStats(3, 0, 1.0, 7), 5: UnitStats(3, 0, 1.0, 7), 6: UnitStats(4 + 1, 5, 2.0, 8),
    }  # fmt: skip


# -- notes ----------------------------------------------------------------------------------------

NOTE = UnitManifest(UnitStats(1, 2, 3.5, 4), (Segment("memory", 0, "a", 64, 5, 2**64 - 1),), b"\0caller")


def test_a_note_comes_back_as_it_was():
    assert decode_note(encode_note(NOTE)) == NOTE
    assert decode_note(encode_note(EMPTY)) == EMPTY


def test_a_damaged_note_is_none():
    """T21 for the buffer: every bit counts."""
    content = encode_note(NOTE)
    for at in range(len(content)):
        assert decode_note(content[:at]) is None
        assert decode_note(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]) is None


@given(st.binary(max_size=50))
def test_foreign_bytes_are_no_note(content):
    assert decode_note(content) is None


@pytest.mark.parametrize("other", [["x"], {"a": 1}, [[1], 2, 3], 7])
def test_a_note_of_another_shape_is_none(other):
    body = msgspec.msgpack.encode(other)
    assert decode_note(MAGIC + xxhash.xxh3_64_digest(body) + body) is None


# -- pressure -------------------------------------------------------------------------------------

BUDGET = 1000
samples = st.builds(
    Sample,
    memory_bytes=st.integers(0, 2000),
    budget_bytes=st.just(BUDGET),
    process_bytes=st.integers(0, 2000),
    pause_s=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
)
monitors = st.sampled_from([PressureMonitor(), PressureMonitor(Thresholds(process_bytes_max=BUDGET))])


@given(monitors, samples)
def test_a_move_ends_where_nothing_more_moves(monitor, sample):
    """Neither a spill nor a load makes another, or the opposite."""
    advice = monitor.advise(sample)
    assert advice.spill_bytes >= 0
    assert advice.load_bytes >= 0
    assert not (advice.spill_bytes and advice.load_bytes)
    assert bool(advice.why) == bool(advice.spill_bytes)
    assert advice.spill_bytes <= sample.memory_bytes
    moved = advice.load_bytes - advice.spill_bytes
    if moved and sample.pause_s <= monitor.thresholds.pause_spill_s:
        after = sample._replace(
            memory_bytes=sample.memory_bytes + moved, process_bytes=max(0, sample.process_bytes + moved)
        )
        if sample.process_bytes + moved >= 0 and after.memory_bytes:
            assert monitor.advise(after) == (0, 0, "")


@pytest.mark.parametrize(
    "memory,process,pause_s,spill,load",
    [
        (900, 0, 0.0, 0, 0),  # at the threshold
        (901, 0, 0.0, 101, 0),
        (2000, 0, 0.0, 1200, 0),
        (600, 0, 0.0, 0, 0),
        (599, 0, 0.0, 0, 101),
        (0, 0, 0.0, 0, 700),
        (0, 0, 0.5, 0, 0),  # it waited too long to load
        (700, 950, 0.0, 150, 0),  # the process is the stronger signal
        (50, 950, 0.0, 50, 0),  # no more than there is
        (950, 990, 0.0, 190, 0),
        (0, 650, 0.0, 0, 0),
        (0, 590, 0.0, 0, 110),
        (500, 0, 3.0, 100, 0),  # a pause spills a tenth ...
        (350, 0, 3.0, 50, 0),
        (300, 0, 3.0, 0, 0),  # ... and never below three tenths
    ],
)
def test_what_each_signal_says(memory, process, pause_s, spill, load):
    monitor = PressureMonitor(Thresholds(process_bytes_max=1000))
    assert monitor.advise(Sample(memory, BUDGET, process, pause_s))[:2] == (spill, load)


@pytest.mark.parametrize(
    "given_",
    [
        {"load_to": 0.9},
        {"load_below": 0.75},
        {"spill_to": 0.95},
        {"spill_above": 1.1},
        {"load_below": -0.1},
        {"load_to": 0.85, "spill_to": 0.8},
        {"pause_load_s": 3.0},
    ],
)
def test_thresholds_that_would_go_back_and_forth_are_refused(given_):
    with pytest.raises(ConfigError, match=r"must (rise|be at most)"):
        Thresholds(**given_)


def test_the_process_knows_its_memory(monkeypatch):
    found = resident_bytes()
    assert 1 << 20 < found < 1 << 40
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: "")
    assert resident_bytes() >= found // 2, "the peak, where /proc does not tell"
