"""An exception at any line of a call, as of a signal or a soft limit: the gate works on, no lease stays."""

import gc
import math
import random
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidegate
from tidegate.base.deadline import end_of, left_of, one_call, outside
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import write_flights

ROOT = Path(tidegate.__file__).parent
CUT_IN = (
    str(ROOT),
    *(str(path.resolve()) for path in (ROOT.parent.parent / "sinks", ROOT.parent.parent / "wal")),
)
LIMIT_S = 30.0
SIGNALS, ALL_SIGNALS = 300, 10_000
STEP = 11
"""On files every eleventh line is cut, in the slow form each: those of the gate are the same as in memory."""
LEASE_S = 600.0
"""Nothing is renewed, and nothing runs out, while a test runs."""


class CutError(BaseException):
    """The exception that ends a call."""


def cut_at(number, call):
    """Run the call, with an error at its line of this number; return that line, None: it has fewer.

    The error, with the frames of its traceback, is there while the deadline is asked for.
    """
    left, place = number, None

    def trace(frame, event, _):
        nonlocal left, place
        name = frame.f_code.co_filename
        if not name.startswith(CUT_IN) or "memory" in name or frame.f_code.co_name == "__del__":
            return None  # a condition of `threading`; an error that the interpreter prints and ignores
        if event == "line" and place is None:
            left -= 1
            if left < 0:
                place = f"{Path(name).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise CutError(place)
        return trace

    sys.settrace(trace)
    try:
        call()
    except CutError:
        sys.settrace(None)
        assert left_of(LIMIT_S) == math.inf, f"a deadline stays after an interrupt at {place}"
    finally:
        sys.settrace(None)
    assert left_of(LIMIT_S) == math.inf, f"a deadline stays after an interrupt at {place}"
    return place


def within_time(call, place):
    """Return what the call returns, in a thread of its own: it may hang."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(LIMIT_S)
    except BaseException as error:
        raise AssertionError(f"after an interrupt at {place}") from error
    finally:
        pool.shutdown(wait=False)


def read(gate):
    """Take a snapshot, which a thread that is alive renews; read in it and without it."""
    with gate.snapshot(lease_s=LEASE_S) as snapshot:
        assert snapshot.table("airports").get("JFK")["departures"] == 1
        thread = gate._reader.leases._thread
        assert thread is not None
        assert thread.is_alive()
    assert len(list(gate.table("airports").scan())) == 3


def snapshot(gate):
    with gate.snapshot(lease_s=LEASE_S) as taken:
        taken.table("airports").get("JFK")


CALLS = {
    "snapshot": snapshot,
    "scan": lambda gate: list(gate.table("airports").scan()),
    "get": lambda gate: gate.table("airports").get("JFK"),
    "get_many": lambda gate: gate.get_many({"airports": ["JFK", "EWR"]}),
    "close": lambda gate: gate.close(),
}


@pytest.fixture(scope="module")
def url(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{folder}/store"
    write_flights(f"file://{folder}/wal", url)
    return url


def two_calls():
    with one_call():
        end_of(1.0)
        with one_call(), one_call(fresh=True):
            end_of(1.0)
    with one_call(fresh=True):
        end_of(1.0)
    outside().run(end_of, 1.0)


def test_an_error_at_each_line_of_a_call_leaves_no_deadline():
    number = 0
    while cut_at(number, two_calls) is not None:
        number += 1
    assert number > 10


def held_leases(store):
    if store.leases():
        gc.collect()
    return store.leases()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "url, step",
    [
        ("memory", 1),
        ("sqlite", STEP),
        pytest.param("sqlite", 1, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
    indirect=["url"],
)
def test_an_error_at_each_line_leaves_a_gate_that_works(url, step, call):
    store, number, lines = open_store(url, "flights", None, None), 0, 0
    while True:
        gate = tidegate.connect(url, "flights")
        gate.version()
        if call == "close":
            gate.snapshot(lease_s=LEASE_S)
        place = cut_at(number, lambda: CALLS[call](gate))  # noqa: B023 - called here
        if place is None:
            gate.close()
            break
        if call != "close":
            within_time(lambda: read(gate), place)  # noqa: B023 - called here
        within_time(gate.close, place)
        assert held_leases(store) == [], f"a lease stays after an interrupt at {place}"
        number, lines = number + step, lines + 1
    store.close()
    assert lines > 5


@pytest.mark.parametrize(
    "url", ["sqlite"], indirect=True
)  # the store in memory has a condition of `threading`
@pytest.mark.parametrize("signals", [SIGNALS, pytest.param(ALL_SIGNALS, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_at_any_time_leave_a_gate_that_works(url, signals):
    store, cuts, dice = open_store(url, "flights", None, None), 0, random.Random(7)

    def cut(*_):
        nonlocal cuts
        cuts += 1
        raise CutError

    gate, before = tidegate.connect(url, "flights"), signal.signal(signal.SIGALRM, cut)
    try:
        while cuts < signals:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 3e-3))
                for _ in range(100):  # an error within a `__del__` is ignored
                    snapshot(gate)
            except CutError:
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert left_of(LIMIT_S) == math.inf
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    within_time(lambda: read(gate), "a signal")
    within_time(gate.close, "a signal")
    assert held_leases(store) == []
    store.close()
