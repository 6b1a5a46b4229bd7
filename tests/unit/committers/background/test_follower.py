"""Followers: what one does that has nothing to do, that fails, and how its thread ends."""

import threading
import types
import uuid

from support.places import barrier_of, driver_at, opened, to_fill
from tidegate.committers.background.follower import FollowerThread, follower_for, followers_of
from tidegate.committers.commit import commit
from tidegate.errors import StoreUnavailableError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.memory.store import MemoryStore

DEADLINE_S = 60.0


def test_a_follower_that_is_not_level_yet_stays_behind(place):
    driver = opened(place, 1)
    follower = follower_for(driver, StoreRef("b", "memory://b"), MemoryStore(uuid.uuid4().hex, "n"))
    since = follower._level_at
    follower.went_well(level=False)
    assert follower._level_at == since


def test_a_follower_of_a_driver_that_is_not_open_does_nothing(place):
    driver = driver_at(place, names=("a", "b"))
    (follower,) = followers_of(driver)
    assert (follower.step(), follower.look(), follower.beat()) == (False, False, False)
    assert follower.store.identity() is None


def test_a_command_that_cannot_bring_a_store_to_the_end_says_why(place, monkeypatch):
    """Tried a few times; nothing is raised, and a gap in the log names the way out."""
    driver = opened(place, 1, names=("a", "b"))
    (follower,) = followers_of(driver)
    tries = []

    def away(*_):
        tries.append(1)
        raise WalGapError("trimmed") if len(tries) == 1 else StoreUnavailableError("away")

    monkeypatch.setattr(follower.store, "pointer", away)
    standing = follower.catch_up()
    assert len(tries) == 3
    assert "StoreUnavailableError: away" in standing.error
    monkeypatch.undo()
    assert follower.catch_up().error == ""
    assert follower.store.pointer().visible == 1


def test_a_store_whose_versions_the_log_no_longer_has_is_filled_from_the_primary(place):
    """Red before: the first advice was a relog, which is refused while the primary is whole."""
    driver = opened(place, 2, names=("a", "b"))
    (follower,) = followers_of(driver)
    assert follower.catch_up().error == ""
    commit(driver, barrier_of(driver, 2))
    driver.log._content.segments.clear()
    error = follower.catch_up().error
    assert "shows version 3, so nothing is lost: fill this one from it, by `tidegate store remove b`" in error
    assert "tidegate relog" not in error
    assert error.count("`tidegate store add b=URL`") == 1


def test_a_follower_whose_store_can_wait_for_copies_keeps_the_options(place, monkeypatch):
    driver = opened(place, wait_replicas=0)
    store = MemoryStore(uuid.uuid4().hex, "n")
    monkeypatch.setattr(store, "checks_of_confirm", lambda **_: [])
    own = follower_for(driver, StoreRef("b", store.where), store)
    assert own._coordinator.options.wait_replicas == driver.options.wait_replicas


def test_an_idle_follower_gives_signs_of_life(place, monkeypatch):
    follower = to_fill(opened(place, 1, heartbeat_s=0.01))
    beats, plain, enough = [], follower.store.heartbeat, threading.Event()

    def heartbeat(epoch):
        beats.append(epoch)
        plain(epoch)
        if len(beats) == 3:
            enough.set()

    monkeypatch.setattr(follower.store, "heartbeat", heartbeat)
    thread = FollowerThread(follower, lambda: False)  # it is woken once, to begin
    try:
        assert enough.wait(DEADLINE_S)
    finally:
        thread.stop()
    assert set(beats) == {follower._coordinator.epoch}


def test_a_follower_may_be_stopped_by_its_own_thread():
    """As when what it calls ends the query: it does not wait for itself."""
    done, threads = threading.Event(), []
    started = threading.Event()

    def step(_):
        assert started.wait(DEADLINE_S)
        threads[0].stop()
        done.set()
        return True

    follower = types.SimpleNamespace(
        name="b",
        namespace="n",
        heartbeat_s=1.0,
        failed=None,
        driven_by=None,
        step=step,
        went_well=lambda **_: None,
        end_beat=lambda: None,
    )
    threads.append(FollowerThread(follower, lambda: False))
    started.set()
    assert done.wait(DEADLINE_S)
    threads[0].join(DEADLINE_S)
    assert not threads[0]._thread.is_alive()
