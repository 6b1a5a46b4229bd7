"""What is spilled, loaded and dropped: enough, never more than needed, big and cold before small and hot."""

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidegate.options.state_spill import StateSpill
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
    Candidate,
    ContainerMemory,
    Sample,
    advise,
    to_drop,
    to_load,
    to_spill,
)
from tidegate.sinks.cache.buffer.rates import Rates, RatesFile

BANDS = StateSpill()
sizes = st.integers(1, 1000)
units = st.builds(Candidate, sizes, st.integers(1, 9), st.floats(0, 1e6) | st.just(0.0))
several = st.dictionaries(st.integers(0, 127).map(str), units, max_size=20)


def density(unit):
    return unit.bytes / unit.groups


@given(several, st.integers(1, 8000))
def test_a_spill_is_enough_and_not_more_than_needed(there, target):
    chosen = to_spill(there, target, BANDS)
    total = sum(there[name].bytes for name in chosen)
    assert len(chosen) == len(set(chosen))
    if total < target:
        assert total == sum(unit.bytes for unit in there.values())
    else:
        assert all(total - there[name].bytes < target for name in chosen)


@given(several, st.floats(0.01, 0.99))
def test_big_and_cold_goes_out_before_small_and_hot(there, size_share):
    order = to_spill(there, 10**9, StateSpill(size_share=size_share))
    assert set(order) == set(there)
    for at, name in enumerate(order):
        for later in order[at + 1 :]:
            bigger = density(there[later]) > density(there[name])
            assert not (bigger and there[later].rate < there[name].rate)


def test_the_weight_of_the_size_is_an_option():
    there = {"large and hot": Candidate(900, 1, 9.0), "small and cold": Candidate(100, 1, 0.0)}
    assert to_spill(there, 1, StateSpill(size_share=0.9)) == ["large and hot"]
    assert to_spill(there, 1, StateSpill(size_share=0.1)) == ["small and cold"]


def test_size_and_rate_count_per_key_group():
    """A piece of many groups is not large, nor hot, because it has many of them."""
    there = {"of nine groups": Candidate(900, 9, 1.0), "of one": Candidate(200, 1, 1.0)}
    assert to_spill(there, 1, BANDS) == ["of one"]


@given(several, st.integers(0, 8000))
def test_a_load_fits_and_leaves_out_only_what_does_not(there, room):
    chosen = to_load(there, room, BANDS)
    left = room - sum(there[name].bytes for name in chosen)
    assert left >= 0
    assert len(chosen) == len(set(chosen))
    for name, unit in there.items():
        if name not in chosen:
            assert unit.bytes > left or unit.rate < BANDS.rate_min
    for at, name in enumerate(chosen):
        for later in chosen[at + 1 :]:
            smaller = density(there[later]) < density(there[name])
            assert not (smaller and there[later].rate > there[name].rate)


@given(several, st.integers(1, 8000))
def test_what_is_dropped_is_the_coldest_on_disk(there, target):
    chosen = to_drop(there, target)
    total = sum(there[name].bytes for name in chosen)
    assert total >= target or total == sum(unit.bytes for unit in there.values())
    assert all(total - there[name].bytes < target for name in chosen)
    rates = [there[name].rate for name in chosen]
    assert rates == sorted(rates)


# -- request rates --------------------------------------------------------------------------------

counts = st.lists(st.integers(0, 1000), max_size=6)


@given(st.lists(counts, max_size=4), st.integers(0, 100))
def test_requests_of_one_batch_add_up(tasks, batch):
    apart = before = Rates(3, [7.0] * 4)
    total = np.zeros(6, np.int64)
    for of_task in tasks:
        apart = apart.after(np.array(of_task, np.int64), batch, 0.3)
        total[: len(of_task)] += np.array(of_task, np.int64)
    together = before.after(total, batch, 0.3).at(100, 0.3)
    for group in range(6):
        assert apart.at(100, 0.3).mean(group, group + 1) == pytest.approx(together.mean(group, group + 1))


def test_a_rate_follows_what_is_asked_and_cools_down():
    rates = Rates()
    for batch in range(1, 40):
        rates = rates.after(np.array([0, 1000]), batch, 0.3)
    assert rates.mean(1, 2) == pytest.approx(1000, rel=0.01)
    assert rates.mean(0, 2) == pytest.approx(500, rel=0.01)
    assert rates.at(49, 0.3).mean(1, 2) == pytest.approx(1000 * 0.7**10, rel=0.01)
    assert rates.at(1, 0.3).mean(1, 2) == rates.mean(1, 2), "a batch from before changes nothing"
    assert rates.mean(5, 9) == rates.mean(0, 0) == 0


