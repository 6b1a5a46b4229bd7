"""Every state of small scopes of whole processes, and each rule that they need, broken on purpose.

The processes are production's own functions (``processes.py``), so a rule is broken where production has it.
"""

import logging

import msgspec
import pytest

from model.exploration import Counterexample, explore
from model.programs import adds_store, adopts, driver, load, reads, recovers, restores, retires, then, trims
from model.whole import Model, Scope
from tidegate.committers.apply import apply
from tidegate.committers.opening import open as opening
from tidegate.committers.operations import restore as restoring
from tidegate.committers.steps import trim
from tidegate.errors import (
    ConfigError,
    FencedError,
    LineageError,
    OutcomeUnknownError,
    SnapshotExpiredError,
    StoreUnavailableError,
    VersionRegressedError,
    WalGapError,
)
from tidegate.reader import rules
from tidegate.reader.leases.active import ActiveLease
from tidegate.sinks.memory import store as memory
from tidegate.sinks.memory.attempts import NotedAttempts
from tidegate.sinks.memory.namespace import MemoryNamespace
from tidegate.sinks.memory.store import MemoryStore
from tidegate.wal import fold
from tidegate.wal.record import Summary

DECIDES, BEGINS = "append_decision decided", "begin"
WRITES = frozenset({"claim", "begin", "apply", "seal", "publish"})
RETIREMENT = frozenset({"announce", "retire", "lease", "release"})
LOST = (FencedError, OutcomeUnknownError, WalGapError)
OTHER = (FencedError, LineageError)
REFUSED = (FencedError, ConfigError, StoreUnavailableError)
READ = (FencedError, SnapshotExpiredError)
BY_EXECUTORS = {"driver_apply_max_changes": 0}
FIRST = (driver(0),)
TWO = (driver(0), driver(1))

SCOPES = {
    "partial seals": Scope(
        {"a": driver(1, **BY_EXECUTORS), "b": recovers()},
        FIRST,
        faults=1,
        faulty=WRITES,
        ahead={"a": DECIDES},
    ),
    "late rows": Scope(
        {"a": then(driver(1, 2), retires())}, FIRST, faults=1, faulty=frozenset({"apply", "retire"})
    ),
    "a lost record": Scope(
        {"a": driver(1), "b": driver(1), "c": then(recovers(discard_lost=True), driver(1, 2))},
        FIRST,
        losses=1,
        faults=1,
        faulty=frozenset({"apply"}),
        stops=frozenset({"c"}),
        errors=LOST,
        ahead={"a": "apply"},
    ),
    "a lost Open": Scope(
        {"a": driver(1), "b": driver(1)}, FIRST, losses=1, errors=LOST, ahead={"a": DECIDES}
    ),
    "a load twice": Scope({"a": load("x"), "b": load("x")}, FIRST, ahead={"a": DECIDES}),
    "an import that empties": Scope(
        {"a": driver(1), "b": load("x", imports=True, empties=True)}, FIRST, ahead={"a": DECIDES}
    ),
    "a restore": Scope({"a": driver(2), "b": restores(1)}, TWO, errors=REFUSED, ahead={"a": DECIDES}),
    "a rewind": Scope(
        {"a": driver(0, 1), "b": driver(1)},
        (*TWO, restores(1, reprocess=True)),
        errors=OTHER,
        ahead={"a": DECIDES},
    ),
    "an adoption": Scope(
        {"a": driver(1), "b": adopts("query-2"), "c": driver(0, lineage="query-2")},
        FIRST,
        errors=OTHER,
        ahead={"a": DECIDES, "b": "append_decision"},
    ),
    "a store is added": Scope(
        {"a": driver(2), "b": adds_store()}, TWO, stores=2, errors=REFUSED, ahead={"a": DECIDES}
    ),
    "a fill and a late flip": Scope(
        {"a": adds_store(1)},
        FIRST,
        stores=2,
        faults=2,
        faulty=frozenset({"publish v1 epoch 2"}),
    ),
    "two stores": Scope(
        {"a": driver(2, stores=2), "b": recovers()},
        (*TWO, adds_store()),
        stores=2,
        errors=REFUSED,
        ahead={"a": BEGINS},
    ),
    "a cut": Scope(
        {"a": driver(2, 3, summary_every=1), "t": trims()},
        (driver(0, 1, summary_every=1), retires()),
        trims=True,
        faults=1,
        faulty=frozenset({"append_decision summary"}),
        ahead={"a": DECIDES},
    ),
    "a cut, two stores": Scope(
        {
            "a": then(driver(2, 3, stores=2, follows=False, summary_every=1), retires()),
            "t": trims(stores=2),
        },
        (driver(0, 1, summary_every=1), adds_store(), retires()),
        stores=2,
        trims=True,
        ahead={"a": DECIDES},
    ),
    "a lease": Scope(
        {"a": driver(2), "b": retires(), "r": reads(pinned=True)}, TWO, errors=READ, ahead={"a": "publish"}
    ),
    "leases and time": Scope(
        {"a": retires(max_lease_s=60.0), "r": reads(2, renews=True)},
        (driver(0, 1, 2),),
        ticks=2,
        errors=READ,
        ahead={"r": "lease"},
    ),
    "an old copy": Scope(
        {"a": driver(1), "b": recovers(), "r": reads()},
        FIRST,
        old_copies=1,
        errors=(*REFUSED, VersionRegressedError),
        ahead={"a": "publish"},
    ),
}
"""Each is complete within seconds."""
STATES = {
    "partial seals": 15_000,
    "a lost record": 28_000,
    "a lost Open": 4_400,
    "an adoption": 5_500,
    "a store is added": 3_600,
    "two stores": 22_000,
    "a cut": 5_800,
    "a cut, two stores": 4_100,
    "a lease": 1_700,
    "leases and time": 11_000,
    "an old copy": 6_600,
}
"""The least number of states of the larger ones of these: a scope that lost a step has fewer."""
LARGER = {
    "two drivers, partial seals": Scope(
        {"a": driver(1, **BY_EXECUTORS), "b": driver(1, **BY_EXECUTORS)}, FIRST, faults=1, faulty=WRITES
    ),
    "two drivers, appends": Scope(
        {"a": driver(1), "b": driver(1)},
        FIRST,
        faults=1,
        faulty=frozenset({"append_decision"}),
        ahead={"a": DECIDES},
    ),
    "a restore to replay": Scope(
        {"a": driver(2), "b": restores(1, reprocess=True), "c": driver(0, 1)},
        TWO,
        errors=(*REFUSED, LineageError),
        ahead={"a": DECIDES},
    ),
    "two stores, a driver and its successor": Scope(
        {"a": driver(2, stores=2), "b": driver(2, 3, stores=2)},
        (*TWO, adds_store()),
        stores=2,
        errors=REFUSED,
    ),
    "late retirements": Scope(
        {"a": retires(max_lease_s=60.0), "b": retires(), "r": reads(2, renews=True)},
        (driver(0, 1, 2),),
        ticks=2,
        faults=1,
        faulty=RETIREMENT,
        errors=READ,
    ),
}
LARGER_STATES_MAX = 300_000


