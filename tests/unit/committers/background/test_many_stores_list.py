"""The list of many stores, and trimming with it: a store that is behind or unknown keeps the log."""

import pytest

from support.committers.many_stores import Place, retired, trimmed
from tidegate.committers.background.membership import remove_store
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import (
    ConfigError,
    FencedError,
)
from tidegate.options.endpoints import StoreRef, parse_store, parse_stores
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.record import Summary, decode_record


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return Place(request.param, tmp_path)


@pytest.fixture
def in_memory(tmp_path):
    return Place("memory", tmp_path)


def test_one_store_needs_no_list_and_no_name(in_memory):
    driver, _ = in_memory.opened("a")
    in_memory.write(driver)
    assert driver.folded.stores == ()
    driver, _ = in_memory.opened("a")  # under any name
    assert driver.folded.stores == ()


def test_a_store_that_is_listed_and_not_given_is_refused(in_memory):
    in_memory.write(in_memory.opened("a", "b")[0])
    with pytest.raises(ConfigError, match=r"b is not given.*tidegate store remove b"):
        in_memory.opened("a")


def test_a_store_that_is_given_and_not_listed_is_refused(in_memory):
    in_memory.write(in_memory.opened("a", "b")[0])
    with pytest.raises(ConfigError, match=r"c is not in the list.*tidegate store add c=URL"):
        in_memory.opened("a", "b", "c")


def test_a_second_store_of_a_namespace_that_has_versions_is_refused(in_memory):
    driver, _ = in_memory.opened("a")
    in_memory.write(driver)
    position = driver.decisions.view.position
    with pytest.raises(ConfigError, match="tidegate store add b=URL"):
        in_memory.opened("a", "b")
    driver.decisions.catch_up()
    assert driver.decisions.view.position == position  # nothing was appended


def test_a_namespace_without_versions_may_still_get_its_first_stores(in_memory):
    in_memory.opened("a")
    driver, _ = in_memory.opened("a", "b")
    assert driver.folded.stores == ("a", "b")


def test_stores_are_named_by_kind_never_by_host():
    assert parse_store("redis://user:secret@old-host:6379/0").name == "redis"
    assert parse_store("rediss+sentinel://h1,h2/main").name == "redis"
    assert parse_store("copy=redis://new-host/0?x=1") == StoreRef("copy", "redis://new-host/0?x=1")
    assert "secret" not in repr(parse_stores(["redis://user:secret@h/0"]))


@pytest.mark.parametrize(
    "stores,options,says",
    [
        ([], {}, "at least one"),
        (["sqlite:///x", "sqlite:///y"], {}, "two stores are called sqlite: .*sqlite=URL"),
        (["a=sqlite:///x", "b=sqlite:////x/"], {}, "stores a and b are one, .*of its own"),
        (["a=redis://u:secret@h/0", "b=redis://u:secret@h/0"], {}, r"a and b are one, redis://\*\*\*@h/0:"),
        (["A=sqlite:///x"], {}, "cannot name a store"),
        (["=sqlite:///x"], {}, "cannot name a store"),
        (["a=sqlite:///x"], {"timeout_s": 1}, "by name"),
        ([7], {}, "must be text"),
    ],
)
def test_stores_that_cannot_be(stores, options, says):
    with pytest.raises(ConfigError, match=says):
        parse_stores(stores, options)


def test_a_secondary_that_is_behind_or_down_holds_the_trimming_back(in_memory):
    place = in_memory
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 4)
    follower.step()
    place.ports["b"].down = True
    place.write(driver, 8)
    retired(driver, driver.store)
    assert trimmed(place, driver) == 0  # it cannot be asked
    place.ports["b"].down = False
    assert trimmed(place, driver) == 3  # the Summary below which all is published in both
    follower.step()
    assert place.check("b") == driver.folded.last_version


def test_removing_the_store_releases_the_log(in_memory):
    place = in_memory
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 4)
    follower.step()
    place.write(driver, 8)
    retired(driver, driver.store)
    remaining = place.driver(["a"])
    remaining.decisions.catch_up()
    assert remove_store(remaining, "b")
    assert remaining.folded.stores == ("a",)
    assert not remove_store(remaining, "b")  # may be repeated
    open_namespace(remaining, "query-1")
    assert trimmed(place, remaining) > 4
    with pytest.raises(FencedError):
        place.write(driver)


def test_a_driver_that_does_not_know_a_store_does_not_trim(in_memory):
    """A zombie from before the store was added: what the store needs, it cannot ask."""
    place = in_memory
    driver, _ = place.opened("a")
    place.write(driver, 8)
    retired(driver, driver.store)
    place.add("b")
    new, (follower,) = place.opened("a", "b")
    follower.step()
    place.clock.advance(2 * 86_400)
    place.write(new)
    view = catch_up(View(), driver.log)
    Trimmer(driver.log, driver.store, place.options, place.clock, name="a").trim(view, place.clock.now_us())
    assert not isinstance(decode_record(next(driver.log.decisions()).content, "first"), Summary)
