"""Redis without any guarantee: a SET per row in pipelines, and one MSET per Arrow batch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import redis

from tidegate.bench.baselines.interface import KEY, Baselines
from tidegate.bench.plan import Plan
from tidegate.sinks.redis.client.servers import servers_of
from tidegate.sinks.redis.client.settings import settings_of

PIPELINE = 5_000
Client = Callable[[], Any]


def baselines(plan: Plan) -> Baselines:
    """Make the baselines. A Cluster has only the pipelines: it refuses an MSET over several slots."""
    client = functools.partial(_client, plan.store, plan.store_options)
    clustered = "+cluster" in plan.store.partition(":")[0]
    prefix = f"{plan.mark}:"
    writers = {"row pipelines": functools.partial(write_rows, client, prefix)}
    if not clustered:
        writers["Arrow + MSET"] = functools.partial(write_arrow, client, prefix)

    def get(key: str) -> int:
        return reader.get(prefix + key) is not None

    def get_many(keys: Sequence[str]) -> int:
        if clustered:
            pipe = reader.pipeline(transaction=False)
            for key in keys:
                pipe.get(prefix + key)
            return sum(each is not None for each in pipe.execute())
        return sum(each is not None for each in reader.mget([prefix + key for key in keys]))

    def remove() -> None:
        for first in range(0, plan.distinct, PIPELINE):
            pipe = reader.pipeline(transaction=False)
            for number in range(first, min(first + PIPELINE, plan.distinct)):
                pipe.unlink(prefix + KEY.format(number))
            pipe.execute()
        reader.close()

    reader = client()
    named = "GET, MGET" if not clustered else "GET, pipelines"
    left_out = ("Arrow + MSET: a Cluster takes no MSET over several slots",) if clustered else ()
    return Baselines(writers, f"redis-py ({named})", get, get_many, remove, left_out)


def _client(url: str, options: dict[str, Any]) -> Any:
    """Connect redis-py's own client to the store's primary, or to the Cluster."""
    settings = settings_of(url, options)
    given = {"ssl": settings.tls, **settings.connection}
    if settings.kind == "cluster":
        first = settings.seeds[0]
        return redis.RedisCluster(host=first.host, port=first.port, **given)
    with contextlib.closing(servers_of(settings)) as servers:
        primary = servers.primaries()[0].address
    return redis.Redis(host=primary.host, port=primary.port, **given)


def write_rows(client: Client, prefix: str, batch: Any) -> None:
    """Write a DataFrame of keys and values by pipelines of SETs, from each of its tasks."""

    def write(rows: Iterable[Any]) -> None:
        with contextlib.closing(client()) as server:
            pipe, waiting = server.pipeline(transaction=False), 0
            for key, value in rows:
                pipe.set(prefix + key, value)
                waiting += 1
                if waiting == PIPELINE:
                    pipe.execute()
                    waiting = 0
            pipe.execute()

    batch.foreachPartition(write)


def write_arrow(client: Client, prefix: str, batch: Any) -> None:
    """Write a DataFrame of keys and values by an MSET for each Arrow batch."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        with contextlib.closing(client()) as server:
            for rows in batches:
                keys, values = (column.to_pylist() for column in rows.columns)
                if keys:
                    server.mset({prefix + key: value for key, value in zip(keys, values, strict=True)})
        yield from ()

    batch.mapInArrow(write, "key string").write.format("noop").mode("append").save()