@pytest.fixture(autouse=True)
def no_log_lines():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", SCOPES)
def test_no_invariant_breaks(name):
    model = Model(SCOPES[name])
    explored = explore(model.start, model.steps)
    print(f"{name}: {explored}")
    assert explored.complete
    assert explored.states >= STATES.get(name, 100)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", LARGER)
def test_no_invariant_breaks_in_larger_scopes(name):
    """Cut at a number of states: what was reached is without a violation."""
    model = Model(LARGER[name])
    explored = explore(model.start, model.steps, LARGER_STATES_MAX)
    print(f"{name}: {explored}")
    assert explored.complete or explored.states > LARGER_STATES_MAX


# -- rules broken on purpose, by the scope that finds them ------------------------------------------------


def _without(patch, owner, name, result=None):
    patch.setattr(owner, name, lambda *_, **__: result)


def a_begun_attempt_is_not_noted(patch):
    _without(patch, NotedAttempts, "refuse_other")
    _without(patch, NotedAttempts, "above", [])


def a_discard_leaves_the_rows(patch):
    _without(patch, MemoryNamespace, "drop_from")


def a_discard_is_forgotten(patch):
    plain = NotedAttempts.discard

    def forgets(attempts, lost):
        plain(attempts, lost)
        attempts._discarded = {}

    patch.setattr(NotedAttempts, "discard", forgets)


def a_part_of_the_rows_is_enough(patch):
    plain = apply.chunks_of
    patch.setattr(
        apply,
        "chunks_of",
        lambda work, *log: list(plain(work, *log))[: -1 if work.attempt[0] == "a" else None],
    )
    _without(patch, memory, "is_whole", True)


def an_old_driver_flips(patch):
    plain = MemoryStore.publish
    patch.setattr(
        MemoryStore, "publish", lambda store, entry, _: plain(store, entry, store._found.pointer.epoch)
    )


def rows_below_the_floor_are_written(patch):
    plain = MemoryStore.apply

    def without_floors(store, stamp, *chunks):
        floors, store._found.floors = store._found.floors, {}
        plain(store, stamp, *chunks)
        store._found.floors = floors

    patch.setattr(MemoryStore, "apply", without_floors)


def tokens_are_forgotten(patch):
    patch.setattr(fold.Tokens, "followed_by", lambda tokens, _: tokens)


def a_batch_that_a_restore_kept_is_replayed(patch):
    _without(patch, fold, "_still_held")


