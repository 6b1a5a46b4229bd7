"""Requests that reach the broker long after their sender gave them up (T17, T25).

Whatever is held when, each batch is in exactly one version, the content of every version is right, and an
error says only what is proven (append rules 4 and 5).
"""

import contextlib
import dataclasses
from collections import Counter

import pytest

from services.support.kafka.wire import Api
from services.support.kafka.world import world_on
from tidegate.base.clock import Clock
from tidegate.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    WalUnavailableError,
)
from tidegate.wal.record import Decided, Genesis, Open, Summary

pytest_plugins = ["services.support.kafka.proxied"]

SOON_S = 1.5
"""After so long a log gives an append up, and what is held is late."""
AT_ONCE_S = 0.01
"""A deadline for deciding that has passed when the first append is given up."""


class Hooks:
    """What happens before or after the nth call of a name, counted from the last ``start``."""

    def __init__(self):
        self.start()

    def start(self):
        self._calls, self._before, self._after = Counter(), {}, {}

    def before(self, name, nth, does):
        self._before[name, nth] = does

    def after(self, name, nth, does):
        self._after[name, nth] = does

    @contextlib.contextmanager
    def around(self, name):
        self._calls[name] += 1
        at = name, self._calls[name]
        self._before.pop(at, _nothing)()
        try:
            yield
        finally:
            self._after.pop(at, _nothing)()

    def over(self):
        """Whether all of it happened."""
        return not self._before and not self._after


def _nothing():
    pass


class Late(Clock):
    """From ``pass_deadlines`` on it is past each deadline that was set before."""

    def __init__(self):
        self._ahead_s = 0.0

    def monotonic(self):
        return super().monotonic() + self._ahead_s

    def pass_deadlines(self):
        self._ahead_s += 3600.0


@pytest.fixture
def hooks():
    return Hooks()


@pytest.fixture
def world(proxied_kafka, hooks):
    kafka = proxied_kafka
    with world_on(kafka.bootstrap, kafka.direct, timeout_s=SOON_S, around=hooks.around) as made:
        yield made


@pytest.fixture
def hold(proxied_kafka, hooks):
    """Holds every append of a kind of record, also when it is sent again, until ``remove``."""
    made = []

    def make(kind):
        hooks.start()
        mark = b'"kind":"%s"' % kind.__struct_config__.tag.encode()
        made.append(proxied_kafka.proxy.hold_request(Api.PRODUCE, times=None, contains=mark))
        return made[-1]

    yield make
    assert all(one.hits for one in made)


def then(*steps):
    def does():
        for step in steps:
            step()

    return does


def started(world, **options):
    """A driver with one batch behind it."""
    driver = world.open()
    world.commit(driver, 0)
    driver.options = dataclasses.replace(driver.options, **options)
    driver.decisions.deadline_s = driver.options.decide_deadline_s
    return driver


def goes_on(world, versions):
    """The namespace is whole, and another driver goes on with it; the fold until then."""
    view = world.check(versions)
    world.commit(world.open(world.direct), *range(versions + 1))
    world.check(versions + 1, verified=False)
    return view


def attempts_of(world, version):
    """Those that stand in the log, whether they count or not."""
    return [one.attempt for one in world.records() if isinstance(one, Decided) and one.version == version]


# -- Decided, sent again ----------------------------------------------------------------------------


@pytest.mark.slow
def test_it_lands_before_the_log_is_folded(world, hooks, hold):
    driver = started(world)
    held = hold(Decided)
    hooks.after("append_decision", 1, held.release)
    world.commit(driver, 1)
    assert goes_on(world, 2).void == 0


@pytest.mark.slow
def test_it_lands_before_the_second_copy(world, hooks, hold):
    driver = started(world)
    held = hold(Decided)
    hooks.before("append_decision", 2, then(held.remove, held.release))
    world.commit(driver, 1)
    assert goes_on(world, 2).void == 1
    assert len(attempts_of(world, 2)) == 2


def test_it_lands_after_the_second_copy(world, hooks, hold):
    driver = started(world)
    held = hold(Decided)
    hooks.before("append_decision", 2, held.remove)
    hooks.after("append_decision", 2, held.release)
    world.commit(driver, 1)
    assert goes_on(world, 2).void == 1


