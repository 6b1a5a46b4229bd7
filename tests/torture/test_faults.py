"""What is done to one writing call: it is lost, late, done twice or refused, and only that one."""

import os
import signal
import threading

import pytest

from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.errors import OutcomeUnknownError, StoreUnavailableError, WalUnavailableError
from tidegate.sinks.capabilities import SupportsApplyAndSeal
from tidegate.torture.driver import faults
from tidegate.torture.driver.faults import (
    CLOCK_STEPS_S,
    DIES_AFTER,
    FULL_FOR,
    LATER_BY,
    LOG_WRITES,
    STORE_WRITES,
    Disturber,
    Strike,
)
from tidegate.torture.history.events import Fault
from tidegate.torture.history.files import Recorder, read_history
from tidegate.wal.file.log import FileLog
from tidegate.wal.log import Log

AT = "publish.before"


class Calls:
    """Stands for a log and a store: every writing call is noted."""

    def __init__(self):
        self.made = []
        for name in {*LOG_WRITES, *STORE_WRITES}:
            setattr(self, name, self._noting(name))

    def _noting(self, name):
        def call(*args, **options):
            self.made.append((name, *map(self._shown, args)))
            return len(self.made)

        return call

    @staticmethod
    def _shown(value):
        return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value


@pytest.fixture
def struck(tmp_path):
    """``struck(fault)``: a log and store with that fault armed at the second hit, and the disturber."""
    recorders = []

    def make(fault, *, taken_over=False, cut=lambda: None):
        recorders.append(Recorder(tmp_path, f"driver-{len(recorders)}", role="driver"))
        disturber = Disturber(Strike(fault, AT, 2, taken_over), recorders[-1], cut)
        calls = Calls()
        disturber.watch("log", calls)
        disturber.watch("store", calls)
        return calls, disturber

    yield make
    for recorder in recorders:
        recorder.close()


def come_by(disturber):
    disturber.hit(AT)
    disturber.hit("seal.after")
    assert not disturber.done
    disturber.hit(AT)


def test_every_writing_call_of_the_interfaces_is_watched():
    assert all(callable(getattr(Log, name)) for name in LOG_WRITES)
    assert all(callable(getattr(SupportsApplyAndSeal, name)) for name in STORE_WRITES)


def test_an_exception(struck):
    _, disturber = struck("raise")
    disturber.hit(AT)
    with pytest.raises(FailpointError, match=AT):
        disturber.hit(AT)
    assert disturber.done
    disturber.hit(AT)  # once


def test_rows_that_are_forgotten_are_not_sealed_as_if_they_were_there(struck):
    calls, disturber = struck("forgotten")
    come_by(disturber)
    calls.publish("entry", 1)
    calls.apply("stamp", "rows")
    calls.apply("stamp", "more")
    assert calls.made == [("publish", "entry", 1), ("apply", "stamp", "more")]


def test_rows_that_go_with_their_seal_are_forgotten_without_it(struck):
    calls, disturber = struck("forgotten")
    come_by(disturber)
    calls.apply_and_seal("stamp", "counts", "rows")
    calls.apply_and_seal("stamp", "counts", "rows")
    assert calls.made == [
        ("apply_and_seal", "stamp", "counts"),
        ("apply_and_seal", "stamp", "counts", "rows"),
    ]


def test_a_lost_reply_is_of_a_call_that_was_done(struck):
    calls, disturber = struck("lost")
    come_by(disturber)
    with pytest.raises(StoreUnavailableError):
        calls.publish("entry", 1)
    calls.publish("entry", 1)
    assert calls.made == [("publish", "entry", 1)] * 2


def test_a_lost_append_proves_nothing(struck):
    calls, disturber = struck("lost")
    come_by(disturber)
    with pytest.raises(OutcomeUnknownError):
        calls.append_decision("record")
    assert calls.made == [("append_decision", "record")]


def test_a_refused_call_was_not_done(struck):
    calls, disturber = struck("io")
    come_by(disturber)
    with pytest.raises(WalUnavailableError):
        calls.append_decision("record")
    assert calls.made == []


def test_twice(struck):
    calls, disturber = struck("twice")
    come_by(disturber)
    assert calls.seal("stamp", "counts") == 1
    assert calls.made == [("seal", "stamp", "counts")] * 2


def test_a_segment_that_is_staged_twice_has_two_names(struck):
    calls, disturber = struck("twice")
    come_by(disturber)
    calls.stage("a-0-b", iter(["x", "y"]))
    assert calls.made == [("stage", "a-0-b", ["x", "y"]), ("stage", "a-0-b-again", ["x", "y"])]


def test_a_late_write_comes_between_later_ones(struck):
    calls, disturber = struck("late")
    come_by(disturber)
    with pytest.raises(StoreUnavailableError):
        calls.apply("stamp", "late")
    for n in range(3):
        calls.apply("stamp", n)
    made = [args[-1] for args in calls.made]
    assert sorted(map(str, made)) == ["0", "1", "2", "late"]
    assert made.index("late") == LATER_BY - 1


def test_a_late_write_comes_at_the_end_at_the_latest(struck):
    calls, disturber = struck("late")
    come_by(disturber)
    with pytest.raises(StoreUnavailableError):
        calls.claim(1, "writer")
    disturber.do_late()
    disturber.do_late()
    assert calls.made == [("claim", 1, "writer")]


