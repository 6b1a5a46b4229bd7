"""The flip, when its answer is a No or none: read back, and what is found is told (publish rules 2 to 5)."""

import msgspec
import pytest

from support.places import driver_at
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import CorruptError, StoreUnavailableError
from tidegate.testing.arrow_barrier import ArrowBarrier, batch


def write(driver, origin):
    return commit(driver, ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, origin, 4))


@pytest.fixture
def driver(place):
    """One version is visible."""
    driver = driver_at(place)
    open_namespace(driver, "q")
    write(driver, batch("q", 0))
    return driver


def shows(store, **changes):
    space = store._space
    space.pointer = msgspec.structs.replace(space.pointer, **changes)


# -- the read-back ------------------------------------------------------------------------------------


def test_a_store_that_is_silent_when_it_is_read_back_is_asked_again(driver, monkeypatch):
    """The flip took effect, its reply is lost, and so is the first answer after it: it is sent once."""
    flip, look, flips, silent = driver.store.publish, driver.store.pointer, [], [True, False]

    def publish(entry, epoch):
        flips.append(flip(entry, epoch))
        raise StoreUnavailableError("the reply was lost")

    def pointer():
        if flips and silent and silent.pop(0):
            raise StoreUnavailableError("no answer")
        return look()

    monkeypatch.setattr(driver.store, "publish", publish)
    monkeypatch.setattr(driver.store, "pointer", pointer)
    write(driver, batch("q", 1))
    assert flips == [True]
    assert look().visible == 2


def test_a_store_that_shows_another_history_is_corrupt_and_nothing_more_is_sent(driver, monkeypatch):
    """I9, I10: whose version that is, nobody knows."""
    flips = []

    def publish(entry, _):
        flips.append(entry.version)
        shows(driver.store, visible=entry.version, digest="of another history")
        return False

    monkeypatch.setattr(driver.store, "publish", publish)
    with pytest.raises(CorruptError, match=r"store and log are of two histories.*restore it from a copy"):
        write(driver, batch("q", 1))
    assert flips == [2]


def test_a_store_that_went_back_is_not_skipped_over(driver, monkeypatch):
    """I7: version 2 is not shown above 0; the line stops, and what is decided stays decided."""

    def publish(*_):
        shows(driver.store, visible=0, digest="")
        return False

    monkeypatch.setattr(driver.store, "publish", publish)
    with pytest.raises(StoreUnavailableError, match=r"2 is decided.*visible there: 0.*tidegate recover"):
        write(driver, batch("q", 1))
    monkeypatch.undo()
    again = driver_at(driver.endpoints.wal.removeprefix("memory://"))
    open_namespace(again, "q")
    assert again.store.pointer().visible == 2
