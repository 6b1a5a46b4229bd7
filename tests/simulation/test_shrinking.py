"""A failing schedule made short: what is left still fails, can be read, and is as short as it can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.coverage import NOT_REACHED, Tally
from simulation.invariants import Violation
from simulation.plays.world import Fault, World
from simulation.replay import Arrive, RecordingWorld, ReplayedWorld, Run, joined
from simulation.run import main, run_schedules
from simulation.schedule import dice, parts_of, play
from simulation.shrinking import invariant, minimised, recorded, shrunk, size
from simulation.trace import in_words
from tidegate.base import failpoints
from tidegate.committers import states
from tidegate.committers.states import TABLE, Event, State
from tidegate.sinks.memory.store import MemoryStore

SEED, OF_LEASES = 50, 52


def found_with(patch, name, value, first=0, seed=SEED):
    """The first schedule without further parts that breaks an invariant with this rule broken.

    ``first``: from where on to look.
    """
    patch.setattr(*name, value)
    with pytest.raises(Violation) as found:
        run_schedules(seed, [index for index in range(first, first + 1_000) if not parts_of(seed, index)])
    return found.value.index


@pytest.fixture
def flips_that_got_lost(monkeypatch):
    table = {**TABLE, State.SEALED: {**TABLE[State.SEALED], Event.NOT_FLIPPED: State.VISIBLE}}
    return found_with(monkeypatch, (states, "TABLE"), table, first=400)


@pytest.fixture
def leases_ignored(monkeypatch):
    plain = MemoryStore.announce

    def announce(store, horizon, **limits):
        store._space.leases.clear()
        return plain(store, horizon, **limits)

    return found_with(monkeypatch, (MemoryStore, "announce"), announce, first=1_300, seed=OF_LEASES)


def test_a_flip_that_is_taken_for_done_is_told_in_a_few_lines(flips_that_got_lost):
    """What is left that went wrong ends with the flip that did not happen."""
    told = shrunk(SEED, flips_that_got_lost).splitlines()
    assert told[-1].startswith("-> I3: version 1 returned, 0 visible")
    wrong = [line for line in told if line.startswith("!") and "ends" not in line]
    assert len(wrong) <= 3
    assert "flips to v1 epoch" in wrong[-1]
    assert len(told) < 30


def test_what_two_actors_do_to_each_other_stays(leases_ignored):
    told = shrunk(OF_LEASES, leases_ignored)
    assert told.splitlines()[-1].startswith("-> I8: version 1 was taken from under a lease")
    lines = [line for line in told.splitlines() if line.strip().startswith(("reader", "retirer"))]
    assert ["reader" in line for line in lines] == [True, False, True]  # in between it is retired


def test_a_schedule_is_played_from_its_record_as_it_was(monkeypatch):
    """Every call of every actor at the same place, and nothing is broken that was not."""
    for index in range(40):
        recording, tally = RecordingWorld(dice(9, index)), Tally()
        play(9, index, tally, recording)
        replayed, again = ReplayedWorld(recording.drawn, recording.deeds(parts_of(9, index), 0)), Tally()
        play(9, index, again, replayed, parts=parts_of(9, index))
        plain = World(dice(9, index))
        play(9, index, Tally(), plain)
        assert list(recording.trace) == list(plain.trace)
        held = {Fault.HELD_BEFORE.value, Fault.HELD_AFTER.value}
        as_told = [(at, who, what, "" if how in held else how) for at, who, what, how in recording.trace]
        assert as_told == list(replayed.trace)
        assert (again.calls, again.versions, again.errors) == (tally.calls, tally.versions, tally.errors)


def test_a_schedule_that_keeps_every_invariant_is_not_shrunk():
    with pytest.raises(ValueError, match="keeps every invariant"):
        shrunk(SEED, 1)


def test_what_is_left_fails_as_the_whole_does(flips_that_got_lost):
    found = recorded(SEED, flips_that_got_lost)
    before, kind = found.deeds, invariant(found.violation)
    assert found.fails(before)
    assert size(found.deeds) == size(before) > 7
    assert invariant(found.violation) == kind == "I3"


@given(st.sets(st.integers(0, 40), max_size=6), st.integers(0, 41))
def test_nothing_stays_that_is_not_needed(needed, count):
    wanted = {one for one in needed if one < count}
    left = [list(range(count))]

    def fails(items):
        if wanted <= set(items):
            left[0] = list(items)
            return True
        return False

    minimised(left[0], fails, lambda: left[0])
    assert left[0] == sorted(wanted)


def test_moves_of_one_actor_that_follow_each_other_are_one():
    arrive = Arrive(("a", 3))
    moves = [Run("a", 1), Run("a", 2), Run("b", 1), arrive, Run("b", 1)]
    assert list(joined(moves)) == [Run("a", 3), Run("b", 1), arrive, Run("b", 1)]
    assert list(joined([])) == []


def test_a_trace_is_told_by_actor_and_what_went_wrong_alone():
    trace = [
        (0.0, "driver-0", "decisions ", ""),
        (0.0, "driver-0", "decisions ", ""),
        (0.0, "driver-0", "append_decision open", ""),
        (0.1, "reader-0", "pointer ", ""),
        (0.1, "driver-0", "publish v1 epoch 1", Fault.LOST.value),
        (0.2, "(driver-0)", "log.stage 0123456789abcdef-0-0123456789abcdef", "arrives late"),
        (0.2, "driver-0", "ends", ""),
    ]
    assert list(in_words(trace)) == [
        "  driver-0: folds the log 2 times, appends Open",
        "  reader-0: reads the pointer",
        "! driver-0 flips to v1 epoch 1: it is done, the reply is lost",
        "! (driver-0) stages 0123-0-0123: arrives now",
        "  driver-0: ends",
    ]


def test_the_command_shrinks_what_it_finds(flips_that_got_lost, capsys):
    found = ["--seed", str(SEED), "--only", str(flips_that_got_lost)]
    assert main([*found, "--shrink"]) == 1
    assert "-> I3: version 1 returned" in capsys.readouterr().out


def test_coverage_names_what_was_reached_and_why_the_rest_was_not(capsys):
    assert main(["--schedules", "1", "--coverage"]) == 1
    told = capsys.readouterr().out
    assert "NOT REACHED" in told
    assert "the simulated one loses nothing" in told
    every = {f"{state.name} on {event.name}" for state, events in TABLE.items() for event in events}
    assert NOT_REACHED.keys() <= every | set(failpoints.NAMES)
    tally = Tally()
    assert len(tally.missed()) == len(every) + len(failpoints.NAMES) - len(NOT_REACHED)