@pytest.mark.slow
def test_it_lands_after_the_next_batch_was_decided(world, hooks, hold):
    driver = started(world)
    held = hold(Decided)
    hooks.before("append_decision", 2, held.remove)
    world.commit(driver, 1, 2)
    assert held.release()
    world.commit(driver, 3)
    assert goes_on(world, 4).void == 1


# -- Decided, fenced by its own driver ---------------------------------------------------------------


@pytest.mark.parametrize(
    "when", ["at once", pytest.param("when the error is raised", marks=pytest.mark.slow)]
)
def test_it_lands_behind_the_fencing_open(world, hooks, hold, when):
    driver = started(world, decide_deadline_s=AT_ONCE_S)
    held = hold(Decided)
    if when == "at once":
        hooks.after("append_decision", 2, held.release)
    with pytest.raises(ConflictError, match="version 2 was not decided"):
        world.commit(driver, 1)
    held.remove()
    held.release()
    (refused,) = set(attempts_of(world, 2))
    world.commit(driver, 1)
    assert world.check(2).state.recent[-1].attempt != refused
    assert goes_on(world, 2).void == 1


def test_it_lands_before_the_fencing_open(world, hooks, hold):
    """A ConflictError would be a lie: the batch is decided, and Spark would run it again."""
    driver = started(world, decide_deadline_s=AT_ONCE_S)
    held = hold(Decided)
    hooks.before("append_decision", 2, held.release)
    world.commit(driver, 1)
    assert hooks.over()
    assert driver.epoch == 2
    assert goes_on(world, 2).void == 0


@pytest.mark.parametrize("first", [pytest.param(Decided, marks=pytest.mark.slow), Open])
def test_it_and_the_fencing_open_land_when_nobody_waits_any_more(world, hold, first):
    driver = started(world, decide_deadline_s=AT_ONCE_S)
    by_kind = {Decided: hold(Decided), Open: hold(Open)}
    with pytest.raises(OutcomeUnknownError, match="whether version 2 was decided is unknown"):
        world.commit(driver, 1)
    for held in (by_kind.pop(first), *by_kind.values()):
        held.remove()
        assert held.release()
    assert world.view().state.last_version == (2 if first is Decided else 1)
    again = world.open(world.direct)
    world.commit(again, 1)
    assert goes_on(world, 2).void == (0 if first is Decided else 1)


# -- Decided, and another driver ---------------------------------------------------------------------------


@pytest.mark.parametrize("when", [pytest.param("after its open", marks=pytest.mark.slow), "after its commit"])
def test_it_lands_when_another_driver_has_taken_over(world, hooks, hold, when):
    driver = started(world)
    held = hold(Decided)
    others = []

    def another():
        held.remove()
        others.append(world.open(world.direct))
        if when == "after its commit":
            world.commit(others[0], 1)
        held.release()

    hooks.after("append_decision", 1, another)
    truth = {"after its open": "was not decided by this one", "after its commit": "visible by that driver"}
    with pytest.raises(FencedError, match=truth[when]):
        world.commit(driver, 1)
    refused = set(attempts_of(world, 2))
    world.commit(others[0], 1)
    assert len(refused) == (1 if when == "after its open" else 2)
    assert goes_on(world, 2).void == 1


@pytest.mark.slow
def test_it_lands_just_before_another_driver_takes_over(world, hooks, hold):
    """That one makes it visible; whether its own driver sees that or is fenced first, it is in once."""
    driver = started(world)
    held = hold(Decided)
    hooks.after("append_decision", 1, then(held.release, lambda: world.open(world.direct)))
    with contextlib.suppress(FencedError):
        world.commit(driver, 1)
    assert len(attempts_of(world, 2)) == 1
    assert goes_on(world, 2).void == 0


# -- Open, Genesis, Summary --------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_open_lands_after_its_driver_tried_the_next_epoch(world, hooks, hold):
    world.commit(world.open(world.direct), 0)
    held = hold(Open)
    hooks.before("append_decision", 2, held.remove)
    driver = world.open()
    assert driver.epoch == 3
    assert held.release()
    world.commit(driver, 1)
    assert goes_on(world, 2).void == 1


