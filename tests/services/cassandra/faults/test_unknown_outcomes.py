"""The coordinator of a conditional write has no answer, on three nodes and at each step of Paxos.

Whoever asked is told that nobody knows. Each test stops the coordinator's thread just before a step, lets
the other two nodes, or the coordinator, stand still (SIGSTOP), and lets the thread go on. What became of
the write is known by the step: before the first nothing was promised, before the second nothing was
proposed; before the last a quorum has accepted it, and it stands though nobody was told. With the proposal
at one node alone it may go either way, and what is read back at SERIAL is what counts.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import Session

from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.jdwp import Debugger, first_stopped, port_of
from services.support.cassandra.query import query_on
from services.support.workloads.query import Query
from support.concurrency import Failpoints, Meanwhile
from support.wait import wait_until
from tidegate.errors import FencedError, StoreUnavailableError
from tidegate.sinks.cassandra.client.errors import NO_ANSWER
from tidegate.sinks.rules.leases import Lease

pytestmark = pytest.mark.slow  # three nodes of their own, each case waits for what does not come
PROXY = "org.apache.cassandra.service.StorageProxy"
PREPARE, PROPOSE, COMMIT = "beginAndRepairPaxos", "proposePaxos", "commitPaxos"
OTHERS, COORDINATOR = "others", "coordinator"
PATIENT_S = 120.0
UNKNOWN = "StoreUnavailableError"


@pytest.fixture
def cluster(cassandra_debugged: CassandraCluster) -> Iterator[CassandraCluster]:
    yield cassandra_debugged
    cassandra_debugged.heal()


@pytest.fixture(scope="module")
def debuggers(cassandra_debugged: CassandraCluster) -> Iterator[list[Debugger]]:
    """One for each node."""
    with contextlib.ExitStack() as closing:
        yield [closing.enter_context(Debugger(port_of(node.log_text()))) for node in cassandra_debugged.nodes]


@pytest.fixture
def query(cluster: CassandraCluster, tmp_path) -> Iterator[Query]:
    with query_on(cluster.url, tmp_path, replication=3) as made:
        yield made


class Stop:
    """Catches the next conditional write at its coordinator, whichever node that is."""

    def __init__(self, cluster: CassandraCluster, debuggers: list[Debugger], step: str) -> None:
        self._cluster, self._debuggers, self._step = cluster, debuggers, step
        self._armed = threading.Event()

    def arm(self) -> None:
        """From here on the next one is caught. Reads at SERIAL come by some of the steps, too."""
        for debugger in self._debuggers:
            debugger.stop_in(PROXY, self._step)
        self._armed.set()

    @contextlib.contextmanager
    def standing_still(self, who: str) -> Iterator[None]:
        """Wait for it; then the nodes stand still, as long as the context lasts. Where that is the
        coordinator, it goes on with its write only after that: late.
        """
        assert self._armed.wait(PATIENT_S)
        coordinator = first_stopped(self._debuggers, PATIENT_S)
        for at, debugger in enumerate(self._debuggers):
            if at != coordinator:
                debugger.let_go()
        still = [at for at in range(3) if (at == coordinator) == (who == COORDINATOR)]
        try:
            for at in still:
                self._cluster.pause(at)
            if who == OTHERS:
                self._debuggers[coordinator].let_go()
            yield
        finally:
            for at in still:
                self._cluster.resume(at)
            self._debuggers[coordinator].let_go()


@pytest.fixture
def stop_at(cluster: CassandraCluster, debuggers: list[Debugger]) -> Iterator[Any]:
    """``stop_at(step)``: a Stop, not armed yet."""
    yield functools.partial(Stop, cluster, debuggers)
    for debugger in debuggers:
        debugger.let_go()


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests of this process that had no answer, by what the client said of each."""
    told: list[str] = []
    execute = Session.execute

    def noting(self: Session, *arguments: Any, **named: Any) -> Any:
        try:
            return execute(self, *arguments, **named)
        except NO_ANSWER as error:
            told.append(type(error).__name__)
            raise

    monkeypatch.setattr(Session, "execute", noting)
    return told


def outcomes_of(monkeypatch: pytest.MonkeyPatch, store: Any) -> list[bool | str]:
    """What each flip through this store comes to, from now on."""
    outcomes: list[bool | str] = []
    publish = store.publish

    def noting(*arguments: Any) -> bool:
        try:
            outcomes.append(publish(*arguments))
        except StoreUnavailableError as error:
            outcomes.append(type(error).__name__)
            raise
        return bool(outcomes[-1])

    monkeypatch.setattr(store, "publish", noting)
    return outcomes


