"""The list of stores in the log: a change that is made already appends nothing."""

from support.places import opened
from tidegate.committers.opening.store_list import add_to_list, remove_from_list


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
