"""A version that is copied stays readable for as long as that takes, and no longer."""

import uuid

import pytest

from tidegate.committers.background.pin import LEASE_S, PER_LEASE, VersionPin
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.store.harness import ManualClock
from tidegate.wal.memory_log import MemoryLog


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    """One version is visible."""
    place = uuid.uuid4().hex
    log, store = MemoryLog(place, "n", clock=clock), MemoryStore(place, "n", clock)
    driver = Coordinator(
        Endpoints("n", f"memory://{place}", f"memory://{place}"), log, store, Options(), clock
    )
    open_namespace(driver, "q")
    commit(driver, ArrowBarrier(log, {"t": {b"k": b"v"}}, batch("q", 0), driver.folded.key_groups))
    return store


def test_a_long_copy_takes_its_lease_anew_before_it_runs_out(store, clock):
    """I8: at every moment one lease holds the version; when the copy ends there is none."""
    held = VersionPin(store, 1, clock)
    taken = set()
    for _ in range(3 * PER_LEASE):
        (lease,) = store.leases()
        taken.add(lease.lease_id)
        assert lease.version == 1
        clock.advance(LEASE_S / PER_LEASE)
        held.keep()
    assert len(taken) == 3 * PER_LEASE
    held.give_back()
    assert not store.leases()
