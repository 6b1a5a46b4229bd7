"""What another driver does between two steps of one driver, at exactly the place that matters."""

import contextlib

import pytest

from support.places import driver_at
from tidegate.base.clock import Clock
from tidegate.committers import commit as committing
from tidegate.committers import states
from tidegate.committers.background.pipeline import Pipeline
from tidegate.committers.commit import commit, until_decided
from tidegate.committers.opening.open import ensure_made, open_namespace
from tidegate.errors import FencedError, LineageError, OutcomeUnknownError, WalUnavailableError
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.fold import fold
from tidegate.wal.record import Decided, Genesis, Open, RestoreOrigin, TableAt


class Meanwhile:
    """A port that does something once, before the first call of a name after it was set."""

    def __init__(self):
        self.name, self.does = None, None

    def before(self, name, does):
        self.name, self.does = name, does

    def call(self, call, effect):
        if call.name == self.name:
            self.name = None
            self.does()
        return effect()


def barrier_of(driver, batch_id=0, fingerprint=""):
    rows = {"aircraft": {b"N1": b"%d" % batch_id}}
    return ArrowBarrier(driver.log, rows, batch("query-1", batch_id, fingerprint), 4)


def another_driver(place, batches=(), fingerprint=""):
    driver = driver_at(place)
    open_namespace(driver, "query-1")
    for batch_id in batches:
        commit(driver, barrier_of(driver, batch_id, fingerprint))
    return driver


# -- open -------------------------------------------------------------------------------------------


def test_a_namespace_made_between_log_and_store_is_not_a_log_that_is_behind(place):
    port = Meanwhile()
    driver = driver_at(place, port=port)
    port.before("identity", lambda: another_driver(place))
    open_namespace(driver, "query-1")
    assert driver.epoch == 2


def test_a_namespace_is_tried_once_although_its_deadline_passed_meanwhile(place):
    class Leaping(Clock):
        """An hour goes by between any two looks at it."""

        def __init__(self):
            self._now = 0.0

        def monotonic(self):
            self._now += 3_600.0
            return self._now

    driver = driver_at(place)
    driver.decisions.clock = Leaping()
    assert ensure_made(driver).name == driver.endpoints.namespace


@pytest.mark.parametrize("call", ["decisions", "identity", "pointer", "append_decision", "claim"])
def test_a_version_published_while_a_driver_opens_is_not_a_log_that_is_behind(place, call):
    running = another_driver(place, [0])
    port = Meanwhile()
    driver = driver_at(place, port=port)
    port.before(call, lambda: _commit_unless_fenced(running, 1))
    open_namespace(driver, "query-1")
    assert driver.store.pointer().visible == driver.folded.last_version


def test_a_driver_that_opened_and_published_behind_our_open_fences_us(place):
    """The check after the own Open must not take its versions for a log that is behind."""
    another_driver(place, [0])
    port = Meanwhile()
    driver = driver_at(place, port=port)
    log = driver.log
    plain = log.append_decision

    def append_then_another(content):
        appended = plain(content)
        port.before("pointer", lambda: another_driver(place, [1]))
        return appended

    log.append_decision = append_then_another
    with pytest.raises(FencedError):
        open_namespace(driver, "query-1")


def _commit_unless_fenced(driver, batch_id):
    with contextlib.suppress(FencedError):
        commit(driver, barrier_of(driver, batch_id))


# -- commit -----------------------------------------------------------------------------------------


def test_the_same_batch_decided_by_another_driver_from_other_offsets_is_refused(place):
    """Returning its version would tell Spark that offsets are in that are not."""
    port = Meanwhile()
    driver = driver_at(place, port=port)
    open_namespace(driver, "query-1")
    port.before("append_decision", lambda: another_driver(place, [0], "other offsets"))
    with pytest.raises(LineageError, match="other source offsets"):
        commit(driver, barrier_of(driver))


