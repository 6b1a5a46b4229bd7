"""Rows below the horizon that a store lost: what a repair does where it cannot simply write them again."""

import uuid

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.repair.below_horizon import repair_all
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import IncompleteError, StoreNotVerifiedError
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory import store
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal import memory_log
from tidegate.wal.memory_log import MemoryLog

OPTIONS = Options(key_groups=2, keep_versions=1)


@pytest.fixture
def driver():
    """Three versions of one key each; the last is visible, and the horizon."""
    name = uuid.uuid4().hex
    driver = Coordinator(
        Endpoints("n", f"memory://{name}", f"memory://{name}"),
        MemoryLog(name, "n"),
        MemoryStore(name, "n"),
        OPTIONS,
    )
    open_namespace(driver, "q")
    for number in range(3):
        write(driver, number)
    retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
    yield driver
    store.forget(name)
    memory_log.forget(name)


def write(driver, number):
    rows = {"t": {b"k%d" % number: b"v%d" % number}}
    commit(driver, ArrowBarrier(driver.log, rows, batch("q", number), 2))


def lose(driver):
    for rows in driver.store._space.rows.values():
        rows.clear()


def got(driver):
    at = driver.store.pointer().visible
    return driver.store.get_many(ReadAt("t", at), [b"k0", b"k1", b"k2"]).to_pylist()


def test_a_row_that_does_not_stay_is_an_error_and_nothing_is_passed_over(driver, monkeypatch):
    lose(driver)
    monkeypatch.setattr(driver.store, "rewrite", lambda *_: None)
    with pytest.raises(IncompleteError, match="1 rows of version 3 in key group") as met:
        repair_all(driver)
    assert "`tidegate drop --only-stores" in str(met.value)


def test_a_horizon_that_moves_on_meanwhile_is_to_be_repeated(driver, monkeypatch):
    lose(driver)
    rewrite = driver.store.rewrite

    def late(stamp, runs):
        write(driver, 3)
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
        rewrite(stamp, runs)

    monkeypatch.setattr(driver.store, "rewrite", late)
    with pytest.raises(StoreNotVerifiedError, match="version 3 was retired during the repair; repeat it"):
        repair_all(driver)
    monkeypatch.undo()
    assert [one.version for one in repair_all(driver).put_back] == [1, 2, 3]
    assert got(driver) == [b"v0", b"v1", b"v2"]


def test_keys_are_compared_in_several_passes_where_they_are_many(driver, monkeypatch):
    monkeypatch.setattr("tidegate.committers.repair.compare_rows.KEYS_PER_PASS", 1)
    lose(driver)
    assert [one.version for one in repair_all(driver).put_back] == [1, 2, 3]
    assert got(driver) == [b"v0", b"v1", b"v2"]
    assert repair_all(driver).put_back == []


def test_a_schema_that_was_lost_is_back(driver):
    schemas = driver.store.schemas()
    driver.store._space.schemas.clear()
    assert repair_all(driver).put_back == []
    assert driver.store.schemas() == schemas


def test_a_deleted_key_that_came_back_is_hidden_again(driver):
    """A store whose delete was lost, while the row that it hid was not."""
    commit(driver, ArrowBarrier(driver.log, {"t": {b"k0": None}}, batch("q", 3), 2))
    retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
    driver.store._space.rows["t", key_group(b"k0", 2)][b"k0"] = {1: b"+v0"}
    assert got(driver) == [b"v0", b"v1", b"v2"]
    assert [one.version for one in repair_all(driver).put_back] == [4]
    assert got(driver) == [None, b"v1", b"v2"]
    driver.store.vacuum()
    assert got(driver) == [None, b"v1", b"v2"]
