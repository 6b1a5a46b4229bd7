"""Retirement: announce, look, delete; what a lease holds and for how long; what a late one may do."""

import threading
import uuid

import pytest

from support.places import opened
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.committers.background import worker
from tidegate.committers.background.worker import Background
from tidegate.committers.steps.decided_versions import RetirementBacklog, decided_versions
from tidegate.committers.steps.retire import LOOK_AT_ONCE, _drop_expired, kept_by, retire_up_to
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError
from tidegate.options import Options
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease
from tidegate.testing.example import Example
from tidegate.testing.store.harness import ManualClock
from tidegate.wal import fold, memory_log

KEEP_ONE = Options(key_groups=2, keep_versions=1)
DEADLINE_S = 30.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def writer(request, tmp_path, clock):
    """A writer of small versions; its store's clock is the test's."""
    name = uuid.uuid4().hex
    url = f"memory://{name}" if request.param == "memory" else f"sqlite://{tmp_path}/store"
    example = Example(f"memory://{name}", url, options=KEEP_ONE, clock=clock)
    yield example
    example.close()
    memory_store.forget(name)
    memory_log.forget(name)


def write(writer, count=1):
    for _ in range(count):
        last = writer.driver.folded.last_version
        writer.write({"airports": {"EWR": {"departures": last, "delay": 0.0}}})


def retire(writer, options=KEEP_ONE, stopped=lambda: False, dropped=0):
    driver = writer.driver
    return retire_up_to(driver.log, driver.store, driver.folded, options, stopped, dropped)


def horizon(writer):
    return writer.driver.store.pointer().horizon


def rows_at(writer, table, key, versions):
    """Which of these versions have a row of the key."""
    found = {v: writer.driver.store.rows_of(ReadAt(table, v), [key])[0].as_py() for v in versions}
    return [version for version, value in found.items() if value is not None]


def test_whoever_has_not_folded_a_version_does_not_announce_it(writer):
    """Found by the simulation: a driver that was replaced announced what it could not drop, so nobody did."""
    write(writer, 2)
    stale, driver = writer.driver.folded, writer.driver
    for number in range(3):
        writer.write({"airports": {"EWR": None if number % 2 else {"departures": number, "delay": 0.0}}})
    dropped = retire_up_to(driver.log, driver.store, stale, KEEP_ONE, lambda: False)
    assert (dropped, driver.store.pointer().horizon) == (2, 2)
    assert retire(writer) == 5
    assert driver.store.vacuum(dry_run=True).rows == 0


def test_what_another_announced_beyond_the_own_fold_is_dropped_when_it_is_folded(writer):
    write(writer, 2)
    stale, driver = writer.driver.folded, writer.driver
    write(writer, 3)
    driver.store.announce(4)  # and died before it dropped anything of version 4
    dropped = retire_up_to(driver.log, driver.store, stale, KEEP_ONE, lambda: False)
    assert dropped == 2
    assert retire(writer, dropped=dropped) == 5
    assert driver.store.vacuum(dry_run=True).rows == 0


def test_the_horizon_follows_keep_versions_and_what_is_below_goes(writer):
    write(writer, 5)
    assert retire(writer, Options(keep_versions=3)) == 3 == horizon(writer)
    assert rows_at(writer, "airports", b"EWR", range(1, 6)) == [3, 4, 5]
    assert [entry.version for entry in writer.driver.store.catalog()] == [3, 4, 5]
    assert retire(writer, Options(keep_versions=3)) == 3
    assert retire(writer, Options(keep_versions=10)) == 3  # never down


def test_a_table_emptied_by_a_version_without_changes_loses_its_rows(writer):
    """Nothing of the version's own is there to drive the retirement: it has to be called all the same."""
    write(writer)
    writer.write({"airports": {}}, frozenset(["airports"]))
    write(writer)
    assert retire(writer) == 3
    assert rows_at(writer, "airports", b"EWR", range(1, 4)) == [3]
    write(writer)
    writer.write({"airports": {}}, frozenset(["airports"]))
    assert retire(writer) == 5
    assert rows_at(writer, "airports", b"EWR", range(1, 6)) == []


def test_versions_older_than_the_fold_keeps_are_retired_too(writer, monkeypatch):
    """keep_versions may be larger than the number of facts that the fold keeps."""
    monkeypatch.setattr(fold, "RECENT_MAX", 3)
    write(writer, 9)
    state = writer.driver.folded
    assert len(state.recent) == 3
    for first in range(11):
        expected = list(range(max(first, 1), 10))
        assert [fact.version for fact in decided_versions(writer.driver.log, state, first)] == expected
    assert retire(writer, Options(keep_versions=6)) == 4
    assert rows_at(writer, "airports", b"EWR", range(1, 10)) == [4, 5, 6, 7, 8, 9]


