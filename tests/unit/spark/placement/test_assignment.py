"""Which executor gets which task: even, as sticky as can be (against brute force), the same each time."""

import itertools
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.keys.groups import groups_of
from tidegate.spark.placement.assignment import RanAt, assign, carried_over

EXECUTORS, HOSTS = ["1", "2", "10", "11"], ["a", "b", "c"]
SOME = st.dictionaries(st.sampled_from(EXECUTORS), st.sampled_from(HOSTS), min_size=1, max_size=4)
BEFORE = st.lists(
    st.none() | st.builds(RanAt, st.sampled_from(EXECUTORS), st.sampled_from(HOSTS)), max_size=5
)


def kept(assigned, previous, executors):
    """(tasks that stay at their location, tasks that stay on their executor there)."""
    at = on = 0
    for name, was in zip(assigned, previous, strict=True):
        if was is not None and executors[name] == was.location:
            at, on = at + 1, on + (name == was.executor)
    return at, on


def is_even(assigned, executors):
    counts = [Counter(assigned)[name] for name in executors]
    return max(counts) - min(counts) <= 1


@settings(max_examples=300)
@given(BEFORE, SOME)
@example([RanAt("1", "a"), RanAt("2", "a"), RanAt("9", "b")], {"1": "a", "2": "a", "3": "b"})
@example([RanAt("1", "a"), RanAt("1", "a"), RanAt("9", "b"), RanAt("9", "b")], {"1": "a", "2": "a", "3": "b"})
def test_nobody_could_keep_more(previous, executors):
    """All even assignments are tried."""
    found = assign(previous, executors)
    assert len(found) == len(previous)
    assert is_even(found, executors)
    best = max(
        kept(every, previous, executors)
        for every in itertools.product(executors, repeat=len(previous))
        if is_even(every, executors)
    )
    assert kept(found, previous, executors) == best


@given(BEFORE, SOME, st.randoms())
def test_the_order_in_which_executors_are_listed_changes_nothing(previous, executors, chance):
    listed = list(executors.items())
    chance.shuffle(listed)
    assert assign(previous, dict(listed)) == assign(previous, executors)


@given(st.lists(st.none(), max_size=30), SOME)
def test_what_was_assigned_stays_while_the_executors_stay(previous, executors):
    first = assign(previous, executors)
    was = [RanAt(name, executors[name]) for name in first]
    assert assign(was, executors) == first


def settled(tasks, executors):
    return [RanAt(name, executors[name]) for name in assign([None] * tasks, executors)]


def test_without_executors_nobody_is_asked():
    assert assign([None, None], {}) == []


def test_without_tasks_there_is_nothing_to_assign():
    assert assign([], {"0": "a"}) == []


# -- another parallelism --------------------------------------------------------------------------


def test_the_same_number_of_tasks_is_carried_over_as_it_is():
    before = settled(7, {"0": "a", "1": "b"})
    assert carried_over(before, 7, 128) == before


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 12])
def test_a_new_task_goes_where_most_of_its_key_groups_were(tasks):
    before = [RanAt("0", "a")] * 2 + [RanAt("1", "b")] * 2
    for task, was in enumerate(carried_over(before, tasks, 12)):
        at_a = sum(group < 6 for group in groups_of(task, tasks, 12))
        at_b = len(groups_of(task, tasks, 12)) - at_a
        assert was == (before[0] if at_a >= at_b else before[-1])


def test_what_ran_nowhere_is_carried_over_as_nowhere():
    assert carried_over([], 3, 12) == [None] * 3
    assert carried_over([None, None], 3, 12) == [None] * 3
    assert carried_over([None, RanAt("1", "b")], 1, 12) == [RanAt("1", "b")]


def test_several_executors_of_a_location_count_together():
    before = [RanAt("0", "a"), RanAt("1", "b"), RanAt("2", "b")]
    (was,) = carried_over(before, 1, 12)
    assert was.location == "b"


@given(st.integers(0, 6), st.integers(1, 12), st.integers(12, 64), SOME)
def test_every_new_task_has_a_place_it_came_from(tasks_before, tasks, key_groups, executors):
    before = settled(tasks_before, executors)
    found = carried_over(before, tasks, key_groups)
    assert len(found) == tasks
    assert all(was in before for was in found) or not before
