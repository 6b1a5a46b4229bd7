"""Workloads: what is true of each is true of every batch, whoever folds it."""

import itertools
import random

import pytest

from tidegate.errors import ConfigError
from tidegate.torture.cell.readers import KEYS
from tidegate.torture.driver.workloads import (
    ACCOUNTS,
    BALANCE,
    WORKLOADS,
    changes_of,
    decoded,
    keys_read,
    rows_after,
)
from tidegate.torture.schedule import check_names

BATCHES = 40


def folded(name, salts=lambda _: 0):
    """The table after each batch."""
    state, states = {}, []
    for batch in range(BATCHES):
        (change,) = changes_of([name], "seed", batch, salts(batch))
        rows = rows_after(change, {key: state[key] for key in keys_read(change) if key in state})
        state = {} if change.replace else dict(state)
        for key, value in rows.items():
            if value is None:
                state.pop(key.decode(), None)
            else:
                state[key.decode()] = decoded(value)
        states.append(state)
    return states


def test_money_is_neither_made_nor_lost():
    for state in folded("bank"):
        assert sum(timeline["balance"] for timeline in state.values()) == ACCOUNTS * BALANCE


def test_a_replay_with_other_rows_keeps_the_sum_too():
    for state in folded("bank", salts=lambda batch: batch % 3):
        assert sum(timeline["balance"] for timeline in state.values()) == ACCOUNTS * BALANCE


def test_all_markers_are_one_number_and_each_batch_has_its_own():
    numbers = [set(state.values()) for state in folded("marker")]
    assert all(len(one) == 1 for one in numbers)
    assert len(set.union(*numbers)) == BATCHES


def test_lists_hold_their_batches_in_order():
    for state in folded("lists"):
        for items in state.values():
            assert [batch for batch, _ in items] == sorted({batch for batch, _ in items})


def test_counters_count():
    states = folded("counters")
    assert sum(counter["events"] for counter in states[-1].values()) == 4 * BATCHES
    assert all(counter["least"] <= counter["most"] for counter in states[-1].values())


def test_keys_are_deleted_and_come_back():
    states = folded("churn")
    gone = {key for state, after in itertools.pairwise(states) for key in state.keys() - after.keys()}
    assert gone & states[-1].keys()


def test_a_replaced_table_has_only_what_it_was_given():
    for batch, state in enumerate(folded("replaced")):
        if batch % 2 == 0:
            assert {row["batch"] for row in state.values()} == {batch}


@pytest.mark.parametrize("name", WORKLOADS)
def test_readers_ask_for_every_key_that_is_ever_written(name):
    written = {key for state in folded(name) for key in state}
    assert written == set(KEYS[name])


@pytest.mark.parametrize("name", WORKLOADS)
def test_changes_are_a_function_of_seed_batch_and_salt(name):
    assert changes_of([name], "s", 7) == changes_of([name], "s", 7)
    assert changes_of([name], "s", 7) != changes_of([name], "s", 7, salt=1)
    assert changes_of([name], "s", 7) != changes_of([name], "t", 7)
    assert changes_of([name], "s", 7)[0] == WORKLOADS[name](random.Random(f"s-7-0-{name}"), 7)


def test_names_are_checked():
    assert check_names("workload", ["lists", "bank"], WORKLOADS) == ("bank", "lists")
    with pytest.raises(ConfigError, match="bnak"):
        check_names("workload", ["bnak"], WORKLOADS)
    with pytest.raises(ConfigError, match="no workload"):
        check_names("workload", [], WORKLOADS)
