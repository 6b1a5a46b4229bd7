"""The options of the spill monitor are checked when they are made."""

import dataclasses
import math
import pickle

import pytest

from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.state_spill import StateSpill

SHARES = [
    field.name
    for field in dataclasses.fields(StateSpill)
    if field.name not in ("fault_s", "rate_min", "batch_bytes_max")
]


def test_the_defaults_are_valid_and_pinned():
    """Users lean on them: a new default belongs into the change log."""
    assert dataclasses.asdict(StateSpill()) == {
        "spill_above": 0.9,
        "spill_to": 0.8,
        "load_below": 0.6,
        "load_to": 0.7,
        "container_spill_above": 0.95,
        "container_spill_to": 0.9,
        "container_load_below": 0.8,
        "container_load_to": 0.85,
        "wait_spill_above": 0.1,
        "wait_load_below": 0.02,
        "wait_spill_share": 0.1,
        "wait_spill_to": 0.3,
        "fault_s": 0.001,
        "size_share": 0.5,
        "new_share": 0.3,
        "rate_min": 0.001,
        "batch_bytes_max": 256 * 1024 * 1024,
    }


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_between_0_and_1(name):
    for value in (-0.1, 1.1, math.inf, math.nan, True, "0.5", None):
        with pytest.raises(ConfigError, match=f"state_spill: {name} is .*between 0 and 1"):
            StateSpill(**{name: value})


@pytest.mark.parametrize("name", ["fault_s", "rate_min", "batch_bytes_max"])
def test_the_others_are_0_or_more(name):
    assert getattr(StateSpill(**{name: 10**12}), name) == 10**12
    for value in (-1, math.nan, True, "1", None):
        with pytest.raises(ConfigError, match=f"state_spill: {name} is .*0 or more"):
            StateSpill(**{name: value})


def test_bytes_are_a_whole_number():
    with pytest.raises(ConfigError, match=r"batch_bytes_max is 1\.5"):
        StateSpill(batch_bytes_max=1.5)


@pytest.mark.parametrize("of", ["", "container_"])
def test_a_move_may_not_cause_another(of):
    band = {f"{of}load_below": 0.1, f"{of}load_to": 0.2, f"{of}spill_to": 0.2, f"{of}spill_above": 0.3}
    StateSpill(**band)
    for wrong in (
        {f"{of}load_below": 0.21},
        {f"{of}load_to": 0.21},
        {f"{of}spill_to": 0.31},
        {f"{of}load_to": 0.3, f"{of}spill_to": 0.3},
    ):
        with pytest.raises(ConfigError, match=f"{of}load_below, .* must rise, and {of}load_to must be below"):
            StateSpill(**band | wrong)


def test_what_loads_may_not_wait_longer_than_what_spills():
    StateSpill(wait_load_below=0.1)
    with pytest.raises(ConfigError, match=r"wait_load_below is 0\.2; .*at most wait_spill_above, 0\.1"):
        StateSpill(wait_load_below=0.2)


def test_it_travels_to_tasks():
    bands = StateSpill(spill_above=0.95)
    assert pickle.loads(pickle.dumps(bands)) == bands
    for value in ({"spill_above": 0.95}, 0.95, "spill_above", StateSpill, None):
        with pytest.raises(ConfigError, match=r"state_spill is .*it must be a StateSpill"):
            Options(state_spill=value)
