"""What a sink runs beside its batches, without Spark: begun once, and anew when a query comes again."""

from __future__ import annotations

import contextlib
import threading
import uuid
from types import SimpleNamespace

import pytest

from tidegate.committers.apply.priority import ApplyPriority
from tidegate.committers.background.follower import FollowerThread, Standing
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import CorruptError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.spark import batch as context
from tidegate.spark.sink import VersionedSink
from tidegate.spark.writer import OpenWriter
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

WAIT_S = 30.0


def writer_on(sink, driver, alive=lambda: True, followers=()):
    """The open writer of a sink, on a driver that is not Spark's."""
    connections = SimpleNamespace(
        coordinator=driver,
        followers=list(followers),
        settings=sink._writing.settings,
        placement=None,
        close=lambda: None,
    )
    return OpenWriter(connections, alive)


class Slow:
    """A follower that catches up until it is told to stop: it has thousands of versions to go."""

    name, namespace, heartbeat_s, failed = "copy", "flights", 0.01, None
    driven_by = None

    def __init__(self):
        self.began, self.at_once, self.most = threading.Event(), 0, 0
        self.answered = threading.Event()
        self.answered.set()

    def step(self, stopped):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.began.set()
        while not stopped():
            threading.Event().wait(0.001)
        assert self.answered.wait(WAIT_S)
        self.at_once -= 1
        return False

    def beat(self):
        return True

    def end_beat(self):
        pass

    def went_well(self, *, level):
        pass


@pytest.mark.parametrize("answers", [True, False])
def test_a_follower_that_catches_up_gets_no_second_thread_when_a_query_comes_again(tmp_path, answers):
    """The query has ended and its follower has not; a load, or the query, begins another Background. It does
    not wait for a copy that does not answer.
    """
    where = {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}
    sink = VersionedSink(namespace="flights", **where, heartbeat_s=0.01)
    slow, closed = Slow(), SimpleNamespace(close=lambda: None)
    slow.store = closed
    driver = SimpleNamespace(log=closed, store=closed, epoch=0, last_decided=0, priority=ApplyPriority())
    running = threading.Event()
    running.set()
    writer = writer_on(sink, driver, running.is_set, [slow])
    first = writer.background
    assert slow.began.wait(WAIT_S)
    running.clear()
    for thread in first._threads:
        thread.join(WAIT_S)
    assert first.ended
    slow.began.clear()
    if not answers:
        slow.answered.clear()
    writer.keep_alive(lambda: True)
    assert writer.background is not first
    if not answers:
        assert slow.at_once == 1, "nobody has waited for it"
        assert not slow.began.wait(0.1)
        slow.answered.set()
    assert slow.began.wait(WAIT_S)
    writer.close()
    assert (slow.most, slow.at_once) == (1, 0)


@pytest.mark.parametrize("timeout_s", [WAIT_S, 0.0])
def test_a_writer_that_closes_waits_for_its_other_stores(tmp_path, caplog, timeout_s):
    """A query of one batch that closes its sink stopped the copy in its version; 0 s: after an error."""
    where = {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}
    sink, slow, stops = VersionedSink(namespace="flights", **where), Slow(), []
    closed = slow.store = SimpleNamespace(close=lambda: None)
    slow.standing = Standing("copy", "elsewhere", visible=1, decided=2)

    def step(stopped):
        slow.began.set()
        for _ in range(200):
            if stopped():
                stops.append(1)
                break
            threading.Event().wait(0.001)
        return True

    slow.step = step
    driver = SimpleNamespace(log=closed, store=closed, epoch=0, last_decided=0, priority=ApplyPriority())
    writer = writer_on(sink, driver, followers=[slow])
    assert slow.began.wait(WAIT_S)
    writer.close(timeout_s)
    assert bool(stops) == (timeout_s == 0)
    assert ("store copy shows version 1 of 2" in caplog.text) == (timeout_s > 0)


