"""Servers for the tests of this folder: some for the session, or a test's own.

Redis is always a process of ours (``redis_config.redis_program``). Kafka's brokers are those of
TIDEGATE_TEST_KAFKA=host:port when it is set; of docker-compose.yml when a container engine runs; else of
Maven's jars. Only ``kafka`` has that choice: its tests must do with a broker that others use too, so they
choose names for topics that nobody else has.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.config import SMALL_JVM
from services.support.cassandra.jdwp import OPTION
from services.support.cassandra.proxy import CassandraProxy
from services.support.cassandra.server import CassandraServer
from services.support.kafka.foreign import ForeignKafka, foreign_kafka
from services.support.kafka.server import KafkaCluster
from services.support.redis.cluster import RedisCluster
from services.support.redis.config import newer_program
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer
from services.support.servers import ROOT
from support.concurrency import failing_at, meanwhile  # noqa: F401 - fixtures of many
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cassandra is slow to start: the tests that share a node, or a cluster, run on one worker, and the limit
    of each holds what the first of them may have to do, fetch the jars and start three nodes."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        for shared in {"cassandra", "cassandra_cluster", "cassandra_debugged"} & asked:
            item.add_marker(pytest.mark.xdist_group(shared))
        if asked & {"cassandra", "cassandra_cluster", "cassandra_debugged", "private_cassandra"}:
            item.add_marker(pytest.mark.timeout(CASSANDRA_LIMIT_S), append=False)


CASSANDRA_LIMIT_S = 600
# A node that was down is not told by the others what it missed: reads and repair have to do without.
FORGETFUL = {"hinted_handoff_enabled": False}


class Servers(Protocol):
    folder: Path

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    def kept(self) -> list[Path]: ...


S = TypeVar("S", bound=Servers)


def _keep_logs(servers: Servers, test: str) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    name = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, (worker, test, servers.folder.name))))
    kept = ROOT / "artifacts" / "services" / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for file in servers.kept():
        shutil.copy(file, kept)


@contextlib.contextmanager
def _served(request: pytest.FixtureRequest, servers: S) -> Iterator[S]:
    """Run the servers. Their files go with them, but for their logs when a test failed meanwhile."""
    failed_before = request.session.testsfailed
    started = False
    try:
        with servers:
            started = True
            yield servers
    finally:
        if not started or request.session.testsfailed > failed_before:
            _keep_logs(servers, request.node.name)
        shutil.rmtree(servers.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster | ForeignKafka]:
    """One broker for all tests of a worker: take new names for topics, and leave it as it was."""
    foreign = foreign_kafka()
    if foreign is not None:
        yield foreign
        return
    with _served(request, KafkaCluster(tmp_path_factory.mktemp("kafka"))) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Three brokers for all tests of a worker. Whoever kills or pauses one calls ``heal()`` at the end."""
    with _served(request, KafkaCluster(tmp_path_factory.mktemp("kafka3"), brokers=3)) as cluster:
        yield cluster


def _factory(
    request: pytest.FixtureRequest, folder: Path, name: str, make: Callable[..., S]
) -> Iterator[Callable[..., S]]:
    with contextlib.ExitStack() as running:

        def start(**options: Any) -> S:
            numbered = itertools.count()
            mine = next(f for n in numbered if not (f := folder / f"{name}-{n}").exists())
            return running.enter_context(_served(request, make(mine, **options)))

        yield start


@pytest.fixture
def private_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts brokers for one test: ``private_kafka(brokers=3, sasl={"ann": "secret"})``."""
    yield from _factory(request, tmp_path, "kafka", KafkaCluster)


# -- Redis ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests of a worker: take ``namespace`` for the keys, and leave the rest as it was."""
    with _served(request, RedisServer(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def namespace(redis: RedisServer) -> Iterator[str]:
    """A name that no other test has, for keys of ``redis``; those that have it in them go with the test."""
    name = f"n{uuid.uuid4().hex}"
    yield name
    redis.forget(name)


@pytest.fixture(scope="session")
def redis_sentinel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisSentinel]:
    """A primary, a replica and three Sentinels. Whoever kills or pauses one calls ``heal()`` at the end."""
    with _served(request, RedisSentinel(tmp_path_factory.mktemp("sentinel"))) as servers:
        yield servers


@pytest.fixture(scope="session")
def redis_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisCluster]:
    """Three primaries, three replicas. Whoever kills or pauses one calls ``heal()`` at the end."""
    with _served(request, RedisCluster(tmp_path_factory.mktemp("cluster"))) as servers:
        yield servers


@pytest.fixture
def private_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers for one test: ``private_redis(password="secret", settings={"appendonly": "no"})``."""
    yield from _factory(request, tmp_path, "redis", RedisServer)


@pytest.fixture
def newer_redis() -> str:
    """The program of a server that knows WAITAOF, for ``private_redis(program=...)``."""
    found = newer_program()
    if found is None:
        pytest.skip("no Redis 7.2 or Valkey here: TIDEGATE_REDIS_SERVER names one")
    return found


# -- Cassandra ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cassandra(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CassandraServer]:
    """One node for all tests: take new names for namespaces, and leave it as it was. It has no keyspace of
    its own: tidegate's store makes that of ``url`` with ``create``."""
    with _served(request, CassandraServer(tmp_path_factory.mktemp("cassandra"))) as server:
        yield server


@pytest.fixture(scope="session")
def cassandra_tables(cassandra: CassandraServer) -> str:
    """The URL of a keyspace of ``cassandra`` with the tables in it, for processes that are not told to make
    them."""
    store = open_store(cassandra.url, "nothing", {"create": True, "replication": 1, "timeout_s": 60})
    with contextlib.closing(store):
        store.create(Identity("u", "nothing", 1))
    return cassandra.url


@pytest.fixture(scope="session")
def cassandra_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CassandraCluster]:
    """Three nodes for all tests. Whoever kills or pauses one calls ``heal()`` at the end."""
    servers = CassandraCluster(tmp_path_factory.mktemp("cassandra3"), settings=FORGETFUL)
    with _served(request, servers):
        yield servers


@pytest.fixture(scope="module")
def cassandra_debugged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CassandraCluster]:
    """Three nodes whose threads a ``jdwp.Debugger`` can stop. Whoever pauses one calls ``heal()``."""
    folder = tmp_path_factory.mktemp("cassandra3d")
    with _served(request, CassandraCluster(folder, settings=FORGETFUL, jvm=(*SMALL_JVM, OPTION))) as servers:
        yield servers


@pytest.fixture
def private_cassandra(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., CassandraServer]]:
    """Starts a node for one test: ``private_cassandra(settings={"read_request_timeout": "1s"})``."""
    yield from _factory(request, tmp_path, "cassandra", CassandraServer)


@pytest.fixture
def cassandra_proxy(cassandra: CassandraServer) -> Iterator[CassandraProxy]:
    """A proxy in front of the shared node: whoever takes its ``url`` goes through it."""
    with CassandraProxy(cassandra) as proxy:
        yield proxy


@pytest.fixture
def cassandra_cluster_proxy(cassandra_cluster: CassandraCluster) -> Iterator[CassandraProxy]:
    """In front of the three nodes, and route 0 leads to the first."""
    with CassandraProxy(cassandra_cluster) as proxy:
        yield proxy
