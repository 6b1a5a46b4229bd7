"""Adding a store to a namespace: what is refused before anything is appended, and what a cut log allows."""

import uuid

import pytest

from support.places import appended_nothing, driver_at, opened
from tidegate.committers.background.membership import _reaches_back, add_store
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.wal import fold


@pytest.fixture
def driver(place):
    """One version is visible."""
    return opened(place)


class Unfillable(MemoryStore):
    can_be_filled = False


def test_the_primary_under_another_url_is_no_other_store(driver, place):
    """A folder that is a link, another name of one server: the writer's claim is there already."""
    again = MemoryStore(place, "n")
    with pytest.raises(ConfigError, match=r"is the primary, .* under another name: nothing was added"):
        add_store(driver, StoreRef("copy", "memory://link"), again)
    assert "copy" not in driver.decisions.catch_up().stores


def test_a_store_that_is_there_already_is_not_added(driver):
    again = StoreRef("a", "memory://elsewhere")
    store = MemoryStore("elsewhere", "n")
    appended_nothing(driver, lambda: add_store(driver, again, store), ConfigError, "given twice")


def test_a_store_of_another_namespace_is_not_added(driver):
    other = driver_at(uuid.uuid4().hex)
    open_namespace(other, "q")
    at = StoreRef("b", other.endpoints.wal)
    words = "the log is of namespace .*, the store of namespace"
    appended_nothing(driver, lambda: add_store(driver, at, other.store), WalGapError, words)


def test_a_store_that_cannot_be_filled_is_not_added_behind_a_log_that_was_cut(driver):
    at = StoreRef("b", f"memory://{uuid.uuid4().hex}")
    store = Unfillable(at.url.removeprefix("memory://"), "n")
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    words = "cannot be filled from another one, and .* does not reach back to version 1"
    appended_nothing(driver, lambda: add_store(driver, at, store), ConfigError, words)


def test_a_store_that_cannot_be_filled_is_not_added_behind_a_log_whose_decisions_were_cut(place):
    driver = opened(place, 3, summary_every=2)
    driver.log.trim_decisions(driver.decisions.view.summaries[-1].position)
    driver.decisions.view = driver.decisions.view._replace(state=None, position=0, summaries=())
    driver.decisions.catch_up()
    state = driver.folded
    assert state.recent
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    store = Unfillable(uuid.uuid4().hex, "n")
    with pytest.raises(ConfigError, match="does not reach back to version 1"):
        add_store(driver, StoreRef("b", store.where), store)
    assert store.identity() is None


def test_a_store_that_cannot_be_filled_is_added_while_the_log_has_every_version(place):
    driver = opened(place, 2)
    store = Unfillable(uuid.uuid4().hex, "n")
    follower = add_store(driver, StoreRef("b", store.where), store)
    while not follower.step():
        pass
    assert store.pointer().visible == 2


def test_a_log_whose_first_decisions_are_gone_does_not_reach_back(place, monkeypatch):
    monkeypatch.setattr(fold, "RECENT_MAX", 2)
    driver = opened(place, 4, summary_every=4)
    assert _reaches_back(driver)
    driver.log.trim_decisions(driver.decisions.view.summaries[-1].position)
    assert not _reaches_back(driver)