def an_open_changes_the_lineage(patch):
    _without(patch, opening, "_refuse_other_lineage")
    plain = fold._why_open_void
    patch.setattr(
        fold,
        "_why_open_void",
        lambda state, record: plain(msgspec.structs.replace(state, lineage=None), record),
    )


def a_restore_leaves_what_came_later(patch):
    patch.setattr(restoring, "changes_to", lambda *_: iter(()))


def a_fill_is_no_obstacle_to_a_flip(patch):
    plain = MemoryStore.publish

    def publishes(store, entry, epoch):
        horizon = store._found.pointer.horizon
        store._found.pointer = msgspec.structs.replace(store._found.pointer, horizon=0)
        flipped = plain(store, entry, epoch)
        store._found.pointer = msgspec.structs.replace(store._found.pointer, horizon=horizon)
        return flipped

    patch.setattr(MemoryStore, "publish", publishes)


def any_summary_is_valid(patch):
    plain = fold.why_void
    patch.setattr(
        fold,
        "why_void",
        lambda state, record: None if state and isinstance(record, Summary) else plain(state, record),
    )


def one_store_decides_how_far_the_log_is_cut(patch):
    patch.setattr(trim, "least_of", lambda pointers: pointers[0])


def needed_blobs_are_dropped(patch):
    _without(patch, trim.Trimmer, "_needed", set())


def blobs_are_young_for_no_time(patch):
    _without(patch, trim, "keep_from_us", 10**18)


def a_table_start_is_ignored(patch):
    plain = memory.newest_of
    patch.setattr(memory, "newest_of", lambda versions, version, _: plain(versions, version, 0))


def an_epoch_is_above_those_of_the_log_alone(patch):
    plain = opening.take_epoch
    patch.setattr(opening, "take_epoch", lambda decisions, lineage, _: plain(decisions, lineage))
    _without(patch, opening, "refuse_if_shared")


def a_fill_leaves_what_was_there(patch):
    def marks(store, entry, epoch):
        pointer = store._found.pointer
        if pointer.visible or pointer.epoch > epoch:
            return 0
        store._found.pointer = msgspec.structs.replace(pointer, horizon=entry.version)
        return entry.version

    patch.setattr(MemoryStore, "begin_fill", marks)


def nothing_is_recovered_at_an_open(patch):
    _without(patch, opening, "recover", [])


def leases_hold_nothing(patch):
    patch.setattr(memory.rules, "horizon_allowed", lambda wanted, *_: wanted)


def a_retired_version_is_read(patch):
    _without(patch, memory, "check_kept")
    _without(patch, ActiveLease, "check")


def rows_are_dropped_before_the_announcement(patch):
    _without(patch, MemoryStore, "announce", 1_000)


def a_reader_forgets_what_it_saw(patch):
    _without(patch, rules, "check_seen")


BROKEN = [
    (a_part_of_the_rows_is_enough, "partial seals", "I1"),
    (an_old_driver_flips, "partial seals", "I6"),
    (rows_below_the_floor_are_written, "late rows", "I1"),
    (a_begun_attempt_is_not_noted, "a lost record", "I1"),
    (a_discard_leaves_the_rows, "a lost record", "I1"),
    (a_discard_is_forgotten, "a lost record", "I1"),
    (an_epoch_is_above_those_of_the_log_alone, "a lost Open", "I"),
    (nothing_is_recovered_at_an_open, "a restore", "I4"),
    (a_table_start_is_ignored, "an import that empties", "I1"),
    (a_fill_leaves_what_was_there, "a fill and a late flip", "I1"),
    (tokens_are_forgotten, "a load twice", "I2"),
    (a_restore_leaves_what_came_later, "a restore", "I1"),
    (a_batch_that_a_restore_kept_is_replayed, "a rewind", "I2"),
    (an_open_changes_the_lineage, "an adoption", "I6"),
    (a_fill_is_no_obstacle_to_a_flip, "a fill and a late flip", "I"),
    (any_summary_is_valid, "a cut", "cut"),
    (one_store_decides_how_far_the_log_is_cut, "a cut, two stores", "I4"),
    (needed_blobs_are_dropped, "a cut, two stores", "I4"),
    (blobs_are_young_for_no_time, "a cut", "I4"),
    (leases_hold_nothing, "a lease", "I8"),
    (rows_are_dropped_before_the_announcement, "a lease", "I"),
    (a_retired_version_is_read, "leases and time", "I8"),
    (a_reader_forgets_what_it_saw, "an old copy", "I9"),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rule, scope, broken", BROKEN, ids=[rule.__name__ for rule, *_ in BROKEN])
def test_each_rule_is_needed(monkeypatch, rule, scope, broken):
    rule(monkeypatch)
    model = Model(SCOPES[scope])
    with pytest.raises(Counterexample) as found:
        explore(model.start, model.steps)
    print(found.value)
    assert found.value.broken.startswith(broken), found.value.broken
