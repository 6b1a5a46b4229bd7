"""The list of stores in the log: a change that is made already appends nothing."""

import pytest

from support.places import driver_at, opened
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.store_list import add_to_list, remove_from_list
from tidegate.errors import ConfigError
from tidegate.sinks.memory.store import MemoryStore


def test_a_store_that_is_listed_is_not_listed_twice(place):
    driver = opened(place)
    add_to_list(driver.decisions, "a")
    before = list(driver.log.decisions())
    add_to_list(driver.decisions, "a")
    assert list(driver.log.decisions()) == before


def test_a_store_that_is_not_listed_is_not_removed_twice(place):
    driver = opened(place)
    before = list(driver.log.decisions())
    remove_from_list(driver.decisions, "b")
    assert list(driver.log.decisions()) == before


def test_the_first_stores_of_a_namespace_are_different_places(place):
    """A folder that is a link, two names of one server: the two stores would be one copy of the rows."""
    driver = driver_at(place, names=("a", "b"))
    driver.others = (MemoryStore(place, "n"),)
    with pytest.raises(ConfigError, match=r"is the primary, .* under another name: nothing was added"):
        open_namespace(driver, "q")
    assert driver.decisions.catch_up().stores == ()
    driver = driver_at(place, names=("a", "b"))
    driver.others = (MemoryStore(f"{place}-b", "n"),)
    open_namespace(driver, "q")
    assert driver.folded.stores == ("a", "b")


def test_a_lost_store_is_not_made_again_by_a_driver_with_other_stores(place):
    """Red before: it was made, and marked as being filled, before the driver was refused."""
    driver = opened(place, 2, names=("a", "b"))
    driver.store.drop()
    with pytest.raises(ConfigError, match="store b is not given"):
        open_namespace(driver_at(place), "q")
    assert driver_at(place).store.identity() is None
