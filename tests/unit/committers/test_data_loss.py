"""A store whose server restarted without its last writes, in the middle of a commit: put back first (I4, I7).

The store is the reference with a memory that can lose. Real servers do the same in ``tests/services``.
"""

import contextlib

import msgspec
import pytest

from support import places
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.recover import recover
from tidegate.committers.repair.repair import repair
from tidegate.errors import IncompleteError, StoreNotVerifiedError
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.store.harness import ManualClock

KEYS = [b"k%d" % number for number in range(12)]


class Restarting(MemoryStore):
    """Its server may restart without what it acknowledged; until it was compared nothing is done there."""

    changed = False
    before_seal = before_listing = staticmethod(lambda: None)

    def lose(self, *versions, visible=None):
        """These versions' rows and seals; with ``visible`` the pointer is an older one, too."""
        space, self.changed = self._space, True
        for rows in space.rows.values():
            for of_key in rows.values():
                for version in versions:
                    of_key.pop(version, None)
        space.sealed = {(group, version) for group, version in space.sealed if version not in versions}
        for at in [at for at in space.applied if at[1] in versions]:
            del space.applied[at]
        if visible is not None:
            digest = space.catalog[visible].digest
            space.pointer = msgspec.structs.replace(space.pointer, visible=visible, digest=digest)

    def unverified(self):
        return self.changed

    @contextlib.contextmanager
    def comparing(self, epoch):
        self.changed = False
        with super().comparing(epoch) as oldest:
            yield oldest
            self.before_listing()
            self._refuse()

    def seal(self, stamp, counts):
        self.before_seal()
        self._refuse()
        super().seal(stamp, counts)

    def _refuse(self):
        if self.changed:
            raise StoreNotVerifiedError(f"{self.where}: its server restarted")


class Once:
    """Does something the first time that it is called after it was set."""

    def __init__(self, does):
        self.does = does

    def __call__(self):
        does, self.does = self.does, lambda: None
        does()


def driver_at(place, **options):
    return places.driver_at(place, Restarting, **options)


def reopened(place):
    """A driver that starts anew, and finds that its server has restarted."""
    driver = driver_at(place)
    driver.store.changed = True
    return driver


def write(driver, batch_id):
    rows = {"t": dict.fromkeys(KEYS[batch_id:], b"%d" % batch_id)}
    return commit(driver, ArrowBarrier(driver.log, rows, batch("q", batch_id), 4))


def opened(place, batches=2, **options):
    driver = driver_at(place, **options)
    open_namespace(driver, "q")
    for batch_id in range(batches):
        write(driver, batch_id)
    return driver


def check(store, visible):
    """Every version whole, each with its own rows."""
    assert (store.pointer().visible, store.unverified()) == (visible, False)
    for version in range(1, visible + 1):
        found = {}
        for group in range(4):
            for rows in store.scan(ReadAt("t", version), group):
                found.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert found == {key: b"%d" % min(at, version - 1) for at, key in enumerate(KEYS)}


@pytest.mark.parametrize("lost", [(2,), (1, 2), ()])
def test_what_is_lost_is_put_back_before_the_next_version_becomes_visible(place, lost):
    driver = opened(place)
    driver.store.before_seal = Once(lambda: driver.store.lose(*lost))
    write(driver, 2)
    check(driver.store, 3)


def test_the_pointers_own_server_showed_an_older_version(place):
    """The versions between are published again, in order, before the one on its way."""
    driver = opened(place, 3)
    driver.store.before_seal = Once(lambda: driver.store.lose(2, 3, visible=1))
    write(driver, 3)
    check(driver.store, 4)


def test_servers_that_change_again_are_compared_again(place):
    driver = opened(place)
    driver.store.before_listing = Once(lambda: driver.store.lose(1))
    driver.store.before_seal = Once(lambda: driver.store.lose(2))
    write(driver, 2)
    check(driver.store, 3)


def test_servers_that_never_stay_are_an_error_and_decided_stays_decided(place):
    driver = opened(place, apply_deadline_s=0.2)
    driver.store.before_seal = driver.store.before_listing = lambda: driver.store.lose(2)
    with pytest.raises(StoreNotVerifiedError):
        write(driver, 2)
    assert driver.folded.last_version == 3
    restarted = reopened(place)
    open_namespace(restarted, "q")
    check(restarted.store, 3)


def test_a_driver_that_starts_repairs_first(place):
    opened(place).store.lose(2)
    driver = reopened(place)
    open_namespace(driver, "q")
    recover(driver)
    check(driver.store, 2)


def test_repair_says_what_it_put_back(place):
    driver = opened(place)
    driver.store.lose(2)
    mended = repair(driver)
    assert [one.version for one in mended] == [2]
    assert repair(driver) == []
    check(driver.store, 2)


def test_a_version_that_is_not_whole_after_it_was_applied_again_is_not_listed(place, monkeypatch):
    driver = opened(place)
    driver.store.lose(2)
    monkeypatch.setattr(driver.store, "apply", lambda *_: None)
    monkeypatch.setattr(driver.store, "seal", lambda *_: None)
    with pytest.raises(IncompleteError, match="applied again, and still is not whole"):
        repair(driver)


def test_servers_that_change_at_the_deadline_are_an_error_and_decided_stays_decided(place, monkeypatch):
    driver = opened(place, 1, apply_deadline_s=1.0, clock=ManualClock())

    def restarted(*_):
        driver.clock.advance(2.0)
        raise StoreNotVerifiedError("restarted")

    monkeypatch.setattr(driver.store, "seal", restarted)
    with pytest.raises(StoreNotVerifiedError, match="restarted"):
        write(driver, 1)
    monkeypatch.undo()
    assert open_namespace(driver_at(place), "q") == [2]
