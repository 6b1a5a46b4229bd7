"""Incidents of servers that are replaced: a broker or a Cassandra node comes back with an empty disk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from game_day.incident import OPERATOR, Incident
from game_day.incidents.kafka_brokers import kafka, relog_by_its_steps
from game_day.incidents.redis_servers import redis
from game_day.rig import Rig
from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.server import CassandraServer
from services.support.kafka.server import KafkaCluster
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity

if TYPE_CHECKING:
    from typing_extensions import Self

SMALL = {"wal_options": {"partitions": 2}}


def three_brokers(folder: Path) -> KafkaCluster:
    return KafkaCluster(folder, 3)


def one_of_three_brokers(rig: Rig) -> None:
    rig.log.kill(0)
    rig.log.replace(0)


def the_only_broker(rig: Rig) -> None:
    """Replace the broker: the log is gone, and the store has all of it."""
    relog_by_its_steps(rig)
    rig.log.kill(0)
    rig.log.replace(0)


def make_tables(url: str, replication: int) -> None:
    with contextlib.closing(
        open_store(url, "nothing", {"create": True, "replication": replication, "timeout_s": 60})
    ) as store:
        store.create(Identity("u", "nothing", 1))


class ThreeNodes(CassandraCluster):
    """Three Cassandra nodes, each with all rows."""

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            make_tables(self.url, 3)
        except BaseException:
            self.end()
            raise
        return self


class OneNode(CassandraServer):
    """A Cassandra node with the tables."""

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            make_tables(self.url, 1)
        except BaseException:
            self.end()
            raise
        return self


def cassandra_node(rig: Rig) -> None:
    rig.store.kill(2)
    rig.store.replace(2)


INCIDENTS = [
    Incident(
        "broker-replaced",
        "one of three brokers comes back with an empty disk",
        one_of_three_brokers,
        redis,
        three_brokers,
        job=SMALL,
    ),
    Incident(
        "only-broker-replaced",
        "the only broker comes back with an empty disk",
        the_only_broker,
        redis,
        kafka,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "cassandra-node-replaced",
        "one of three Cassandra nodes is replaced by a new one",
        cassandra_node,
        ThreeNodes,
        deadline_s=180.0,
    ),
]
