"""Leases of a gate: renewed while held, refused locally in time, given back, left alone by children."""

import contextlib
import gc
import os
import sqlite3
import threading
import time

import pytest

import tidegate
from support.clocks import HandClock
from support.wait import wait_until
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreUnavailableError, VersionRegressedError
from tidegate.options import Options
from tidegate.reader.leases.active import Asked
from tidegate.sinks.sqlite.disk.tables import META_FILE
from tidegate.testing.example import Example


@pytest.fixture(autouse=True)
def others():
    """Lease threads of gates that earlier tests left open; each ends when its leases run out."""
    OTHERS.clear()
    OTHERS.update(lease_threads())


OTHERS = set()


def lease_threads():
    named = [thread for thread in threading.enumerate() if thread.name == "tidegate-leases"]
    return [thread for thread in named if thread not in OTHERS]


@pytest.fixture
def clock():
    clock = HandClock()
    clock.sleep = time.sleep  # pauses of the writer do not age leases
    return clock


@pytest.fixture
def writer(tmp_path, clock):
    options = Options(key_groups=2, keep_versions=1)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=options, clock=clock)
    write(example, 2)
    yield example
    example.close()


@pytest.fixture
def gate(writer, clock):
    """Renews by hand: its thread waits in real time, and on a slow machine would renew beside the test."""
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights", clock=clock) as gate:
        gate._reader.leases._run = Asked.end
        yield gate


def write(writer, count=1):
    for _ in range(count):
        last = writer.driver.folded.last_version
        writer.write({"airports": {"EWR": {"departures": last + 1, "delay": 0.0}}})


def retire(writer, **limits):
    driver = writer.driver
    options = Options(keep_versions=1, **limits)
    return retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)


def departures(snapshot):
    return snapshot.table("airports").get("EWR")["departures"]


def test_a_snapshot_is_renewed_for_as_long_as_it_is_held(writer, gate, clock):
    with gate.snapshot(lease_s=30) as snapshot:
        for _ in range(20):
            clock.seconds += 10
            gate._reader.leases.renew_due()
            write(writer)
            assert retire(writer) == 2
            assert departures(snapshot) == 2
        (info,) = writer.driver.store.leases()
        assert (info.version, info.age_s) == (2, 200)
    assert writer.driver.store.leases() == []
    assert retire(writer) == 22


def test_the_thread_renews_by_itself_and_ends_with_the_last_snapshot(writer, clock, monkeypatch):
    """Here the time is real: a short lease is renewed while it is held."""
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights") as gate:
        renewed, plain = [], gate._reader.store.lease
        monkeypatch.setattr(
            gate._reader.store, "lease", lambda lease, ttl_s: (renewed.append(lease), plain(lease, ttl_s))
        )
        with gate.snapshot(lease_s=3) as snapshot:
            assert len(lease_threads()) == 1
            assert lease_threads()[0].daemon
            with gate.snapshot(lease_s=3):
                assert len(lease_threads()) == 1  # one for all of a gate's
            wait_until(lambda: renewed.count(snapshot._hold.active.lease) >= 3)
        wait_until(lambda: not lease_threads())
        with gate.snapshot():
            assert len(lease_threads()) == 1
    assert lease_threads() == []


def test_threads_of_interrupted_starts_take_no_wake_from_the_one_that_renews(writer, monkeypatch):
    """Greenlets whose starts of the thread were cut short: several ran, and a wake ended one, for nothing."""
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights") as gate, gate.snapshot():
        keeper = gate._reader.leases
        for _ in range(5):  # nobody waits for any of these
            started = Asked()
            keeper._begin_thread(started)
            assert started.wait(30)
        renewed, plain = [], gate._reader.store.lease
        monkeypatch.setattr(
            gate._reader.store, "lease", lambda lease, ttl_s: (renewed.append(lease), plain(lease, ttl_s))
        )
        with gate.snapshot(lease_s=3) as snapshot:
            wait_until(lambda: renewed.count(snapshot._hold.active.lease) >= 3, deadline_s=20)
            assert departures(snapshot) == 2


