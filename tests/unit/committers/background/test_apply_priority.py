"""A version that is applied goes before the retirement of older ones, and waits for it when those pile up."""

import threading
import uuid

import pytest

from support.wait import wait_until
from tidegate.committers.apply import apply
from tidegate.committers.apply import priority as apply_priority
from tidegate.committers.apply.priority import YIELD_VERSIONS, ApplyPriority
from tidegate.committers.background.worker import Background
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.steps.retire import BEHIND_LEAST, behind_most
from tidegate.options import Options
from tidegate.testing.example import Example

KEEP_ONE = Options(key_groups=2, keep_versions=1, max_layers=3)
DEADLINE_S = 30.0


@pytest.fixture
def writer(tmp_path):
    example = Example(f"memory://{uuid.uuid4().hex}", f"sqlite://{tmp_path}/store", options=KEEP_ONE)
    yield example
    example.close()


@pytest.fixture
def steps(monkeypatch):
    """Retirement has come to a place between two steps; it gives way there without an end."""
    came, plain = threading.Event(), ApplyPriority.yield_to_apply

    def yield_to_apply(way):
        came.set()
        plain(way)

    monkeypatch.setattr(apply_priority, "YIELD_S", DEADLINE_S)
    monkeypatch.setattr(ApplyPriority, "yield_to_apply", yield_to_apply)
    return came


@pytest.fixture
def background(writer):
    driver = writer.driver
    made = Background(driver.log, driver.store, KEEP_ONE, lambda: driver.epoch)
    made.priority = driver.priority
    yield made
    made.stop()


def write(writer, count=1):
    for _ in range(count):
        last = writer.driver.folded.last_version
        writer.write({"airports": {"EWR": {"departures": last, "delay": 0.0}}})


def horizon(writer):
    return writer.driver.store.pointer().horizon


def test_retirement_gives_way_to_a_version_that_is_applied(writer, background, steps):
    write(writer, 3)
    with writer.driver.priority.applying():
        background.published()
        assert steps.wait(DEADLINE_S)
        assert horizon(writer) == 0
    wait_until(lambda: horizon(writer) == 3)


def test_it_goes_on_beside_it_when_more_have_become_visible(writer, background, steps):
    write(writer, 3)
    with writer.driver.priority.applying():
        background.published()
        assert steps.wait(DEADLINE_S)
        for _ in range(YIELD_VERSIONS):
            background.published()
        wait_until(lambda: horizon(writer) == 3)


def test_it_goes_on_step_by_step_beside_one_that_takes_without_end(writer, background, monkeypatch):
    monkeypatch.setattr(apply_priority, "YIELD_S", 0.01)
    write(writer, 3)
    with writer.driver.priority.applying():
        background.published()
        wait_until(lambda: horizon(writer) == 3)


def test_a_stop_ends_a_retirement_that_gives_way(writer, background, monkeypatch):
    came = threading.Event()

    def gives_way(_):
        came.set()
        assert background._ending.wait(DEADLINE_S)

    monkeypatch.setattr(ApplyPriority, "yield_to_apply", gives_way)
    write(writer, 3)
    background.published()
    assert came.wait(DEADLINE_S)
    background.stop()
    assert horizon(writer) == 0, "not one step more"


def test_a_version_is_applied_with_the_apply_priority(writer, monkeypatch):
    way, seen, plain = writer.driver.priority, [], apply.do

    def do(*arguments, **named):
        seen.append(way._applying)
        return plain(*arguments, **named)

    monkeypatch.setattr(apply, "do", do)
    write(writer)
    assert seen == [1]
    assert way._applying == 0


# -- older versions that pile up -------------------------------------------------------------------


def pile_up(way, versions=BEHIND_LEAST):
    for _ in range(versions):
        way.published()


def test_nothing_more_is_decided_while_many_wait_to_be_retired(writer, monkeypatch):
    waits, way = threading.Event(), writer.driver.priority
    said = []
    monkeypatch.setattr(Coordinator, "waiting_for", lambda _, reason: (said.append(reason), waits.set()))
    thread = threading.Thread(target=write, args=(writer,))
    with way.retiring():
        pile_up(way, BEHIND_LEAST - 1)
        write(writer)
        assert not said
        pile_up(way, 1)
        thread.start()
        assert waits.wait(DEADLINE_S)
        assert len(list(writer.driver.log.decisions())) == 3, "genesis, open, one version"
    thread.join(DEADLINE_S)
    assert writer.driver.store.pointer().visible == 2
    assert said == [f"{BEHIND_LEAST} older versions to be retired"]


def test_nobody_waits_while_a_long_retirement_drops_two_for_each_that_becomes_visible(writer, background):
    """After more were kept, or a lease held many: it goes on for long, and there are ever fewer."""
    write(writer, 4 * BEHIND_LEAST)
    rooms, plain = [], background._between_steps

    def between_steps():
        if horizon(writer) > 2 * BEHIND_LEAST + 2 and not rooms:
            pile_up(writer.driver.priority)
            rooms.append(writer.driver.priority.wait_for_backlog(BEHIND_LEAST, 0))
            pile_up(writer.driver.priority)
            rooms.append(writer.driver.priority.wait_for_backlog(BEHIND_LEAST, 0))
        return plain()

    background._between_steps = between_steps
    background.published()
    wait_until(lambda: horizon(writer) == 4 * BEHIND_LEAST)
    assert rooms == [True, False]


def test_after_a_deadline_it_is_decided_with_a_warning(writer, monkeypatch, caplog):
    monkeypatch.setattr(ApplyPriority, "wait_for_backlog", lambda *_: False)
    with writer.driver.priority.retiring():
        pile_up(writer.driver.priority)
        write(writer)
    assert writer.driver.store.pointer().visible == 1
    assert f"more than {KEEP_ONE.apply_deadline_s} s while {BEHIND_LEAST} became visible" in caplog.text


@pytest.mark.parametrize("layers, most", [(None, 500), (3, BEHIND_LEAST), (41, 20)])
def test_how_many_may_wait_follows_from_what_a_lease_may_hold(writer, layers, most):
    assert behind_most(writer.driver.store, Options(keep_versions=1, max_layers=layers)) == most
