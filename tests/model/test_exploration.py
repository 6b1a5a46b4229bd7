"""Every state of small scopes, over production's fold, verdicts and state table.

Each rule of the protocol that an earlier wording lacked is switched off in turn: the
exploration must then find the invariant that breaks. Where two guards stand behind each other
it is shown that either is enough, and that without both the invariant breaks.
"""

import itertools

import msgspec
import pytest

from model.exploration import Counterexample, explore
from model.model import Model, Scope, with_table
from tidegate.committers import states
from tidegate.committers.states import Event, State
from tidegate.wal import fold
from tidegate.wal.record import BatchOrigin, Decided, Open

SCOPES = {
    "one driver": Scope(lives=1, batches=2, attempts=3, opens=3),
    "two drivers, one batch": Scope(lives=2, batches=1, attempts=2, opens=2),
    "two drivers, two batches": Scope(lives=2, batches=2, attempts=2, opens=1),
    "two drivers, three attempts": Scope(lives=2, batches=2, attempts=3, opens=1),
    "one driver, pipelined": Scope(lives=1, batches=3, attempts=3, opens=2, in_flight=2),
    "two drivers, pipelined": Scope(lives=2, batches=2, attempts=2, opens=1, in_flight=2),
    "two drivers, two batches, fencing Opens": Scope(lives=2, batches=2, attempts=2, opens=2),
}
LONG = {"two drivers, two batches, fencing Opens", "two drivers, one batch"}
LARGER = {
    "three drivers, one batch": Scope(lives=3, batches=1, attempts=2, opens=1),
    "two drivers, three attempts, fencing Opens": Scope(lives=2, batches=2, attempts=3, opens=2),
    "two drivers, three batches, pipelined": Scope(lives=2, batches=3, attempts=3, opens=2, in_flight=2),
    "three drivers, two batches": Scope(lives=3, batches=2, attempts=3, opens=1),
}
SMALL = Scope(lives=2, batches=2, attempts=2, opens=2)
STATES_MAX = 1_000_000


def _explore(scope, states_max=STATES_MAX):
    model = Model(scope)
    explored = explore(model.start, model.steps, states_max)
    print(explored)
    return explored


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in SCOPES]
)
def test_no_invariant_breaks(name):
    assert _explore(SCOPES[name]).complete


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", LARGER)
def test_no_invariant_breaks_in_larger_scopes(name):
    """Complete, or cut where memory ends: what was reached is without a violation."""
    explored = _explore(LARGER[name], 3_000_000)
    assert explored.complete or explored.states > 1_000_000


# -- rules switched off: DESIGN's table, in its order ------------------------------------------------


def _breaks(scope, *invariants):
    with pytest.raises(Counterexample) as found:
        _explore(scope)
    print(found.value)
    assert found.value.broken.startswith(invariants), found.value.broken


GUARDS = {
    "epoch": lambda state, _: {"epoch": state.epoch, "writer": state.writer},
    "place": lambda state, _: {"version": state.last_version + 1, "base_version": state.last_version},
    "digest": lambda state, _: {"prev_digest": state.digest},
    "batch": lambda state, record: {"origin": _next_batch(state, record.origin)},
}
"""Which fields of a Decided each guard of ``why_void`` looks at, and the values that please it."""


def _next_batch(state, origin):
    last = state.last_batch[1] if state.last_batch else -1
    return BatchOrigin(origin.lineage, state.generation, last + 1, origin.fingerprint)


def _without(monkeypatch, guards):
    plain = fold.why_void

    def weaker(state, record):
        if isinstance(record, Decided) and state is not None:
            for guard in guards:
                record = msgspec.structs.replace(record, **GUARDS[guard](state, record))
        return plain(state, record)

    monkeypatch.setattr(fold, "why_void", weaker)


def test_validity_counts_version_and_batch_not_only_the_epoch(monkeypatch):
    """A producer's retry writes Decided of version 1 twice; both count."""
    _without(monkeypatch, ["place", "digest", "batch"])
    _breaks(SMALL, "I7", "I2")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("guards", list(itertools.combinations(GUARDS, 3)), ids="+".join)
def test_any_three_guards_of_validity_off_is_too_many(monkeypatch, guards):
    _without(monkeypatch, guards)
    if set(guards) == {"epoch", "place", "batch"}:
        # prev_digest names the whole history: alone it is as good as all others.
        assert _explore(SCOPES["two drivers, one batch"]).complete
    else:
        _breaks(SMALL, "I7", "I2", "I1", "I5", "I6", "proof")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("guard", GUARDS)