@pytest.fixture
def renewals(monkeypatch):
    """Count, per lease of a gate, how often it was taken or renewed."""

    def of(gate):
        leases, plain = [], gate._reader.store.lease
        monkeypatch.setattr(
            gate._reader.store, "lease", lambda lease, ttl_s: (leases.append(lease), plain(lease, ttl_s))
        )
        return lambda snapshot: leases.count(snapshot._hold.active.lease)

    return of


class OfEndedHub:
    """What a thread sleeps by under gevent, if it was started in a native thread that has ended since."""

    def __init__(self):
        self.real, self.sleeps, self.end = threading.Lock(), 0, threading.Event()
        self.real.acquire()

    def acquire(self, timeout):
        self.sleeps += 1
        return self.end.wait(60) if self.sleeps == 1 else self.real.acquire(timeout=timeout)

    def release(self):
        self.real.release()


def test_a_thread_that_sleeps_on_after_its_time_is_replaced_and_not_waited_for(writer, renewals):
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights") as gate:
        keeper, counted = gate._reader.leases, renewals(gate)
        keeper._asleep = hub = OfEndedHub()
        with contextlib.suppress(SnapshotExpiredError), gate.snapshot(lease_s=3):
            wait_until(keeper._is_stuck)
            with gate.snapshot(lease_s=3.5) as snapshot:
                wait_until(lambda: counted(snapshot) >= 3, deadline_s=20)
                assert departures(snapshot) == 2
        hub.end.set()


def test_a_lease_that_is_taken_while_the_thread_computes_its_sleep_is_renewed(writer, renewals, monkeypatch):
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights") as gate:
        keeper, counted, calls, short = gate._reader.leases, renewals(gate), [], []
        plain = keeper._alive

        def slow():
            alive = plain()
            calls.append(len(alive))
            if len(calls) == 2:  # the first one is of what is due
                taking = threading.Thread(target=lambda: short.append(gate.snapshot(lease_s=3)))
                taking.start()
                taking.join(20)
            return alive

        monkeypatch.setattr(keeper, "_alive", slow)
        with gate.snapshot(lease_s=300):
            wait_until(lambda: short)
            with short[0] as snapshot:
                wait_until(lambda: counted(snapshot) >= 3, deadline_s=20)


def test_an_error_that_nobody_foresaw_does_not_end_the_thread(writer, monkeypatch, caplog):
    with tidegate.connect(writer.driver.endpoints.store, namespace="flights") as gate:
        errors, plain, renewed = iter([ValueError("a bug")]), gate._reader.store.lease, []

        def lease(lease, ttl_s):
            for error in errors:
                raise error
            renewed.append(lease)
            return plain(lease, ttl_s)

        with gate.snapshot(lease_s=3):
            monkeypatch.setattr(gate._reader.store, "lease", lease)
            wait_until(lambda: renewed)
    assert "was not renewed: a bug" in caplog.text


def test_close_gives_leases_back_and_ends_the_thread(writer, clock):
    gate = tidegate.connect(writer.driver.endpoints.store, namespace="flights", clock=clock)
    snapshot = gate.snapshot()
    scan = gate.table("airports").scan()
    assert next(scan)
    assert len(writer.driver.store.leases()) == 1  # they share it
    gate.close()
    assert lease_threads() == []
    assert writer.driver.store.leases() == []
    with pytest.raises(ConfigError, match="closed"):
        snapshot.table("airports")
    snapshot.close()
    scan.close()


def test_i8_a_reader_refuses_by_its_own_clock_and_stays_refused(writer, gate, clock):
    with gate.snapshot(lease_s=30) as snapshot:
        scan = snapshot.table("airports").scan()
        clock.seconds = 29.9
        assert departures(snapshot) == 2
        clock.seconds = 30
        for ask in (lambda: departures(snapshot), lambda: list(scan), lambda: snapshot.table("airports")):
            with pytest.raises(SnapshotExpiredError, match="lease of this snapshot on version 2 has run out"):
                ask()
        gate._reader.leases.renew_due()  # too late: it would answer again, and had refused
        with pytest.raises(SnapshotExpiredError, match="has run out"):
            departures(snapshot)


