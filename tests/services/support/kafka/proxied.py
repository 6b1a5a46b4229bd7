"""A broker behind the proxy, as a fixture: ``pytest_plugins = ["services.support.kafka.proxied"]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from services.support.kafka.proxy import KafkaProxy
from services.support.kafka.server import KafkaCluster


@dataclass(frozen=True)
class ProxiedKafka:
    """``bootstrap`` leads through the proxy, and so do the addresses that brokers then tell their clients."""

    cluster: KafkaCluster
    proxy: KafkaProxy
    bootstrap: str
    direct: str
    """The brokers without the proxy: for whoever looks at what became of it."""


def proxy_of(cluster: KafkaCluster) -> KafkaProxy:
    """One proxy in front of all brokers of a cluster that was started with ``proxied=True``."""
    numbers = range(cluster.brokers)
    return KafkaProxy([(cluster.proxied_address(n), cluster.proxied_target(n)) for n in numbers])


@pytest.fixture(scope="session")
def proxied_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedKafka]:
    with (
        KafkaCluster(tmp_path_factory.mktemp("kafka"), proxied=True) as cluster,
        proxy_of(cluster) as proxy,
    ):
        yield ProxiedKafka(cluster, proxy, cluster.proxied_bootstrap, cluster.bootstrap)


@pytest.fixture
def proxied_kafka(proxied_cluster: ProxiedKafka) -> Iterator[ProxiedKafka]:
    """One broker for the session, its proxy without rules and connections; raises what failed in it."""
    yield proxied_cluster
    proxied_cluster.proxy.clear()
    proxied_cluster.proxy.cut()
    if proxied_cluster.proxy.failures:
        raise proxied_cluster.proxy.failures.popleft()
