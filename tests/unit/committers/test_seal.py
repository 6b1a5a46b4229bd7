"""Apply and seal: by executors, and in a store that seals with the last rows."""

from support.places import barrier_of, opened
from tidegate.committers.apply import apply
from tidegate.committers.commit import commit
from tidegate.committers.operations.verify import verify
from tidegate.options import Options
from tidegate.sinks.capabilities import SupportsApplyAndSeal
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import ReadAt


def test_a_large_version_is_applied_by_the_executors_then_confirmed(place, monkeypatch):
    """The driver reads none of its rows, and asks the store for the copies that were asked for."""
    confirmed, tasks = [], []
    driver = opened(place, 0, driver_apply_max_changes=0)
    driver.options = Options(key_groups=4, driver_apply_max_changes=0, wait_replicas=1)
    monkeypatch.setattr(driver.store, "confirm", lambda version, **asked: confirmed.append((version, asked)))

    def on_executors(works):
        tasks.append(len(works))
        for work in works:
            apply.do(work, driver.log, driver.store)

    driver.apply_on_executors = on_executors
    commit(driver, barrier_of(driver, 0, {b"k": b"0", b"l": b"0"}))
    assert len(tasks) == 1
    assert confirmed == [(1, {"replicas": 1, "aof": False})]
    assert driver.store.get_many(ReadAt("t", 1), [b"k"]).to_pylist() == [b"0"]


class Sealing(MemoryStore, SupportsApplyAndSeal):
    """Takes the last chunks and the seal in one call."""

    def apply_and_seal(self, stamp, counts, *chunks, sets=None):
        self.apply(stamp, *chunks)
        MemoryStore.seal(self, stamp, counts)

    def seal(self, stamp, counts):
        raise AssertionError("sealed by itself")


def test_a_store_that_seals_with_the_last_rows_is_not_asked_to_seal_again(place):
    driver = opened(place, 1, kind=Sealing)
    assert driver.store.pointer().visible == 1
    assert not verify(driver.log, driver.store).findings