def test_i8_a_renewal_that_is_granted_behind_a_refusal_does_not_take_it_back(
    writer, gate, clock, monkeypatch
):
    """It was asked for in time, and the answer came after a read had been refused."""
    plain = gate._reader.store.lease

    def slowly(lease, ttl_s):
        plain(lease, ttl_s)
        clock.seconds = 31
        with pytest.raises(SnapshotExpiredError, match="has run out"):
            departures(snapshot)

    with gate.snapshot(lease_s=30) as snapshot:
        clock.seconds = 29
        monkeypatch.setattr(gate._reader.store, "lease", slowly)
        gate._reader.leases.renew_due()
        with pytest.raises(SnapshotExpiredError, match="has run out"):
            departures(snapshot)


def test_a_lost_renewal_reply_is_harmless(writer, gate, clock, monkeypatch):
    """T25: it took effect or not; the deadline does not move, and the same is sent again."""
    plain = type(gate._reader.store).lease
    lost = []

    def reply_lost(store, lease, ttl_s):
        plain(store, lease, ttl_s)
        lost.append(lease)
        raise StoreUnavailableError("no answer")

    with gate.snapshot(lease_s=30) as snapshot:
        with monkeypatch.context() as patch:
            patch.setattr(type(gate._reader.store), "lease", reply_lost)
            for seconds in (10, 13, 16):
                clock.seconds = seconds
                gate._reader.leases.renew_due()
                assert departures(snapshot) == 2
        assert len(lost) == 3
        clock.seconds = 20
        gate._reader.leases.renew_due()
        clock.seconds = 49
        assert departures(snapshot) == 2
        clock.seconds = 50
        with pytest.raises(SnapshotExpiredError):
            departures(snapshot)


def test_a_renewal_that_does_not_arrive_is_refused_in_time(writer, gate, clock, monkeypatch):
    """The reader's deadline comes before the store lets the version go."""

    def away(lease, ttl_s):
        raise StoreUnavailableError("away")

    with gate.snapshot(lease_s=30) as snapshot:
        monkeypatch.setattr(gate._reader.store, "lease", away)
        write(writer)
        for seconds in range(1, 30):
            clock.seconds = seconds
            gate._reader.leases.renew_due()
            assert retire(writer) == 2
            assert departures(snapshot) == 2
        clock.seconds = 30
        with pytest.raises(SnapshotExpiredError):
            departures(snapshot)
        assert retire(writer) == 3


@pytest.mark.parametrize("limits", [{"max_lease_s": 50}, {"max_layers": 3}])
def test_i8_a_revoked_snapshot_is_refused_before_and_after_it_notices(writer, gate, clock, limits):
    with gate.snapshot(lease_s=30) as snapshot:
        scan = snapshot.table("airports").scan()
        for _ in range(6):
            clock.seconds += 10
            gate._reader.leases.renew_due()
            write(writer)
            before = departures(snapshot)
            if retire(writer, **limits) > 2:
                break
        assert before == 2
        with pytest.raises(SnapshotExpiredError):  # the store's word
            departures(snapshot)
        clock.seconds += 11
        gate._reader.leases.renew_due()
        for ask in (lambda: departures(snapshot), lambda: next(scan)):  # its own
            with pytest.raises(SnapshotExpiredError, match="was revoked"):
                ask()
    with gate.snapshot() as newer:
        assert departures(newer) > 2


def test_a_scan_that_is_open_is_held(writer, gate, clock):
    writer.write({"airports": {f"A{i}": {"departures": 3, "delay": 0.0} for i in range(50)}})
    scan = gate.table("airports").scan()
    first = next(scan)
    for _ in range(20):
        clock.seconds += 25
        gate._reader.leases.renew_due()
        write(writer)
        assert retire(writer) == 3
    rows = dict([first, *scan])
    assert len(rows) == 51
    assert {row["departures"] for row in rows.values()} == {2, 3}
    assert writer.driver.store.leases() == []