@pytest.mark.parametrize("content", [b"", b"12345678x", b"\xff" * 80, b"\0" * 8])
def test_rates_that_cannot_be_read_are_none(tmp_path, content):
    (tmp_path / "rates").write_bytes(content)
    file = RatesFile(tmp_path / "rates")
    assert file.read().mean(0, 9) == 0
    file.add(np.array([0, 10]), 4, 0.5)
    assert file.read().mean(0, 2) == 2.5


def test_sizes_are_those_of_the_segments():
    segments = (Segment("memory", 0, "a", 0, 5, 1), Segment("disk", 1, "b", 64, 7, 2))
    assert UnitStats.of_segments(segments) == UnitStats(5, 7)


# -- notes ----------------------------------------------------------------------------------------

NOTE = UnitManifest(UnitStats(1, 2), (Segment("memory", 0, "a", 64, 5, 2**64 - 1),), b"\0caller")


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


def test_a_note_of_an_earlier_release_counts():
    """It has the unit's request rate and batch, too."""
    fields = msgspec.to_builtins(NOTE, builtin_types=(bytes,))
    body = msgspec.msgpack.encode([[*fields[0], 3.5, 4], *fields[1:]])
    assert decode_note(MAGIC + xxhash.xxh3_64_digest(body) + body) == NOTE


# -- pressure -------------------------------------------------------------------------------------

BUDGET, LIMIT = 1000, 10_000
shares = st.floats(0, 1)


@st.composite
def bands(draw):
    def band(of):
        below, to, down, above = sorted(draw(st.lists(shares, min_size=4, max_size=4, unique=True)))
        return {
            f"{of}load_below": below,
            f"{of}load_to": to,
            f"{of}spill_to": down,
            f"{of}spill_above": above,
        }

    return StateSpill(**band(""), **band("container_"))


@given(st.integers(0, 2000), st.integers(0, 12_000) | st.none(), bands())
def test_a_move_ends_where_nothing_more_moves(used, container, bands):
    """Neither a spill nor a load makes another, or the opposite."""
    memory = None if container is None else ContainerMemory(container, LIMIT)
    sample = Sample(used, BUDGET, memory)
    spill, load, reason = advise(sample, bands)
    assert not (spill and load)
    assert bool(reason) == bool(spill or load)
    assert 0 <= spill <= used
    after = memory and memory._replace(used=memory.used - spill + load)
    moved = Sample(used - spill + load, BUDGET, after)
    assert not advise(moved, bands).load_bytes or not spill
    if spill < used:
        assert not advise(moved, bands).spill_bytes
    if load:
        assert advise(moved, bands) == (0, 0, "")


@pytest.mark.parametrize(
    "used,spill,load",
    [(900, 0, 0), (901, 101, 0), (2000, 1200, 0), (600, 0, 0), (599, 0, 101), (0, 0, 700)],
)
def test_a_move_starts_beyond_its_threshold(used, spill, load):
    assert advise(Sample(used, BUDGET), BANDS)[:2] == (spill, load)


def test_without_a_budget_everything_leaves_memory():
    assert advise(Sample(0, 0), BANDS) == (0, 0, "")
    assert advise(Sample(7, 0), BANDS) == (7, 0, "budget")


@pytest.mark.parametrize(
    "used,container,advice",
    [
        (500, 9_501, (500, 0, "container")),  # 501 over the limit's 9,000, and no more than there is
        (950, 9_501, (501, 0, "container")),
        (950, 9_100, (150, 0, "budget")),
        (500, 9_500, (0, 0, "")),
        (500, 8_000, (0, 0, "")),
        (500, 7_999, (0, 200, "room")),
        (0, 7_999, (0, 501, "room")),  # up to 8,500
    ],
)
def test_the_containers_memory_spills_and_keeps_from_loading(used, container, advice):
    assert advise(Sample(used, BUDGET, ContainerMemory(container, LIMIT)), BANDS) == advice


@pytest.mark.parametrize(
    "used,wait,advice",
    [
        (500, 0.11, (100, 0, "wait")),
        (350, 0.11, (50, 0, "wait")),  # down to 0.3 of the budget
        (300, 0.9, (0, 0, "")),
        (500, 0.1, (0, 0, "")),
        (500, 0.02, (0, 0, "")),
        (500, 0.019, (0, 200, "room")),
        (950, 0.9, (150, 0, "budget")),  # the signal that asks for most
    ],
)
def test_a_wait_for_memory_spills_a_little_and_keeps_from_loading(used, wait, advice):
    assert advise(Sample(used, BUDGET, wait_share=wait), BANDS) == advice
