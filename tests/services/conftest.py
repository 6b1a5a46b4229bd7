"""Kafka for the tests of this folder: a broker for the session, three of them, or one of a test's own.

Where brokers come from: TIDEGATE_TEST_KAFKA=host:port when it is set; docker-compose.yml when a container
engine runs; else Maven's jars. Only ``kafka`` has that choice: its tests must do with a broker that others
use too, so they choose names for topics that nobody else has.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foreign_kafka import ForeignKafka, foreign_kafka
from kafka_jars import ROOT
from kafka_server import KafkaCluster


def _keep_logs(cluster: KafkaCluster, test: str) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    name = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, (worker, test, cluster.folder.name))))
    kept = ROOT / "artifacts" / "services" / name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for file in cluster.folder.glob("broker-*"):
        shutil.copy(file, kept)


@contextlib.contextmanager
def _served(request: pytest.FixtureRequest, cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """Run the cluster. Its files go with it, but for the brokers' logs when a test failed meanwhile."""
    failed_before = request.session.testsfailed
    started = False
    try:
        with cluster:
            started = True
            yield cluster
    finally:
        if not started or request.session.testsfailed > failed_before:
            _keep_logs(cluster, request.node.name)
        shutil.rmtree(cluster.folder, ignore_errors=True)


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


@pytest.fixture
def private_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts brokers for one test: ``private_kafka(brokers=3, sasl={"ann": "secret"})``."""
    with contextlib.ExitStack() as running:

        def start(**options: Any) -> KafkaCluster:
            numbered = itertools.count()
            folder = next(f for n in numbered if not (f := tmp_path / f"kafka-{n}").exists())
            return running.enter_context(_served(request, KafkaCluster(folder, **options)))

        yield start
