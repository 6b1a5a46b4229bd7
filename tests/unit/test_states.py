"""The table of states is whole, and the page that shows it is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.committers.states import ACTIONS, TABLE, Event, IllegalTransitionError, Machine, State

ROOT = Path(__file__).parents[2]


def test_every_state_has_its_events_and_its_action() -> None:
    assert set(TABLE) == set(ACTIONS) == set(State)
    assert {event for events in TABLE.values() for event in events} == set(Event)


def test_every_state_is_reached_and_every_state_reaches_an_end() -> None:
    reached = {State.READY}
    while more := {target for state in reached for target in TABLE[state].values()} - reached:
        reached |= more
    assert reached == set(State)
    ends = {state for state, events in TABLE.items() if not events}
    leading = set(ends)
    while more := {state for state, events in TABLE.items() if leading & set(events.values())} - leading:
        leading |= more
    assert leading == set(State)


@pytest.mark.parametrize("state", list(State))
def test_an_unlisted_event_raises(state: State) -> None:
    for event in Event:
        machine = Machine(state)
        if event in TABLE[state]:
            assert machine.on(event) is TABLE[state][event]
        else:
            with pytest.raises(IllegalTransitionError):
                machine.on(event)


def test_nothing_is_applied_before_it_is_decided_nor_flipped_before_it_is_sealed() -> None:
    """I5, I3: DECIDED is entered only by what the fold says, SEALED only from it or a read-back."""
    into = {
        target: {
            (state, event) for state, events in TABLE.items() for event, to in events.items() if to is target
        }
        for target in State
    }
    assert {event for _, event in into[State.DECIDED]} == {Event.WON, Event.OTHER_WON}
    assert into[State.SEALED] == {(State.DECIDED, Event.SEALED), (State.READING_BACK, Event.IS_NEXT)}
    assert into[State.VISIBLE] == {
        (State.SEALED, Event.FLIPPED),
        (State.READING_BACK, Event.IS_VISIBLE),
    }


def test_the_diagram_in_the_protocol_page_is_drawn_from_the_table() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "state_diagram.py", "--check"], check=True)