# -- leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_lease_s": 100}, {"max_layers": 3}])
def test_a_lease_holds_as_long_and_as_many_as_the_options_say(writer, clock, limits):
    """However often it is renewed. It is let go at once, not one version at a time."""
    options, store = Options(keep_versions=1, **limits), writer.driver.store
    write(writer)
    for version in (2, 3, 4):
        store.lease(Lease("reader", 1), 60)
        write(writer)
        clock.advance(30)
        assert retire(writer, options) == 1, version
    write(writer)
    store.lease(Lease("reader", 1), 60)
    clock.advance(11)
    assert retire(writer, options) == 5
    with pytest.raises(SnapshotExpiredError):
        store.lease(Lease("reader", 1), 60)
    with pytest.raises(SnapshotExpiredError):
        store.get_many(ReadAt("airports", 1), [b"EWR"])
    assert store.leases() == []


def test_what_is_kept_is_the_stores_default_unless_given(writer):
    store = writer.driver.store
    assert kept_by(store, Options()) == (100, 1_100)
    assert kept_by(store, Options(keep_versions=7)) == (7, 1_007)
    assert kept_by(store, Options(keep_versions=7, max_layers=9)) == (7, 9)


# -- interrupted, and late ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["retire.after_announce", "retire.after_group"])
def test_t39_a_retirement_cut_short_is_finished_by_the_next(writer, place):
    write(writer, 3)
    failpoints.arm(f"{place}=raise@2")
    try:
        with pytest.raises(failpoints.FailpointError):
            retire(writer)
    finally:
        failpoints.arm(None)
    assert 0 < horizon(writer) < 3
    for version in range(horizon(writer), 4):
        assert writer.driver.store.get_many(ReadAt("airports", version), [b"EWR"])[0].is_valid
    assert retire(writer) == 3
    assert rows_at(writer, "airports", b"EWR", range(1, 4)) == [3]


def test_a_stop_ends_it_between_two_chunks_and_says_how_far_it_got(writer):
    write(writer, 4)
    asked = iter([False, True])
    assert retire(writer, stopped=lambda: next(asked)) == 0
    assert horizon(writer) == 1
    assert retire(writer) == 4
    assert rows_at(writer, "airports", b"EWR", range(1, 5)) == [4]


def test_what_was_dropped_is_not_read_again(writer, monkeypatch):
    """I11: with every version one version is dropped, not two."""
    write(writer, 3)
    done = retire(writer)
    write(writer)
    seen, plain = [], type(writer.driver.store).retire
    monkeypatch.setattr(
        type(writer.driver.store),
        "retire",
        lambda store, stamp, *changes: (seen.append(stamp.version), plain(store, stamp, *changes)),
    )
    assert retire(writer, dropped=done) == 4
    assert seen == [4]
    retire(writer)  # another driver: who announced 4 may have died before dropping
    assert seen == [4, 4]


# -- in the background -----------------------------------------------------------------------------------


def background_of(writer, options=KEEP_ONE):
    driver = writer.driver
    return Background(driver.log, driver.store, options, lambda: driver.epoch)


def test_what_ends_with_its_version_retires_the_older_ones_first(writer):
    """Loads ended before the first turn of the thread that retires: each left the rows that it replaced."""
    for _ in range(3):
        background = background_of(writer)
        write(writer)
        background.published()
        background.drain(DEADLINE_S)
        assert horizon(writer) == writer.driver.folded.last_version
    assert writer.driver.store.vacuum(dry_run=True).rows == 0
    background.drain(DEADLINE_S)  # it has ended


def test_a_process_that_ends_retires_first(writer):
    """A job of one batch an hour, which ends with it, never cut its log."""
    write(writer, 2)
    background = background_of(writer)
    background.published()
    background._at_exit()
    assert (horizon(writer), background.ended) == (2, True)
    background.stop()


def test_a_drain_ends_at_its_deadline(writer, monkeypatch):
    monkeypatch.setattr(
        worker, "retire_up_to", lambda *given: wait_until(given[4], "it is stopped", DEADLINE_S)
    )
    background = background_of(writer)
    write(writer)
    background.published()
    background.drain(0.01)
    assert (horizon(writer), background.ended) == (0, True)


