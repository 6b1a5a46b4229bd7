"""What is spilled, loaded and dropped: enough, never more than needed, big and cold before small and hot."""

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

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
    advise,
    after_batch,
    rate_at,
    to_drop,
    to_load,
    to_spill,
    with_sizes,
)

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


@given(st.integers(0, 2000))
def test_a_move_ends_where_nothing_more_moves(used):
    """Neither a spill nor a load makes another, or the opposite."""
    spill, load = advise(used, BUDGET)
    assert not (spill and load)
    assert 0 <= spill <= used
    assert advise(used - spill + load, BUDGET) == (0, 0)


@pytest.mark.parametrize(
    "used,spill,load",
    [(900, 0, 0), (901, 101, 0), (2000, 1200, 0), (600, 0, 0), (599, 0, 101), (0, 0, 700)],
)
def test_a_move_starts_beyond_its_threshold(used, spill, load):
    assert advise(used, BUDGET) == (spill, load)


def test_without_a_budget_everything_leaves_memory():
    assert advise(0, 0) == (0, 0)
    assert advise(7, 0) == (7, 0)
