"""The watch of one commit: what it tells when the commit goes on at the very moment of the alarm."""

import pytest

from tidegate.committers.states import State
from tidegate.committers.steps.phase_times import Phases
from tidegate.observe import events
from tidegate.observe.events import Count, Gauge, Labels, Observer


class GoesOn(Observer):
    """While it is told that the commit is stuck, the commit goes on."""

    def __init__(self, phases):
        self.phases, self.levels, self.counts = phases, [], []

    def level(self, what, at, value):
        if what is Gauge.STUCK_S:
            self.levels.append(value)
            if value:
                self.phases.entered(State.DECIDED)

    def count(self, what, at, amount, kind):
        self.counts.append(what)


@pytest.fixture
def phases():
    phases = Phases(Labels("n"), 1)
    phases.begin(State.DECIDING)
    phases.stuck_after_s = 0.0  # only now: nobody but the test looks
    yield phases
    phases.end()


def test_a_commit_that_goes_on_while_it_is_looked_at_raises_no_alarm(phases, caplog):
    """And does not stay at the level that says it is stuck."""
    told = GoesOn(phases)
    events.add(told)
    try:
        phases.look()
    finally:
        events.remove(told)
    assert phases.phase == "apply"
    assert told.levels[0] > 0
    assert told.levels[-1] == 0
    assert Count.ALARMS not in told.counts
    assert "ALARM" not in caplog.text


def test_a_commit_that_has_ended_is_not_stuck(phases, caplog):
    phases.entered(State.VISIBLE)
    phases.look()
    assert "ALARM" not in caplog.text
