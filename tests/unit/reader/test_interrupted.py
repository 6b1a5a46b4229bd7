"""An exception at any line of a call, as of a signal or a soft limit: the gate works on, no lease stays."""

import gc
import random
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidegate
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import write_flights

ROOT = Path(tidegate.__file__).parent
CUT_IN = (
    str(ROOT),
    *(str(path.resolve()) for path in (ROOT.parent.parent / "sinks", ROOT.parent.parent / "wal")),
)
LIMIT_S = 30.0
SIGNALS = 300
STEP = 11
"""On files every eleventh line is cut: those of the gate are the same as in memory."""
LEASE_S = 600.0
"""Nothing is renewed, and nothing runs out, while a test runs."""


class CutError(BaseException):
    """The exception that ends a call."""


def cut_at(number, call):
    """Run the call, with an error at its line of this number; return that line, None: it has fewer."""
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
        pass
    finally:
        sys.settrace(None)
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


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def url(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{folder}/store"
    write_flights(f"file://{folder}/wal", url)
    return url


def held_leases(store):
    if store.leases():
        gc.collect()
    return store.leases()


@pytest.mark.parametrize("call", CALLS)
def test_an_error_at_each_line_leaves_a_gate_that_works(url, call):
    store, number, lines = open_store(url, "flights", None, None), 0, 0
    step = 1 if url.startswith("memory") else STEP
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
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_at_any_time_leave_a_gate_that_works(url):
    store, cuts, dice = open_store(url, "flights", None, None), 0, random.Random(7)

    def cut(*_):
        nonlocal cuts
        cuts += 1
        raise CutError

    gate, before = tidegate.connect(url, "flights"), signal.signal(signal.SIGALRM, cut)
    try:
        while cuts < SIGNALS:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 3e-3))
                for _ in range(100):  # an error within a `__del__` is ignored
                    snapshot(gate)
            except CutError:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    within_time(lambda: read(gate), "a signal")
    within_time(gate.close, "a signal")
    assert held_leases(store) == []
    store.close()