def test_a_snapshot_that_is_forgotten_is_renewed_no_more(writer, gate, clock):
    snapshot = gate.snapshot(lease_s=30)
    clock.seconds = 10
    gate._reader.leases.renew_due()
    del snapshot
    gc.collect()
    write(writer)
    clock.seconds = 39
    gate._reader.leases.renew_due()
    assert retire(writer) == 2
    clock.seconds = 40
    assert retire(writer) == 3


def test_a_release_that_a_renewal_overtakes_is_sent_again(writer, gate, clock, monkeypatch):
    plain = type(gate._reader.store).lease
    snapshot = gate.snapshot(lease_s=30)

    def slow(store, lease, ttl_s):
        if clock.seconds:
            snapshot.close()
        plain(store, lease, ttl_s)

    monkeypatch.setattr(type(gate._reader.store), "lease", slow)
    clock.seconds = 10
    gate._reader.leases.renew_due()
    assert writer.driver.store.leases() == []


def test_a_long_snapshot_holds_no_lock_of_the_database(writer, gate, clock):
    """A writer commits, retires and vacuums beside it, with no backoff for locks at all."""
    files = sorted((p for p in gate._reader.store._files.folder.glob("*.sqlite")), key=str)
    with gate.snapshot(lease_s=600) as snapshot:
        scan = snapshot.table("airports").scan()
        for path in files:
            with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
                # Nothing is pinned either: the whole of the write-ahead log can be copied back.
                assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        write(writer, 3)
        assert retire(writer) == 2
        writer.driver.store.vacuum()
        assert departures(snapshot) == 2
        assert [row["departures"] for _, row in scan] == [2]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # from 3.12 on: there are threads
def test_t13_a_child_leaves_its_parents_leases_alone(writer, gate, clock):
    """It reads until the deadline that it knows, renews nothing and gives nothing back."""
    with gate.snapshot(lease_s=30) as snapshot:
        child = os.fork()
        if child == 0:  # nothing may leave this branch
            code = 1
            with contextlib.suppress(BaseException):
                assert not lease_threads()
                assert departures(snapshot) == 2
                snapshot.close()
                del gate._reader.leases._run  # a thread of its own
                with gate.snapshot() as own:
                    assert len(lease_threads()) == 1
                    assert departures(own) == 2
                code = 7
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        (info,) = writer.driver.store.leases()
        assert info.version == 2
        clock.seconds = 10
        gate._reader.leases.renew_due()
        clock.seconds = 39
        assert departures(snapshot) == 2


def test_a_scan_that_is_dropped_gives_its_lease_back_elsewhere(writer, gate, monkeypatch):
    """It is collected wherever its thread is: perhaps in a transaction, whose lock it would wait for."""
    del gate._reader.leases._run  # a thread of its own
    store, asked = gate._reader.store, []
    release = store.release

    def told(lease_id):
        asked.append(threading.current_thread().name)
        release(lease_id)

    monkeypatch.setattr(store, "release", told)
    scan = gate.table("airports").scan()
    next(scan)
    assert len(writer.driver.store.leases()) == 1
    with store._files.writing(META_FILE, durable=False):
        del scan
        assert asked in ([], ["tidegate-leases"])
    wait_until(lambda: writer.driver.store.leases() == [])
    assert asked == ["tidegate-leases"]
    wait_until(lambda: not lease_threads())
    with gate.table("airports").scan() as closed:
        next(closed)
    assert asked[1:] == [threading.current_thread().name]


def test_i8_a_snapshot_is_refused_once_a_renewal_sees_an_older_store(writer, gate, clock, monkeypatch):
    """A copy was put into a running Redis (SWAPDB): its replication id is the same."""
    with gate.snapshot(lease_s=30) as snapshot:

        def went_back(*_):
            raise VersionRegressedError("the visible one is older")

        monkeypatch.setattr(gate._reader.store, "lease", went_back)
        clock.seconds += 11
        gate._reader.leases.renew_due()
        with pytest.raises(SnapshotExpiredError, match="was revoked: the visible one is older"):
            departures(snapshot)