def test_any_one_guard_of_validity_may_fail(monkeypatch, guard):
    """They stand behind each other; none is there for show, see above."""
    _without(monkeypatch, [guard])
    assert _explore(SCOPES["two drivers, two batches"]).complete


@pytest.mark.parametrize("event", [Event.NOT_THERE, Event.DEADLINE])
def test_absence_is_not_proof(monkeypatch, event):
    """D(a1) is delayed; read back, absent, called undecided; then it lands."""
    monkeypatch.setattr(states, "TABLE", with_table(State.FOLDING, event, State.UNDECIDED))
    _breaks(SMALL, "proof")


def test_a_fence_counts_only_once_it_is_folded(monkeypatch):
    monkeypatch.setattr(states, "TABLE", with_table(State.FENCING, Event.NOT_THERE, State.UNDECIDED))
    _breaks(SMALL, "proof")


def test_the_state_is_the_fold_through_the_own_open():
    """D(a1) lands just before the own Open, which returns without having seen it."""
    _breaks(Scope(lives=2, attempts=2, opens=1, folds_through_own_open=False), "I4")


def test_the_question_is_which_attempt_won():
    """The ack points at the duplicate: 'not decided', though the first copy is."""
    _breaks(Scope(lives=1, attempts=2, opens=2, asks_which_attempt_won=False), "proof")


def test_a_flip_is_only_from_the_exact_predecessor():
    _breaks(Scope(lives=1, opens=1, flips_from_predecessor=False), "I7")


def test_the_epoch_is_claimed_before_anything_else():
    """A zombie flips after the new driver opened."""
    _breaks(Scope(lives=2, opens=1, claims=False), "I6")


def test_a_foreign_flip_read_back_means_done(monkeypatch):
    """The version is visible, whoever's reply was lost: that is no conflict."""
    monkeypatch.setattr(states, "TABLE", with_table(State.READING_BACK, Event.IS_VISIBLE, State.UNDECIDED))
    _breaks(Scope(lives=1, opens=1), "proof")


def test_nothing_is_flipped_before_it_is_sealed(monkeypatch):
    monkeypatch.setattr(states, "ACTIONS", {**states.ACTIONS, State.DECIDED: states.Action.PUBLISH})
    table = with_table(State.DECIDED, Event.FLIPPED, State.VISIBLE)
    table[State.DECIDED][Event.NOT_FLIPPED] = State.READING_BACK
    monkeypatch.setattr(states, "TABLE", table)
    _breaks(Scope(lives=1, opens=1), "I3")


def test_state_is_read_above_the_visible_version():
    """A batch that reads the visible version alone overwrites what the versions in flight wrote."""
    _breaks(Scope(lives=1, opens=1, in_flight=2, reads_versions_in_flight=False), "I1")


@pytest.mark.parametrize("completes", [True, False])
def test_a_driver_completes_the_versions_of_a_driver_that_it_fenced(completes):
    """Otherwise its next batch reads a version from the store that nobody made visible.

    The exploration begins where the second driver has two versions in flight, and the first one, whose
    Decided was late, does not know them.
    """
    scope = Scope(lives=2, batches=3, attempts=4, in_flight=2, completes_fenced_versions=completes)
    model = Model(scope)
    opened = (
        "new: fold",
        "open: Open {} acked",
        "own: the epoch is ours",
        "claim: claimed",
        "recover: opened",
    )
    first = [*opened, "ready: stages a1 of 0", "commit: Decided a1 late"]
    second = list(opened)
    for attempt, batch in (("a2", 0), ("a3", 1)):
        second += [f"ready: stages {attempt} of {batch}", f"commit: Decided {attempt} acked"]
        second += ["commit: folds WON", "commit: decided"]
    world = model.start
    for driver, labels in ((0, first), (1, second)):
        for label in labels:
            world = dict(model.steps(world))[f"driver {driver}, {label.format(driver + 1)}"]
    if completes:
        assert explore(world, model.steps, 50_000).depth > 9
    else:
        with pytest.raises(Counterexample, match="I1: v1 is read from the store and not visible"):
            explore(world, model.steps, 50_000)


def test_a_lower_open_never_takes_the_epoch_back(monkeypatch):
    plain = fold.why_void

    def weaker(state, record):
        return None if isinstance(record, Open) and state is not None else plain(state, record)

    monkeypatch.setattr(fold, "why_void", weaker)
    _breaks(SMALL, "the log's epoch went back", "I6")


def test_a_counterexample_is_the_shortest_way():
    def count(number):
        assert number != 6, "six"
        return [("one", number + 1), ("two", number + 2)]

    with pytest.raises(Counterexample, match="after 3 steps") as found:
        explore(0, count)
    assert found.value.steps == ["two", "two", "two"]
