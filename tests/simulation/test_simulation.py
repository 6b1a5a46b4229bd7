"""Production's open, commit and recover under every fault: I1 to I10, from seeds that repeat."""

import os
import random

import pytest

from simulation.coverage import NOT_REACHED, Tally
from simulation.plays.world import Fault
from simulation.run import run_schedules

SCHEDULES, CHUNKS = 4_000, 20
BASE_SEED = int(os.environ.get("TIDEGATE_SEED", "0"))
"""Another base seed makes other schedules, by the same code: a nightly run takes the date."""

NEVER_TAKEN = set(NOT_REACHED)
"""Would be damage, which the simulated store and log do not have."""


def _names(transitions):
    return {f"{state.name} on {event.name}" for state, event in transitions}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_schedules_keep_every_invariant(chunk):
    print(f"TIDEGATE_SEED={BASE_SEED}")
    size = SCHEDULES // CHUNKS
    tally = run_schedules(BASE_SEED or 20_261_121, range(chunk * size, (chunk + 1) * size))
    print(tally.report())
    assert tally.schedules == size
    assert not (_names(tally.transitions) | tally.failpoints.keys()) & NEVER_TAKEN


@pytest.mark.one_in(4)
@pytest.mark.parametrize("chunk", range(4))
def test_schedules_keep_every_invariant_with_the_embedded_log_and_store(tmp_path, chunk):
    tally = run_schedules(BASE_SEED or 21, range(chunk * 30, (chunk + 1) * 30), tmp_path)
    assert tally.versions > 0


def test_schedules_meet_every_kind_of_fault_and_almost_every_transition():
    """A simulation that never gets anywhere would keep every invariant too."""
    tally = run_schedules(7, range(400))
    assert set(tally.faults) == set(Fault)
    assert tally.versions > tally.schedules
    assert tally.hits  # caches of state were of use
    assert tally.in_flight  # state was read from the frames of versions in flight
    print(tally.report())
    assert len(tally.missed()) <= 6  # the rarest need thousands of schedules


def test_a_seed_repeats_its_schedule_exactly():
    state = random.getstate()
    one, other = run_schedules(3, range(40)), run_schedules(3, range(40))
    assert one == other
    assert isinstance(one, Tally)
    assert random.getstate() == state