@pytest.mark.slow
@pytest.mark.parametrize("tried", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_open_of_a_driver_that_gave_up_lands_while_another_runs(world, hooks, hold, tried):
    """Tried once it is void. Tried twice it is above the running driver's, who is fenced and told so."""
    world.commit(world.open(world.direct), 0)
    held, clock = hold(Open), Late()
    # By a clock of its own: how long an append takes until it is given up is for the client's library to say.
    hooks.after("append_decision", tried, clock.pass_deadlines)
    with pytest.raises(OutcomeUnknownError, match="whether this driver opened"):
        world.open(clock=clock)
    held.remove()
    running = world.open(world.direct)
    assert running.epoch == 2
    assert held.release()
    late = [one.epoch for one in world.records() if isinstance(one, Open) and one.writer != running.writer]
    assert sorted(set(late)) == [1, 2, 3][: 1 + tried]
    if tried == 1:
        world.commit(running, 1)
    else:
        with pytest.raises(FencedError, match="at epoch 3, above this driver's 2"):
            world.commit(running, 1)
        world.commit(world.open(world.direct), 1)
    goes_on(world, 2)


@pytest.mark.parametrize("when", [pytest.param("first", marks=pytest.mark.slow), "second"])
def test_a_genesis_lands_in_a_race_of_two_drivers(world, hooks, hold, when):
    held = hold(Genesis)

    def another():
        if when == "first":
            held.release()
        held.remove()
        world.commit(world.open(world.direct), 0)
        held.release()

    hooks.after("append_decision", 1, another)
    world.commit(world.open(), 0, 1)
    namespaces = {one.namespace for one in world.records() if isinstance(one, Genesis)}
    assert len(namespaces) == (1 if when == "first" else 2)
    assert world.store().identity().uuid == world.view().state.namespace
    goes_on(world, 2)


SUMMARY_LANDS = ["at once", "after the next version", "after another driver's open"]


@pytest.mark.parametrize(
    "when", [SUMMARY_LANDS[1], *(pytest.param(w, marks=pytest.mark.slow) for w in SUMMARY_LANDS[::2])]
)
def test_a_summary_lands_late(world, hold, when):
    driver = started(world)
    held = hold(Summary)
    world.commit(driver, 1)
    held.remove()
    if when == "at once":
        held.release()
    world.commit(driver, 2)
    if when == "after another driver's open":
        driver = world.open(world.direct)
    held.release()
    world.commit(driver, 3, 4)
    world.tidy(driver)
    view = world.check(5)
    assert view.void == 0 if when == "at once" else view.void <= 1
    assert world.ends(world.decisions)[0] > 0  # cut in front of a Summary that counts
    goes_on(world, 5)


# -- frames, and trims ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["frame", pytest.param("manifest", marks=pytest.mark.slow)])
def test_a_blob_of_an_attempt_that_was_given_up_lands_as_an_orphan(world, proxied_kafka, what):
    driver = world.open()
    world.commit(driver, 0)
    held = proxied_kafka.proxy.hold_request(
        Api.PRODUCE, times=None, where=lambda frame: (b"-manifest" in frame) == (what == "manifest")
    )
    with pytest.raises(WalUnavailableError):
        world.commit(driver, 1)
    held.remove()
    before = blobs_of(world)
    world.commit(driver, 1)
    between = blobs_of(world)
    assert held.release()
    assert before < between < blobs_of(world)
    goes_on(world, 2)


def blobs_of(world):
    return sum(world.ends(world.changelog, partition)[1] for partition in range(2))


@pytest.mark.slow
def test_a_trim_that_was_given_up_lands_much_later(world, proxied_kafka):
    """What it cuts was needed by nobody when it was sent, and nothing is needed again."""
    driver = world.open()
    world.commit(driver, 0, 1, 2, 3)
    held = proxied_kafka.proxy.hold_request(Api.DELETE_RECORDS, times=None)
    first = dict.fromkeys([world.decisions, world.changelog])
    for topic in first:
        first[topic] = world.ends(topic)[0]
    for _ in range(2):  # of the decisions, and of the blobs
        with pytest.raises(WalUnavailableError):
            world.tidy(driver)
    held.remove()
    assert {topic: world.ends(topic)[0] for topic in first} == first
    world.commit(driver, 4, 5)
    other = world.open(world.direct)
    world.commit(other, 6)
    assert held.release()
    assert any(world.ends(topic)[0] > first[topic] for topic in first)
    world.check(7)
    world.tidy(other)
    cut = {topic: world.ends(topic)[0] for topic in first}
    assert all(cut[topic] > first[topic] for topic in first), (first, cut)
    goes_on(world, 7)
