"""Nodes that were away, stood still or know of other tables: what each lacks, and what is said of it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.query import at_last, query_on
from services.support.workloads.query import KEY_GROUPS, Query, Reader
from support.driver_process import MARKER
from support.wait import wait_until
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.cassandra.store import CassandraStore

PATIENT_S = 60.0
"""A store's call, while the nodes do not know yet that one of them is gone."""


@pytest.fixture
def cluster(cassandra_cluster: CassandraCluster) -> Iterator[CassandraCluster]:
    yield cassandra_cluster
    cassandra_cluster.heal()


def versions_on(cluster: CassandraCluster, node: int, query: Query) -> set[int]:
    """Of which versions a node by itself has rows, retired ones too."""
    space = query.store()._space.made.space
    own = SimpleStatement(
        "SELECT version FROM tidegate.tidegate_rows WHERE space = %s AND tbl = %s AND kg = %s",
        consistency_level=ConsistencyLevel.ONE,
    )
    with cluster.nodes[node].session() as session:
        return {row[0] for group in range(KEY_GROUPS) for row in session.execute(own, (space, MARKER, group))}


@pytest.mark.slow
def test_a_node_that_was_down_for_a_retirement_comes_back(cluster: CassandraCluster, tmp_path):
    """Nobody tells it what it missed (these nodes keep no hints): it still has what was retired, and lacks
    versions. A quorum with it in it is right all the same."""
    with query_on(cluster.url, tmp_path, replication=3, timeout_s=PATIENT_S) as query:
        driver = query.run(4)
        with Reader(query) as reader:
            reader.wait_whole(4)
            cluster.kill(2)
            for batch_id in range(4, 9):
                query.commit(driver, batch_id)

            def retired() -> bool:  # a snapshot of the reader's may hold a version for a while
                at_last(query.retire, driver)
                return bool(driver.store.pointer().horizon == 7)

            wait_until(retired, "all old versions are retired", PATIENT_S)
        cluster.restart(2)
        assert versions_on(cluster, 2, query) & {1, 2, 3, 4}  # a reader would have mended what it read
        cluster.kill(0)  # whoever reads now asks the node that came back
        with Reader(query) as reader:
            reader.wait_whole(9)
            query.check(9)
            query.commit(driver, 9)
            at_last(query.retire, driver)
            reader.wait_whole(10)
        query.check(10)


@pytest.mark.slow
def test_tables_are_made_while_a_node_is_down(cluster: CassandraCluster, tmp_path):
    """And a second keyspace; the node learns of both when it is back."""
    cluster.kill(1)
    queries = []
    with (
        query_on(cluster.url_for("made_first"), tmp_path / "1", replication=3, timeout_s=PATIENT_S) as first,
        query_on(cluster.url_for("made_next"), tmp_path / "2", replication=3, timeout_s=PATIENT_S) as second,
    ):
        for query in (first, second):
            queries.append((query, at_last(query.run, 2)))
            query.check(2)
        cluster.restart(1)
        cluster.kill(2)
        for query, driver in queries:
            query.commit(driver, 2, 3)
            query.check(4)


# -- nodes that do not agree on the schema ----------------------------------------------------------------


@contextlib.contextmanager
def disagreeing(cluster: CassandraCluster) -> Iterator[None]:
    """The first node holds that the last one has another schema, whatever that says of itself."""
    told, ending = threading.Event(), threading.Event()

    def tell() -> None:
        with cluster.nodes[0].session() as session:
            at = "SELECT peer, peer_port FROM system.peers_v2"
            (last,) = [row for row in session.execute(at) if row.peer == cluster.nodes[2].address]
            other = "UPDATE system.peers_v2 SET schema_version = uuid() WHERE peer = %s AND peer_port = %s"
            while not ending.wait(0.02):
                session.execute(other, tuple(last))
                told.set()

    telling = threading.Thread(target=tell)
    telling.start()
    try:
        assert told.wait(PATIENT_S)
        yield
    finally:
        ending.set()
        telling.join()
        (real,) = cluster.nodes[2].ask("SELECT schema_version FROM system.local")[0]
        where = (cluster.nodes[2].address, cluster.nodes[2].ports.storage)
        at = "WHERE peer = %s AND peer_port = %s"
        cluster.nodes[0].ask(f"UPDATE system.peers_v2 SET schema_version = %s {at}", real, *where)


@pytest.mark.slow  # the driver waits ten seconds for nodes to agree, again and again
def test_nodes_that_do_not_agree_on_the_schema(cluster: CassandraCluster, tmp_path):
    """Nobody makes tables then, and it is said; a query on tables that are there goes on."""
    url = cluster.nodes[0].url_for(f"k{uuid.uuid4().hex[:12]}")
    making = CassandraStore(url, "n", replication=3, timeout_s=PATIENT_S)
    with query_on(cluster.url, tmp_path, replication=3) as query, contextlib.closing(making):
        driver = at_last(query.run, 2)
        with disagreeing(cluster):
            with pytest.raises(StoreUnavailableError, match="do not agree on the schema"):
                making.prepare()
            found = {check.check: check for check in making.checks(thorough=True)}
            assert found["schema"].outcome == "warn"
            query.commit(driver, 2, 3)
        cluster.wait_ready()
        at_last(making.prepare)
        assert making.identity() is None
        query.check(4)