def test_a_follower_that_meets_an_error_is_told_and_tries_again():
    """Whatever it is, also what Spark raises as it ends."""
    errors, met, well = [ValueError("a bug")], [], threading.Event()

    def step(_):
        for error in iter(errors):
            errors.remove(error)
            raise error
        return True

    follower = SimpleNamespace(
        name="copy",
        namespace="flights",
        heartbeat_s=0.01,
        failed=None,
        driven_by=None,
        step=step,
        beat=lambda: True,
        end_beat=lambda: None,
        retried=met.append,
        went_well=lambda **_: well.set(),
    )
    thread = FollowerThread(follower, lambda: False)
    try:
        assert well.wait(WAIT_S)
    finally:
        thread.stop()
    assert [str(error) for error in met] == ["a bug"]


# -- the query that a heartbeat asks for ---------------------------------------------------------------------


class Jvm:
    """As much of Spark's as the query is found by, and how often it was looked up."""

    def __init__(self):
        self.java = SimpleNamespace(util=SimpleNamespace(UUID=SimpleNamespace(fromString=str)))
        self.queries, self.looked = {}, 0

    def session(self):
        state = SimpleNamespace(activeStreamingQueries=self._active)
        return SimpleNamespace(_jvm=self, _jsparkSession=SimpleNamespace(sharedState=lambda: state))

    def _active(self):
        self.looked += 1
        return self.queries

    def start(self, query_id, run_id):
        ended_well = SimpleNamespace(isDefined=lambda: False)
        query = SimpleNamespace(active=True, offsetLog=lambda: None, exception=lambda: ended_well)
        query.isActive, query.runId = lambda: query.active, lambda: SimpleNamespace(toString=lambda: run_id)
        self.queries[query_id] = query
        return query


def test_a_query_is_looked_up_once_for_each_of_its_runs():
    jvm = Jvm()
    session, first = jvm.session(), jvm.start("q", "run-1")
    for _ in range(3):
        assert context._running(session, "q").run_id == "run-1"
    assert jvm.looked == 1
    first.active = False
    jvm.start("q", "run-2")
    assert context._running(session, "q").run_id == "run-2"
    jvm.queries.pop("q").active = False
    assert not context.is_running(session, "q")


def test_only_so_many_queries_are_remembered():
    jvm = Jvm()
    session = jvm.session()
    for at in range(2 * context.RUNS_MAX):
        jvm.start(f"q{at}", "run")
        assert context.is_running(session, f"q{at}")
    assert len(context._runs) <= context.RUNS_MAX
    assert context.is_running(session, "q0")


def test_a_query_of_a_jvm_that_is_gone_does_not_run():
    def refuses():
        raise ConnectionRefusedError(111, "Connection refused")

    jvm = Jvm()
    session, query = jvm.session(), jvm.start("q", "run")
    assert context.is_running(session, "q")
    query.isActive = refuses
    assert not context.is_running(session, "q")


# -- schemas that a server lost ------------------------------------------------------------------------------


def writer_and_driver(place):
    where = Endpoints.of("n", f"memory://{place}", [StoreRef("a", f"memory://{place}")])
    driver = Coordinator(where, MemoryLog(place, "n"), MemoryStore(place, "n"), Options(key_groups=4))
    open_namespace(driver, "q")
    commit(driver, ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, batch("q", 0), 4))
    sink = VersionedSink(namespace="n", wal=where.wal, store=f"memory://{place}")
    return contextlib.closing(writer_on(sink, driver, lambda: False)), driver


def test_schemas_that_a_server_lost_are_put_back_before_the_next_batch_asks_for_them(monkeypatch):
    opened, driver = writer_and_driver(uuid.uuid4().hex)
    with opened as writer:
        known = writer.schemas()
        driver.store._space.schemas.clear()
        monkeypatch.setattr(driver.store, "unverified", lambda: True)
        monkeypatch.setattr(driver.store, "comparing", lambda _: contextlib.nullcontext(1))
        assert writer.schemas() == known


def test_schemas_that_are_missing_where_nothing_was_lost_are_named(monkeypatch):
    opened, driver = writer_and_driver(uuid.uuid4().hex)
    driver.store._space.schemas.clear()
    with opened as writer, pytest.raises(CorruptError, match="of table t at version 1 is missing"):
        writer.schemas()
