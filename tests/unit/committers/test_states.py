"""The table of states is whole, and the page that shows it is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.committers.states import (
    ACTIONS,
    TABLE,
    Event,
    IllegalTransitionError,
    Machine,
    State,
    after_read_back,
)
from tidegate.sinks.records import Pointer
from tidegate.wal.record import DecidedVersion, Folded, LoadOrigin

ROOT = Path(__file__).parents[3]


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


def _folded(*digests: str) -> Folded:
    facts = tuple(
        DecidedVersion(number, f"a{number}", LoadOrigin(str(number)), number - 1, "", "", number, digest)
        for number, digest in enumerate(digests, 1)
    )
    return Folded("uuid", "n", 4, digests[-1], recent=facts, last_version=len(facts))


@pytest.mark.parametrize(
    "pointer,event",
    [
        (Pointer(1, "d1", 5), Event.IS_NEXT),
        (Pointer(2, "d2", 5), Event.IS_VISIBLE),
        (Pointer(2, "other", 5), Event.FOREIGN_DIGEST),
        (Pointer(3, "d3", 5), Event.IS_VISIBLE),  # another driver flipped it, went on, and we took over again
        (Pointer(3, "other", 5), Event.FOREIGN_DIGEST),
        (Pointer(4, "d4", 5), Event.FOREIGN_DIGEST),
        (Pointer(0, "", 5), Event.GONE_BACK),
        (Pointer(3, "d3", 6), Event.HIGHER_EPOCH),
    ],
)
def test_what_a_read_back_says(pointer: Pointer, event: Event) -> None:
    """Publish rules 3 to 5, found wanting by schedule 10448 of seed 20261121: a driver whose fence won late
    met a newer visible version of the same line, and called it corruption."""
    folded = _folded("d1", "d2", "d3")
    assert after_read_back(pointer, folded.recent[1], 5, folded) is event