def test_a_retirement_that_hangs_holds_up_no_batch(writer, monkeypatch):
    store, entered, go_on = type(writer.driver.store), threading.Event(), threading.Event()
    plain = store.announce

    def hangs(self, *args, **limits):
        entered.set()
        assert go_on.wait(DEADLINE_S)
        return plain(self, *args, **limits)

    monkeypatch.setattr(store, "announce", hangs)
    background = background_of(writer)
    try:
        write(writer, 2)
        background.published()
        assert entered.wait(DEADLINE_S)
        for _ in range(3):  # batches come and go; it has not moved
            write(writer)
            background.published()
        assert writer.driver.store.pointer().visible == 5
        assert not background.ended
    finally:
        go_on.set()
        background.stop()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"tidegate-heartbeat", "tidegate-measure", "tidegate-retire_and_trim"}


def test_a_stop_ends_a_retirement_on_its_way(writer, monkeypatch):
    """A large merge takes minutes: who closes does not wait for it."""
    entered, ended = threading.Event(), []

    def long(self, stamp, counts, changes, stopped):
        entered.set()
        wait_until(stopped)
        ended.append(stamp.version)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(type(writer.driver.store), "retire", long)
        background = background_of(writer)
        write(writer, 3)
        background.published()
        assert entered.wait(DEADLINE_S)
        background.stop()
    assert ended == [1]
    assert retire(writer) == 3  # the next one goes on from there
    assert rows_at(writer, "airports", b"EWR", range(1, 4)) == [3]
    assert writer.driver.store.vacuum(dry_run=True).rows == 0


def test_a_store_that_is_away_only_puts_retirement_off(writer, monkeypatch, caplog):
    store = type(writer.driver.store)
    tried = threading.Event()

    def away(*_, **__):
        tried.set()
        raise StoreUnavailableError("away")

    background = background_of(writer)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(store, "announce", away)
            write(writer, 2)
            background.published()
            assert tried.wait(DEADLINE_S)
            wait_until(lambda: "failed, tried again" in caplog.text)
        background.published()
        wait_until(lambda: horizon(writer) == 2)
    finally:
        background.stop()


def test_a_version_whose_changes_are_lost_does_not_stop_the_line(writer, caplog):
    """I11: what it replaced stays until a vacuum; all after it are dropped as ever."""
    write(writer, 5)
    driver = writer.driver
    lost = driver.folded.recent[2]
    segments = memory_log._contents[
        driver.endpoints.wal.removeprefix("memory://"), driver.endpoints.namespace
    ].segments
    for name in [name for name in segments if name.startswith(lost.attempt)]:
        del segments[name]
    assert retire(writer) == 5 == horizon(writer)
    assert "version 3 is retired, but not dropped" in caplog.text
    left = rows_at(writer, "airports", b"EWR", range(1, 6))
    assert left == [5]  # version 5 has replaced all before it, also what version 3 would have dropped
    assert driver.store.vacuum().rows == 0


# -- stopped, or without a fold ------------------------------------------------------------------------


def test_a_stop_ends_the_look_for_expired_rows_between_two_pieces(place, monkeypatch):
    driver, looked = opened(place), []
    monkeypatch.setattr(driver.store, "drop_expired", looked.append)
    _drop_expired(driver.store, 10 * LOOK_AT_ONCE, lambda: True)
    assert looked == [LOOK_AT_ONCE]


def test_nothing_is_retired_of_a_log_that_was_not_folded(place):
    driver = opened(place, 3, keep_versions=1)
    assert retire_up_to(driver.log, driver.store, None, driver.options, lambda: False, 1) == 1
    assert driver.store.pointer().horizon == 0


def test_a_stop_while_what_was_announced_is_dropped_again_says_that_it_was_not(place):
    driver = opened(place, 3, keep_versions=1)
    driver.store.announce(2, max_lease_s=0.0, max_layers=10)
    assert retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: True) == 0
    assert retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False) == 3


def test_retirement_far_behind_reads_the_log_once(writer, monkeypatch):
    """Versions that the fold no longer keeps are kept until they are dropped, not read again for each."""
    monkeypatch.setattr(fold, "RECENT_MAX", 3)
    reads = []
    decisions = type(writer.driver.log).decisions

    def counted(log, position=0):
        reads.append(position)
        return decisions(log, position)

    backlog, options = RetirementBacklog(writer.driver.log), Options(key_groups=2, keep_versions=8)
    write(writer, 10)
    driver, dropped = writer.driver, 0
    monkeypatch.setattr(type(writer.driver.log), "decisions", counted)
    for _ in range(12):
        write(writer)
        reads.clear()
        dropped = retire_up_to(
            driver.log, driver.store, driver.folded, options, lambda: False, dropped, backlog=backlog
        )
        assert horizon(writer) == dropped == driver.last_decided - 7
        assert reads == [] or dropped == 4, "the log was read for one more version"