def test_a_late_write_waits_for_who_takes_over(struck, monkeypatch):
    """It is done when the process was stopped and woken: others have gone on by then."""
    calls, disturber = struck("late", taken_over=True)
    stopped = []
    monkeypatch.setattr(faults, "stop", lambda: stopped.append(list(calls.made)))
    come_by(disturber)
    with pytest.raises(StoreUnavailableError):
        calls.publish("entry", 1)
    assert stopped == [[]]
    assert calls.made == [("publish", "entry", 1)]


@pytest.mark.parametrize("fault", ["lost", "twice", "io"])
def test_who_is_taken_over_from_dies_at_the_call(struck, monkeypatch, fault):
    class DiedError(Exception):
        pass

    def die():
        raise DiedError

    calls, disturber = struck(fault, taken_over=True)
    monkeypatch.setattr(faults, "kill", die)
    come_by(disturber)
    with pytest.raises(DiedError):
        calls.publish("entry", 1)


@pytest.mark.parametrize("fault", CLOCK_STEPS_S)
def test_a_clock_that_steps(struck, monkeypatch, fault):
    calls, disturber = struck(fault)
    before = disturber.clock.now_us()
    come_by(disturber)
    step_us = disturber.clock.now_us() - before
    assert abs(step_us - CLOCK_STEPS_S[fault] * 1e6) < 600e6  # it did not stand still meanwhile
    monkeypatch.setattr(faults, "kill", lambda: pytest.fail("it goes on"))
    for n in range(3 * DIES_AFTER):
        calls.apply("stamp", n)


def test_who_is_taken_over_from_decides_with_its_clock_and_dies(struck, monkeypatch):
    calls, disturber = struck("clock-back", taken_over=True)
    died = []
    monkeypatch.setattr(faults, "kill", lambda: died.append(len(calls.made)))
    come_by(disturber)
    for n in range(DIES_AFTER):
        calls.apply("stamp", n)
    assert died == [DIES_AFTER - 1]


@pytest.mark.parametrize("taken_over", [False, True])
def test_who_has_fewer_writes_left_dies_when_it_is_through(struck, monkeypatch, taken_over):
    calls, disturber = struck("clock-back", taken_over=taken_over)
    died = []
    monkeypatch.setattr(faults, "kill", lambda: died.append(len(calls.made)))
    disturber.is_through()
    come_by(disturber)
    calls.apply("stamp", 1)
    disturber.is_through()
    assert died == [1] * taken_over


def test_the_network_is_cut_at_the_failpoint(struck):
    cut = threading.Event()
    _, disturber = struck("net-lost", cut=cut.set)
    come_by(disturber)
    assert cut.is_set()


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_full_disk(tmp_path, monkeypatch, taken_over):
    """Real files: half of a record, then nothing at all, then room again; or the end of who met it."""
    died = []
    monkeypatch.setattr(faults, "kill", lambda: died.append(True))
    log = FileLog(tmp_path, "n")
    log.create()
    whole = log.folder / "decisions.log"
    with Recorder(tmp_path / "history", "driver", role="driver") as recorder:
        disturber = Disturber(Strike("full", AT, 2, taken_over), recorder, lambda: None)
        disturber.watch("log", log, tmp_path)
        log.append_decision(b"first")
        before = whole.read_bytes()
        come_by(disturber)
        for _ in range(FULL_FOR):
            with pytest.raises(WalUnavailableError, match="File too large; make room on the disk of the log"):
                log.append_decision(b"x" * 1_000)
            assert whole.read_bytes() == before
        assert log.append_decision(b"x" * 1_000)
    assert len(died) == (FULL_FOR if taken_over else 0)
    assert [entry.content for entry in log.decisions()] == [b"first", b"x" * 1_000]


def test_a_full_disk_is_no_fault_of_what_needs_no_room(struck):
    """A log or store at a server writes none of our files, and is left alone."""
    calls, disturber = struck("full")
    come_by(disturber)
    assert calls.publish("entry", 1) == 1
    assert not disturber.done


def test_sigkill_and_sigstop_at_the_failpoint(struck, monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(faults, "stop", lambda: sent.append("stopped"))
    for fault in ("kill", "other-rows", "attempts", "old-checkpoint", "stop", "server"):
        _, disturber = struck(fault)
        come_by(disturber)
    assert sent == [(os.getpid(), signal.SIGKILL)] * 4 + ["stopped"] * 2


def test_the_fault_stands_in_the_history_before_it_happens(struck, tmp_path):
    calls, disturber = struck("io")
    come_by(disturber)
    assert not [line for line in read_history(tmp_path) if isinstance(line.event, Fault)]
    with pytest.raises(WalUnavailableError):
        calls.trim_blobs([], 0)
    (fault,) = [line.event for line in read_history(tmp_path) if isinstance(line.event, Fault)]
    assert (fault.kind, fault.target) == ("io", "log.trim_blobs")


def test_a_listener_hears_every_hit_and_nothing_else_changes():
    heard = []
    failpoints.listen(heard.append)
    try:
        failpoints.hit(AT)
        failpoints.hit("seal.after")
    finally:
        failpoints.listen(None)
    failpoints.hit(AT)
    assert heard == [AT, "seal.after"]
