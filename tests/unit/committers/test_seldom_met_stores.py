"""What is seldom met with stores: other histories, servers that change, followers that have nothing to do."""

import contextlib
import os
import types
import uuid

import msgspec
import pytest

from polling import wait_until
from tidegate.committers.apply.processes import _Worker
from tidegate.committers.background.follower import follower_for, followers_of
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.store_list import remove_from_list
from tidegate.committers.operations.verify import verify
from tidegate.committers.pipeline import PipelineThread
from tidegate.committers.repair.compare_rows import KEYS_NAMED
from tidegate.committers.steps.facts import known_facts
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import (
    CorruptError,
    SnapshotExpiredError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    WalGapError,
)
from tidegate.options import Endpoints, Options, StoreRef
from tidegate.sinks.capabilities import SupportsApplyAndSeal
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.store.harness import ManualClock
from tidegate.wal.memory_log import MemoryLog

DEADLINE_S = 60.0


@pytest.fixture
def place():
    return uuid.uuid4().hex


def driver_at(place, kind=MemoryStore, names=("a",), **options):
    stores = [
        StoreRef(name, f"memory://{place}{'-' + name if number else ''}") for number, name in enumerate(names)
    ]
    where = Endpoints.of("n", f"memory://{place}", stores)
    options = Options(**{"key_groups": 4, "apply_deadline_s": 20.0} | options)
    return Coordinator(where, MemoryLog(place, "n"), kind(place, "n"), options, ManualClock())


def barrier_of(driver, batch_id):
    rows = {"t": {b"%d" % key: b"%d" % batch_id for key in range(40)}}
    return ArrowBarrier(driver.log, rows, batch("q", batch_id), 4)


def opened(place, versions=1, **options):
    driver = driver_at(place, **options)
    open_namespace(driver, "q")
    for batch_id in range(versions):
        commit(driver, barrier_of(driver, batch_id))
    return driver


def fails(error):
    def call(*_, **__):
        raise error

    return call


# -- histories that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"visible": 3}, "version 3 is visible, the log ends at version 2"),
        ({"digest": "another"}, "version 2 has digest another in the store"),
    ],
)
def test_a_store_that_shows_what_was_never_decided_is_not_opened_i10(place, changed, words):
    driver = opened(place, 2)
    space = driver.store._space
    space.pointer = msgspec.structs.replace(space.pointer, **changed)
    before = list(driver.log.decisions())
    with pytest.raises(WalGapError, match=words):
        open_namespace(driver_at(place), "q")
    assert list(driver.log.decisions()) == before
    assert verify(driver.log, driver.store).findings


def test_many_wrong_rows_of_a_run_are_counted_and_some_are_named(place):
    driver = opened(place, 2)
    for of_group in driver.store._space.rows.values():
        for of_key in of_group.values():
            of_key[2] = b"+wrong"
    found = verify(driver.log, driver.store).findings
    assert any(f"others, {KEYS_NAMED} of them named" in finding.found for finding in found)


def test_rows_that_cannot_be_read_at_the_horizon_are_a_finding(place, monkeypatch):
    driver = opened(place, 2)
    driver.store.announce(1, max_lease_s=0.0, max_layers=10)
    monkeypatch.setattr(driver.store, "get_many", fails(CorruptError("damaged")))
    (finding,) = verify(driver.log, driver.store).findings
    assert (finding.expected, finding.found) == ("rows that can be read", "damaged")


def test_what_a_store_refuses_because_it_was_retired_is_no_finding(place, monkeypatch):
    driver = opened(place, 2)
    monkeypatch.setattr(driver.store, "rows_of", fails(SnapshotExpiredError("retired")))
    assert not verify(driver.log, driver.store).findings


# -- apply, seal, retire --------------------------------------------------------------------------------


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


def test_servers_that_change_at_the_deadline_are_an_error_and_decided_stays_decided(place, monkeypatch):
    driver = opened(place, 1, apply_deadline_s=1.0)

    def restarted(*_):
        driver.clock.advance(2.0)
        raise StoreNotVerifiedError("restarted")

    monkeypatch.setattr(driver.store, "seal", restarted)
    with pytest.raises(StoreNotVerifiedError, match="restarted"):
        commit(driver, barrier_of(driver, 1))
    monkeypatch.undo()
    assert open_namespace(driver_at(place), "q") == [2]


def test_nothing_is_retired_of_a_log_that_was_not_folded(place):
    driver = opened(place, 3, keep_versions=1)
    assert retire_up_to(driver.log, driver.store, None, driver.options, lambda: False, 1) == 1
    assert driver.store.pointer().horizon == 0


