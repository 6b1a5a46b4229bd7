"""Cassandra without any guarantee: an INSERT per row, and unlogged batches of one partition."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BatchStatement, BatchType

from tidegate.bench.baselines.interface import Baselines
from tidegate.bench.plan import Plan
from tidegate.sinks.cassandra.client import session as cassandra_session
from tidegate.sinks.cassandra.client.settings import settings_of

PARTITIONS, CONCURRENCY, BATCH_ROWS, IN_FLIGHT = 128, 100, 100, 64
TABLE_CQL = (
    "CREATE TABLE IF NOT EXISTS {0} (part int, key text, value text, PRIMARY KEY ((part), key))"
    " WITH compaction = {{'class': 'LeveledCompactionStrategy'}}"
)


def baselines(plan: Plan) -> Baselines:
    """Make the baselines; their table is in the store's keyspace."""
    table = plan.mark.replace("-", "_")
    own = {name: value for name, value in plan.store_options.items() if name not in {"create", "replication"}}
    target = (plan.store, own, f"{settings_of(plan.store, own).keyspace}.{table}")
    session = cassandra_session.take(settings_of(plan.store, own), "the baselines' table")
    session.driver.execute(TABLE_CQL.format(target[2]))
    one = session.driver.prepare(f"SELECT value FROM {target[2]} WHERE part = ? AND key = ?")

    def get(key: str) -> int:
        return session.driver.execute(one, (_part(key), key)).one() is not None

    def get_many(keys: Sequence[str]) -> int:
        futures = [session.driver.execute_async(one, (_part(key), key)) for key in keys]
        return sum(future.result().one() is not None for future in futures)

    def remove() -> None:
        session.driver.execute(f"DROP TABLE IF EXISTS {target[2]}", timeout=60)
        cassandra_session.give_back(session)

    writers = {
        "an INSERT per row": functools.partial(_write_rows, *target),
        "unlogged batches": functools.partial(_write_batches, *target),
    }
    return Baselines(writers, "cassandra-driver, prepared", get, get_many, remove)


def _part(key: str) -> int:
    return int(key.rpartition("-")[2]) % PARTITIONS


@contextlib.contextmanager
def _session(url: str, options: dict[str, Any]) -> Iterator[Any]:
    session = cassandra_session.take(settings_of(url, options), "the baselines' table")
    try:
        yield session.driver
    finally:
        cassandra_session.give_back(session)


def _write_rows(url: str, options: dict[str, Any], table: str, batch: Any) -> None:
    def write(rows: Iterable[Any]) -> None:
        with _session(url, options) as session:
            insert = session.prepare(f"INSERT INTO {table} (part, key, value) VALUES (?, ?, ?)")
            given = ((_part(row.key), row.key, row.value) for row in rows)
            execute_concurrent_with_args(session, insert, given, concurrency=CONCURRENCY)

    batch.foreachPartition(write)


def _write_batches(url: str, options: dict[str, Any], table: str, batch: Any) -> None:
    def write(rows: Iterable[Any]) -> None:
        waiting: deque[Any] = deque()
        pending: dict[int, list[Any]] = {}
        with _session(url, options) as session:
            insert = session.prepare(f"INSERT INTO {table} (part, key, value) VALUES (?, ?, ?)")

            def send(part: int) -> None:
                statement = BatchStatement(BatchType.UNLOGGED)
                for row in pending.pop(part):
                    statement.add(insert, (part, row.key, row.value))
                if len(waiting) == IN_FLIGHT:
                    waiting.popleft().result()
                waiting.append(session.execute_async(statement))

            for row in rows:
                part = _part(row.key)
                pending.setdefault(part, []).append(row)
                if len(pending[part]) == BATCH_ROWS:
                    send(part)
            for part in list(pending):
                send(part)
            for future in waiting:
                future.result()

    batch.foreachPartition(write)
