"""``commit="pipelined"`` on real servers: the log on Kafka, the store on Redis.

Drivers die, sleep and are overtaken with versions in flight; the store goes away under them, and comes back.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading

import pytest

from crash.sweep.place import BATCHES, FINISHES, stops, wakes_fenced
from services.support.kafka.sweep.place import place_on
from services.support.redis.query import query_on
from services.support.workloads.query import AWAY_S, KEY_GROUPS, LINEAGE, ROWS, SEED, Reader
from support.concurrency import WAIT_S, Failpoints, Meanwhile, within
from support.driver_process import rows_of
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.errors import FencedError, StoreUnavailableError
from tidegate.testing.arrow_barrier import ArrowBarrier, batch

IN_FLIGHT = 2
PIPELINED = ("--in-flight", str(IN_FLIGHT))


@pytest.fixture(params=["redis"])
def place(kafka, private_redis, tmp_path):
    """A namespace whose log is on Kafka, and processes that drive it."""
    server = private_redis(settings={"appendfsync": "everysec"})
    with place_on(kafka.bootstrap, tmp_path, store=server.url) as made:
        yield made


# -- a driver is killed, or sleeps ----------------------------------------------------------------------

NAMES = (
    "pipeline.before_complete",
    "apply.after_chunk",
    "seal.after",
    "publish.before",
    "publish.after",
    "pipeline.after_complete",
    "decide.before_append",
    "decide.after_append",
    "open.after_claim",
)
LEFT = {("pipeline.before_complete", 1): (0, 2), ("decide.after_append", 3): (1, 3)}
"""How much is visible, and decided, at some of them: two versions in flight."""
QUICK = {
    "redis": [("pipeline.before_complete", 1, FINISHES[0]), ("decide.after_append", 3, FINISHES[2])],
}
CASES = [
    pytest.param(store, *case, marks=[] if case in QUICK[store] else pytest.mark.slow)
    for store in QUICK
    for case in itertools.product(NAMES, (1, 2, 3), FINISHES)
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("place, name, nth, finish", CASES, indirect=["place"])
def test_killed_with_versions_in_flight_i1_i2_i4(place, name, nth, finish):
    if name.startswith("open."):  # a process opens once: this one finds two in flight
        place.run(*PIPELINED, armed="pipeline.before_complete=kill", code=-signal.SIGKILL)
        place.run(*PIPELINED, armed=f"{name}=kill", code=-signal.SIGKILL)
    else:
        place.run(*PIPELINED, armed=f"{name}=kill@{nth}", code=-signal.SIGKILL)
    visible, decided = place.check()
    assert decided - visible <= IN_FLIGHT
    assert (visible, decided) == LEFT.get((name, nth), (visible, decided))
    finish(place)
    if place.check()[1]:
        place.check_all_of_it()


SLEEPS = [
    pytest.param(store, name, marks=[] if (store, name) == ("redis", NAMES[0]) else pytest.mark.slow)
    for store in QUICK
    for name in NAMES[:-1]
]


@pytest.mark.slow
@pytest.mark.parametrize("place, name", SLEEPS, indirect=["place"])
def test_a_zombie_wakes_with_versions_in_flight_and_changes_nothing_t1_i6(place, name):
    zombie = place.start(*PIPELINED, "--batches", str(BATCHES + 1), armed=f"{name}=stop")
    try:
        assert stops(zombie)
        place.run(*PIPELINED)
        before, decided = place.check(), place.decided()
        wakes_fenced(zombie)
    finally:
        zombie.kill()
    assert before == place.check() == (BATCHES, BATCHES)
    assert place.decided() == decided
    place.check_all_of_it()


# -- threads, as in a query -----------------------------------------------------------------------------


class Line:
    """A driver that commits pipelined: ``commit`` as a query does it, batch by batch."""

    def __init__(self, query, **options) -> None:
        self.query = query
        self.driver = query.open(commit_in_flight=IN_FLIGHT, allow_unsafe=True, **options)
        self.pipeline = PipelineThread(self.driver)

    def commit(self, *batch_ids: int) -> None:
        for batch_id in batch_ids:
            rows, origin = rows_of(SEED, batch_id, ROWS), batch(LINEAGE, batch_id)
            self.pipeline.commit(ArrowBarrier(self.driver.log, rows, origin, KEY_GROUPS))

    def restart(self, batches: int) -> None:
        """Another driver takes over, recovers, and commits what was not decided."""
        self.query.run(batches, allow_unsafe=True)


@pytest.fixture
def server(private_redis):
    return private_redis()


@pytest.fixture
def query(kafka, server, tmp_path):
    with query_on(server.url, tmp_path) as made:
        made.wal = f"kafka://{kafka.bootstrap}"
        yield made
        made.log().drop()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("away", ["killed", "silent"])
def test_the_store_stays_away_with_versions_in_flight_i4_i7_i10(away, server, query):
    """No more is decided than has room, a batch raises why, closing ends in time, a restart finishes."""
    line = Line(query, apply_deadline_s=AWAY_S, timeout_s=1.0)
    line.commit(0, 1)
    line.pipeline.drain(WAIT_S)
    server.kill() if away == "killed" else server.pause()
    told = "which an earlier batch decided, failed in the background|are decided and not visible"
    with pytest.raises(StoreUnavailableError, match=told):
        line.commit(*range(2, 8))
    decided = line.driver.folded.last_version
    assert 3 <= decided <= 2 + IN_FLIGHT
    with within(WAIT_S):
        assert isinstance(line.pipeline.close(), StoreUnavailableError)
    with pytest.raises(StoreUnavailableError):
        line.commit(7)
    assert line.driver.folded.last_version == decided, "nothing is decided behind a version that failed"
    assert not any(t.name == "tidegate-pipeline" for t in threading.enumerate())
    server.restart() if away == "killed" else server.resume()
    line.restart(8)
    query.check(8)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("away", ["killed", "silent"])
def test_the_store_comes_back_with_versions_in_flight_and_the_query_goes_on_i7(
    away, server, query, meanwhile: Meanwhile
):
    """Batches wait for room meanwhile; a server that starts again is looked at before more is published."""
    line = Line(query, timeout_s=1.0)
    line.commit(0, 1)
    line.pipeline.drain(WAIT_S)
    with Reader(query) as reader:
        reader.wait_whole(2)
        server.kill() if away == "killed" else server.pause()
        going_on = meanwhile.start(line.commit, *range(2, 8))
        with pytest.raises(TimeoutError):
            going_on.result(AWAY_S)
        assert line.pipeline.in_flight <= IN_FLIGHT
        server.restart() if away == "killed" else server.resume()
        going_on.result(WAIT_S)
        assert line.pipeline.close() is None
        reader.wait_whole(8)
    query.check(8)


@pytest.mark.parametrize(
    "name", ["publish.before", pytest.param("apply.before_chunk", marks=pytest.mark.slow)]
)
def test_a_line_that_was_overtaken_ends_fenced_t1_i6(name, query, failing_at: Failpoints):
    """Its completing thread sleeps with two in flight; another driver finishes them, and goes on."""
    asleep, wake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        assert wake.wait(WAIT_S)

    line = Line(query)
    with contextlib.ExitStack() as closing:
        closing.callback(wake.set)
        failing_at.at(name, sleep)
        line.commit(0, 1)
        assert asleep.wait(WAIT_S)
        assert line.pipeline.in_flight == IN_FLIGHT
        line.restart(5)
        query.check(5)
        wake.set()
        with pytest.raises(FencedError):
            line.pipeline.drain(WAIT_S)
        with pytest.raises(FencedError, match="which an earlier batch decided, failed in the background"):
            line.commit(5)
        assert isinstance(line.pipeline.close(), FencedError)
    query.check(5)
