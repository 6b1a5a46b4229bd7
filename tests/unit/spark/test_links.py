"""Which caches of state the tasks of the next batch are told to take: those of the last version, or none."""

import uuid

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import WalUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.spark.staging.links import LOOK_BACK, StateLinks
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog


@pytest.fixture
def driver():
    place = uuid.uuid4().hex
    return opened(place)


def opened(place):
    log, store = MemoryLog(place, "n"), MemoryStore(place, "n")
    where = Endpoints("n", f"memory://{place}", f"memory://{place}")
    driver = Coordinator(where, log, store, Options(key_groups=4))
    open_namespace(driver, "q")
    return driver


def write(driver, batch_id, rows):
    return commit(driver, ArrowBarrier(driver.log, {"t": rows}, batch("q", batch_id), 4))


def test_a_driver_that_starts_reads_the_links_from_the_log(driver):
    """They are the ones that the driver before it made from what it had in memory."""
    assert StateLinks(driver).at_last().links == ()
    write(driver, 0, {b"k": b"v"})
    links = StateLinks(driver).at_last()
    assert links
    again = opened(driver.endpoints.wal.removeprefix("memory://"))
    again.last_manifest = None
    assert StateLinks(again).at_last() == links


def test_links_go_on_over_versions_without_a_change_but_not_over_many(driver):
    links = StateLinks(driver)
    write(driver, 0, {b"k": b"v"})
    first = set(links.at_last().links)
    for batch_id in range(1, LOOK_BACK):
        write(driver, batch_id, {})
        assert first <= set(links.at_last().links)
        assert first <= set(StateLinks(driver).at_last().links)
    write(driver, LOOK_BACK, {})
    assert not first & set(StateLinks(driver).at_last().links)
    assert first <= set(links.at_last().links)  # it need not look: it knows those of the version before


def test_a_manifest_that_cannot_be_read_is_no_link_and_no_error(driver, monkeypatch, caplog):
    """I1: a cache that may not hold is not taken; the state is read from the store."""
    write(driver, 0, {b"k": b"v"})
    driver.last_manifest = None

    def silent(_):
        raise WalUnavailableError("no answer")

    monkeypatch.setattr(driver.log, "read", silent)
    links = StateLinks(driver)
    assert links.at_last().links == ()
    assert "caches of state start empty at version 1: no answer" in caplog.text
    monkeypatch.undo()
    assert links.at_last().links == ()  # told once for a version
    write(driver, 1, {b"k": b"w"})
    assert links.at_last().links
