"""Nodes are killed or stand still in the middle: with three copies the query goes on, with one it stops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.query import AWAY_S, STARTS_S, TOLD, at_last, query_on, stopped_at
from services.support.cassandra.server import CassandraServer
from services.support.workloads.query import Query, Reader, held_snapshot
from support.concurrency import Failpoints, Meanwhile, Once
from tidegate.errors import StoreUnavailableError

# -- one node with the only copy ------------------------------------------------------------------------

PLACES = [
    ("open.after_append", 1),  # before the claim
    ("apply.after_chunk", 2),
    ("publish.before", 1),
    ("retire.after_announce", 1),
]


@pytest.fixture
def node(cassandra: CassandraServer) -> Iterator[CassandraServer]:
    yield cassandra
    if not cassandra.alive():
        cassandra.restart()


@pytest.fixture
def query(node: CassandraServer, tmp_path) -> Iterator[Query]:
    with query_on(node.url, tmp_path) as made:
        yield made


def go_on(query: Query, batches: int) -> None:
    """A driver that starts anew and gives up soon, with retirement after each batch."""
    driver = query.open(apply_deadline_s=AWAY_S, timeout_s=AWAY_S)
    for batch_id in range(batches):
        query.commit(driver, batch_id)
        query.retire(driver)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, nth", [pytest.param(*place, marks=pytest.mark.slow) for place in PLACES[:3]] + PLACES[3:]
)
def test_the_only_node_is_killed_at(
    place: str, nth: int, node: CassandraServer, query: Query, failing_at: Failpoints
):
    """It stops within its deadlines and says so; a version that was decided is there after the restart."""
    query.run(4)
    with Reader(query) as reader:
        reader.wait_whole(4)
        stopped_at(failing_at.at(place, node.kill, nth), lambda: go_on(query, 7))
        node.restart()
        query.retire(query.run(7))
        reader.wait_whole(7)
        assert set(reader.refused) <= TOLD
    query.check(7)


@pytest.mark.slow
def test_who_connects_meanwhile_is_told_and_who_waits_gets_there(
    node: CassandraServer, query: Query, meanwhile: Meanwhile
):
    query.run(2)
    node.kill()
    store = query.store(timeout_s=0.5)
    with pytest.raises(StoreUnavailableError):
        store.pointer()
    waiting = meanwhile.start(query.store(timeout_s=STARTS_S).pointer)
    node.restart()
    assert waiting.result(STARTS_S).visible == 2
    query.check(2)


@pytest.mark.slow
def test_a_driver_waits_for_its_node(node: CassandraServer, query: Query, failing_at: Failpoints):
    """Nobody has to start it again, if the node is back within the deadline."""

    def restart() -> None:
        node.kill()
        node.launch()

    driver = query.run(2, apply_deadline_s=STARTS_S)
    with Reader(query) as reader:
        places = [failing_at.at(place, restart) for place in ("apply.before_chunk", "publish.before")]
        query.commit(driver, 2, 3)
        assert all(at.done for at in places)
        reader.wait_whole(4)
    query.check(4)


# -- three nodes with a copy each -----------------------------------------------------------------------


@pytest.fixture
def cluster(cassandra_cluster: CassandraCluster) -> Iterator[CassandraCluster]:
    yield cassandra_cluster
    cassandra_cluster.heal()


@pytest.fixture
def on_three(cluster: CassandraCluster, tmp_path) -> Iterator[Query]:
    with query_on(cluster.url, tmp_path, replication=3, timeout_s=10.0) as made:
        yield made


def a_version_after_each(
    places: Sequence[str], query: Query, cluster: CassandraCluster, failing_at: Failpoints, fault: str
) -> None:
    """At every place another node fails, and is back before the next one does."""
    nodes, versions = itertools.cycle(range(3)), 4
    query.run(versions)
    with Reader(query) as reader:
        reader.wait_whole(versions)
        for place in places:
            failed = next(nodes)
            at: Once = failing_at.at(place, lambda failed=failed: getattr(cluster, fault)(failed))
            versions += 2
            driver = at_last(query.run, versions)
            at_last(query.retire, driver)
            assert at.done
            reader.wait_whole(versions)
            cluster.heal()
            reader.wait_whole(versions)
    query.check(versions)


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place, _ in PLACES])
def test_a_node_of_three_is_killed_at(
    place: str, cluster: CassandraCluster, on_three: Query, failing_at: Failpoints
):
    a_version_after_each([place], on_three, cluster, failing_at, "kill")


@pytest.mark.slow  # every request to it is waited for
def test_a_node_of_three_stands_still(cluster: CassandraCluster, on_three: Query, failing_at: Failpoints):
    a_version_after_each(["apply.after_chunk", "publish.before"], on_three, cluster, failing_at, "pause")


@pytest.mark.slow
def test_two_of_three_are_gone(cluster: CassandraCluster, on_three: Query, failing_at: Failpoints):
    """No quorum: nothing is half visible, what was decided stays decided and is finished later."""

    def fail() -> None:
        cluster.kill(1)
        cluster.pause(2)

    query = on_three
    query.run(4)
    with Reader(query) as reader, held_snapshot(query) as held:
        reader.wait_whole(4)
        at = failing_at.at("apply.after_chunk", fail)
        told = stopped_at(at, lambda: query.run(5, timeout_s=AWAY_S, apply_deadline_s=AWAY_S))
        assert "it stays decided" in str(told)
        assert held.look() == "StoreUnavailableError"
        with pytest.raises(StoreUnavailableError):
            query.open(timeout_s=AWAY_S)
        cluster.heal()
        assert held.look() in {"whole", "SnapshotExpiredError"}
        at_last(query.run, 6)
        reader.wait_whole(6)
        assert set(reader.refused) <= TOLD
    query.check(6)
