"""The flip, when its answer is a No or none: read back, and what is found is told (publish rules 2 to 5)."""

import uuid

import msgspec
import pytest

from tidegate.committers.background.membership import add_store
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.restore import restore
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError, TidegateError, WalGapError
from tidegate.options import Endpoints, Options, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import LoadOrigin


def driver_at(place, namespace="n", **options):
    log, store = MemoryLog(place, namespace), MemoryStore(place, namespace)
    where = Endpoints.of(namespace, f"memory://{place}", [StoreRef("a", f"memory://{place}")])
    return Coordinator(where, log, store, Options(**{"key_groups": 4, "apply_deadline_s": 20.0} | options))


def write(driver, origin):
    return commit(driver, ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, origin, 4))


@pytest.fixture
def driver():
    """One version is visible."""
    driver = driver_at(uuid.uuid4().hex)
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


# -- what is refused before anything is appended ------------------------------------------------------


def appended_nothing(driver, call, error, words):
    before = [entry.content for entry in driver.log.decisions()]
    with pytest.raises(error, match=words):
        call()
    assert [entry.content for entry in driver.log.decisions()] == before


def test_a_driver_without_a_log_says_how_to_make_one():
    with pytest.raises(TidegateError, match=r"namespace n has no log yet at .*tidegate init"):
        _ = driver_at(uuid.uuid4().hex).folded


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
    class Unfillable(MemoryStore):
        can_be_filled = False

    at = StoreRef("b", f"memory://{uuid.uuid4().hex}")
    store = Unfillable(at.url.removeprefix("memory://"), "n")
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    words = "cannot be filled from another one, and .* does not reach back to version 1"
    appended_nothing(driver, lambda: add_store(driver, at, store), ConfigError, words)


def test_a_namespace_that_follows_no_query_replays_nothing():
    driver = driver_at(uuid.uuid4().hex)
    open_namespace(driver, None)
    write(driver, LoadOrigin("once"))
    words = "follows no query, so there is nothing to replay: leave --reprocess out"
    appended_nothing(driver, lambda: restore(driver, 1, reprocess=True), ConfigError, words)