def test_a_log_that_falls_silent_after_the_decision_is_waited_for(place):
    """Raising WalUnavailableError there would say that nothing was decided."""
    port = Meanwhile()
    driver = driver_at(place, port=port)
    open_namespace(driver, "query-1")

    def silent():
        raise WalUnavailableError("silent")

    def decided_by_another():
        other = another_driver(place)
        other.store.publish = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            commit(other, barrier_of(other))
        port.before("log.read", silent)

    port.before("append_decision", decided_by_another)
    with pytest.raises(FencedError):
        commit(driver, barrier_of(driver))


def commit_pipelined(driver, barrier):
    pipeline = Pipeline(driver)
    fact = pipeline.commit(barrier)
    while pipeline.in_flight:
        pipeline.complete_next()
        pipeline.check()
    return fact


def about_to_fence_another(place, batches):
    """A driver that cannot learn what became of its next decision, and opens again. Meanwhile another had
    opened, and decided these batches.
    """
    port = Meanwhile()
    driver = driver_at(place, port=port, decide_deadline_s=0.05)
    open_namespace(driver, "query-1")

    def another_decides():
        other = another_driver(place)
        for batch_id in batches:
            until_decided(other, barrier_of(other, batch_id))

    opens = []

    def silent_until_the_second_open(call, effect):
        if call.shown == "open":
            opens.append(call)
        if call.name == "decisions" and len(opens) < 2:
            raise WalUnavailableError("silent")
        return Meanwhile.call(port, call, effect)

    port.before("append_decision", another_decides)
    port.call = silent_until_the_second_open
    return driver


@pytest.mark.parametrize("way", [commit, commit_pipelined])
@pytest.mark.parametrize("batches", [[1, 2], [0, 1], [0, 1, 2]])
def test_what_a_driver_decided_that_this_one_fenced_is_made_visible_i4(place, batches, way):
    """Nobody else makes it visible, and its batches will be skipped."""
    driver = about_to_fence_another(place, batches)
    fact = way(driver, barrier_of(driver, 1))
    assert fact.version == 1 + batches.index(1)
    assert (driver.folded.epoch, driver.last_decided) == (driver.epoch, len(batches))
    assert driver.store.pointer().visible == len(batches)


def test_a_log_that_is_silent_behind_that_does_not_say_that_nothing_was_decided(place, monkeypatch):
    """More was decided than the fold keeps, so the log is asked for it."""
    driver = about_to_fence_another(place, [1, 2])
    silent = WalUnavailableError("silent")
    monkeypatch.setattr(committing, "decided_versions_from", lambda *_: (_ for _ in ()).throw(silent))
    with pytest.raises(OutcomeUnknownError, match="version 1 is decided"):
        commit(driver, barrier_of(driver, 1))


# -- verdicts -----------------------------------------------------------------------------------------


def test_an_earlier_restore_of_the_same_version_is_not_taken_for_this_one():
    """A version may be restored twice: the first time says nothing of the second."""
    state = fold(
        None,
        Genesis(namespace="u", writer="w", epoch=0, prev_digest="", key_groups=4, name="n", created_at_us=1),
    )
    state = fold(state, Open(namespace="u", writer="w", epoch=1, prev_digest="", lineage="q"))
    for attempt, origin in (("a1", batch("q", 0)), ("a2", RestoreOrigin(0))):
        state = fold(state, decided(state, attempt, origin))
    assert state.last_version == 2
    again = decided(state, "a3", RestoreOrigin(0))
    assert states.after_fold(state, again, "w") == (states.Event.NOT_THERE, None)
    event, fact = states.after_fold(fold(state, again), again, "w")
    assert (event, fact.version) == (states.Event.WON, 3)


def decided(state, attempt, origin):
    return Decided(
        namespace="u",
        writer="w",
        epoch=1,
        prev_digest=state.digest,
        attempt=attempt,
        version=state.last_version + 1,
        origin=origin,
        base_version=state.last_version,
        manifest_address="m",
        manifest_digest="d",
        tables={"t": TableAt("s")},
        parallelism={},
        source_offsets="",
        decided_at_us=state.decided_at_us + 1,
    )