def test_a_stop_while_what_was_announced_is_dropped_again_says_that_it_was_not(place):
    driver = opened(place, 3, keep_versions=1)
    driver.store.announce(2, max_lease_s=0.0, max_layers=10)
    assert retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: True) == 0
    assert retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False) == 3


def test_a_store_that_is_not_listed_is_not_removed_twice(place):
    driver = opened(place)
    before = list(driver.log.decisions())
    remove_from_list(driver, "b")
    assert list(driver.log.decisions()) == before


def test_facts_that_were_trimmed_are_left_out(place):
    driver = opened(place, 3)
    state = msgspec.structs.replace(driver.folded, recent=driver.folded.recent[-1:])
    assert [fact.version for fact in known_facts(driver.log, state, 1)] == [1, 2, 3]
    driver.log.drop()
    assert [fact.version for fact in known_facts(driver.log, state, 1)] == [3]


# -- beside the batches ---------------------------------------------------------------------------------


def test_what_a_server_lost_is_put_back_while_no_batch_comes(place):
    class Restarted(MemoryStore):
        changed = False

        def unverified(self):
            return self.changed

        @contextlib.contextmanager
        def comparing(self, epoch):
            self.changed = False
            with super().comparing(epoch) as oldest:
                yield oldest

    driver = opened(place, 2, kind=Restarted)
    work = Background(driver.log, driver.store, Options(key_groups=4, heartbeat_s=0.01), lambda: driver.epoch)
    try:
        driver.store.changed = True
        wait_until(lambda: not driver.store.changed)
    finally:
        work.stop()
    assert not verify(driver.log, driver.store).findings


def test_a_process_that_exits_with_versions_in_flight_says_so(place, monkeypatch, caplog):
    driver = driver_at(place)
    open_namespace(driver, "q")
    pipeline = PipelineThread(driver)
    monkeypatch.setattr(driver.store, "apply", fails(CorruptError("damaged")))
    pipeline.commit(barrier_of(driver, 0))
    pipeline._at_exit()
    assert "the process ends with versions in flight, for the next one to recover" in caplog.text
    monkeypatch.undo()
    assert open_namespace(driver_at(place), "q") == [1]


# -- followers ------------------------------------------------------------------------------------------


def test_a_follower_of_a_driver_that_is_not_open_does_nothing(place):
    driver = driver_at(place, names=("a", "b"))
    (follower,) = followers_of(driver)
    assert (follower.step(), follower.look(), follower.beat()) == (False, False, False)
    assert follower.store.identity() is None


def test_a_command_that_cannot_bring_a_store_to_the_end_says_why(place, monkeypatch):
    """Tried a few times; nothing is raised, and a gap in the log names the way out."""
    driver = opened(place, 1, names=("a", "b"))
    (follower,) = followers_of(driver)
    tries = []

    def away(*_):
        tries.append(1)
        raise WalGapError("trimmed") if len(tries) == 1 else StoreUnavailableError("away")

    monkeypatch.setattr(follower.store, "pointer", away)
    standing = follower.catch_up()
    assert len(tries) == 3
    assert "StoreUnavailableError: away" in standing.error
    monkeypatch.undo()
    assert follower.catch_up().error == ""
    assert follower.store.pointer().visible == 1


def test_a_follower_whose_store_can_wait_for_copies_keeps_the_options(place, monkeypatch):
    driver = opened(place, wait_replicas=0)
    store = MemoryStore(uuid.uuid4().hex, "n")
    monkeypatch.setattr(store, "checks_of_confirm", lambda **_: [])
    own = follower_for(driver, StoreRef("b", store.where), store)
    assert own._coordinator.options.wait_replicas == driver.options.wait_replicas


# -- a process that applies -------------------------------------------------------------------------------


def test_a_pipe_that_is_full_or_empty_is_come_back_to():
    """A selector may wake for nothing: neither the process nor its share is given up."""
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, bytes(65_536))
        there = types.SimpleNamespace(fileno=lambda: write)
        sends = types.SimpleNamespace(stdin=there, _unsent=memoryview(b"share"))
        assert _Worker.send(sends)
        assert bytes(sends._unsent) == b"share"
    finally:
        os.close(read)
        os.close(write)
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        assert _Worker.receive(types.SimpleNamespace(stdout=types.SimpleNamespace(fileno=lambda: read)))
    finally:
        os.close(read)
        os.close(write)