@pytest.mark.parametrize(
    "step, who, took_effect",
    [
        (PREPARE, OTHERS, False),
        (PROPOSE, OTHERS, None),
        (COMMIT, OTHERS, True),
        (PROPOSE, COORDINATOR, False),
        (COMMIT, COORDINATOR, True),
    ],
)
def test_a_flip(
    step: str,
    who: str,
    took_effect: bool | None,
    query: Query,
    stop_at: Any,
    failing_at: Failpoints,
    meanwhile: Meanwhile,
    monkeypatch: pytest.MonkeyPatch,
):
    """I3, I7: read back, and sent again only when it did not take effect. A coordinator that wakes behind
    that changes nothing."""
    driver, stop = query.run(1), stop_at(step)
    outcomes = outcomes_of(monkeypatch, driver.store)
    failing_at.at("publish.before", stop.arm)
    done = meanwhile.start(query.commit, driver, 1)
    with stop.standing_still(who):
        wait_until(lambda: bool(outcomes), "the driver is told that nobody knows", PATIENT_S)
        assert outcomes[0] == UNKNOWN
        if who == COORDINATOR:  # the other two are a quorum
            done.result(PATIENT_S)
    done.result(PATIENT_S)
    if took_effect:
        assert outcomes == [UNKNOWN]
    elif took_effect is False:
        assert len(outcomes) > 1
    assert query.store().pointer().visible == 2
    query.check(2)
    query.commit(driver, 2)
    query.check(3)


@pytest.mark.parametrize("step, who", [(PREPARE, OTHERS), (COMMIT, OTHERS), (COMMIT, COORDINATOR)])
def test_a_claim(
    step: str,
    who: str,
    query: Query,
    stop_at: Any,
    failing_at: Failpoints,
    meanwhile: Meanwhile,
    unanswered: list[str],
):
    """I6: it may be sent again; the epoch that stands is the log's, and an older driver is fenced."""
    older, stop = query.run(2), stop_at(step)
    failing_at.at("open.after_append", stop.arm)
    opening = meanwhile.start(query.open)
    with stop.standing_still(who):
        if who == COORDINATOR:
            opening.result(PATIENT_S)
        else:
            wait_until(lambda: bool(unanswered), "the driver has no answer", PATIENT_S)
    newer = opening.result(PATIENT_S)
    pointer = query.store().pointer()
    assert (pointer.epoch, pointer.writer) == (newer.epoch, newer.writer)
    assert newer.epoch == older.epoch + 1
    with pytest.raises(FencedError):
        query.commit(older, 2)
    query.commit(newer, 2)
    query.check(3)


@pytest.mark.parametrize("step", [PREPARE, COMMIT])
def test_a_lease(step: str, query: Query, stop_at: Any, meanwhile: Meanwhile, unanswered: list[str]):
    """I8: whoever was told of it at last holds the horizon back."""
    driver, stop = query.run(5), stop_at(step)
    reader = query.store()
    reader.pointer()
    stop.arm()
    leasing = meanwhile.start(reader.lease, Lease("mine", 1), 300.0)
    with stop.standing_still(OTHERS):
        wait_until(lambda: bool(unanswered), "the reader has no answer", PATIENT_S)
    leasing.result(PATIENT_S)
    query.retire(driver)
    assert driver.store.pointer().horizon == 1
    assert [each.version for each in driver.store.leases()] == [1]
    driver.store.release("mine")
    query.retire(driver)
    assert driver.store.pointer().horizon == 3
    query.check(5)


@pytest.mark.parametrize("step", [PREPARE, COMMIT])
def test_an_announcement(step: str, query: Query, stop_at: Any, meanwhile: Meanwhile, unanswered: list[str]):
    """It is read back until it is known; nothing is retired that a lease taken meanwhile holds."""
    driver, stop = query.run(5), stop_at(step)
    store = query.store()
    store.pointer()
    stop.arm()
    announcing = meanwhile.start(store.announce, 2)
    with stop.standing_still(OTHERS):
        wait_until(lambda: bool(unanswered), "the driver has no answer", PATIENT_S)
    assert announcing.result(PATIENT_S) == 2
    assert driver.store.pointer().horizon == 2
    query.retire(driver)
    assert driver.store.pointer().horizon == 3
    query.check(5)
