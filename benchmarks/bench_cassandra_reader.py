r"""Point reads from Cassandra: beside a bare prepared SELECT, and after a thousand versions of the same keys.

    tools/run python tests/services/run.py cassandra -- \
        python benchmarks/bench_cassandra_reader.py --store {cassandra} [--versions 1000]

Bare: cassandra-driver, one prepared SELECT by partition and key on a table without versions, decoded as
JSON. tidegate: ``snapshot.table(...).get``. Then two namespaces with the same keys: one with a single
version, one in which every version rewrites every key and all but the newest are retired, flushed and
compacted by the server as it goes along; printed once its compactions have come to rest. Rounds in turns,
medians of all calls.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.keys.groups import key_group
from tidegate.options import Endpoints, Options
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Identity, Stamp
from tidegate.testing import arrow_barrier
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, LoadOrigin, TableAt, TableSchema

KEY_GROUPS, ROUNDS, CALLS = 128, 10, 500
MADE = {"create": True, "replication": 1}
SCHEMA = TableSchema((Column("key", "string"),), (Column("n", "bigint"), Column("text", "string")))
REST_S = 180


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--versions", type=int, default=1_000)
    parser.add_argument("--keep", type=int, default=100)
    arguments = parser.parse_args()
    keys = [b"key-%07d" % at for at in range(arguments.keys)]
    beside_a_bare_select(arguments.store, keys)
    after_many_versions(arguments, keys)


def in_turns(*reads: Callable[[], object]) -> list[float]:
    """The median of each in microseconds, over rounds of all in turns."""
    took: list[list[float]] = [[] for _ in reads]
    for _ in range(ROUNDS):
        for of_one, read in zip(took, reads, strict=True):
            for _ in range(CALLS):
                started = time.perf_counter_ns()
                read()
                of_one.append((time.perf_counter_ns() - started) / 1_000)
    return [statistics.median(of_one[CALLS:]) for of_one in took]


# -- one read -------------------------------------------------------------------------------------


def beside_a_bare_select(url: str, keys: list[bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        namespace = f"bench-{os.getpid()}"
        coordinator = written(url, namespace, Path(folder), keys)
        session = coordinator.store._space.session.coordinator  # type: ignore[attr-defined]  # noqa: SLF001
        session.set_keyspace(coordinator.store._space.settings.keyspace)  # type: ignore[attr-defined]  # noqa: SLF001
        session.execute(
            "CREATE TABLE IF NOT EXISTS plain (kg int, key blob, value blob, PRIMARY KEY (kg, key))"
        )
        insert = session.prepare("INSERT INTO plain (kg, key, value) VALUES (?, ?, ?)")
        for key in keys:
            session.execute(insert, (key_group(key, KEY_GROUPS), key, value_of(0)))
        select = session.prepare("SELECT value FROM plain WHERE kg = ? AND key = ?")
        chance = random.Random(1)

        def bare() -> Any:
            key = chance.choice(keys)
            return json.loads(session.execute(select, (key_group(key, KEY_GROUPS), key)).one()[0])

        with tidegate.connect(url, namespace=namespace) as gate, gate.snapshot() as snapshot:
            table, names = snapshot.table("t"), [key.decode() for key in keys]
            assert table.get(names[5]) == bare()
            bare_us, ours_us = in_turns(bare, lambda: table.get(chance.choice(names)))
        print(f"get: bare SELECT {bare_us:.0f} us, tidegate {ours_us:.0f} us, ratio {ours_us / bare_us:.2f}")
        session.execute("DROP TABLE plain")
        coordinator.store.drop()
        coordinator.store.close()


def written(url: str, namespace: str, folder: Path, keys: list[bytes]) -> Coordinator:
    where = Endpoints(namespace, f"file://{folder}/wal", url, store_options=MADE)
    log, store = open_log(where.wal, namespace), open_store(url, namespace, MADE)
    coordinator = Coordinator(where, log, store, Options(key_groups=KEY_GROUPS, allow_unsafe=True))
    open_namespace(coordinator, "bench")
    arrow_barrier.BYTES_SCHEMA = SCHEMA  # the rows are JSON
    rows = {"t": dict.fromkeys(keys, value_of(0))}
    commit(coordinator, arrow_barrier.ArrowBarrier(log, rows, arrow_barrier.batch("bench", 0), KEY_GROUPS))
    return coordinator


def value_of(version: int) -> bytes:
    return b'{"n":%d,"text":"%s"}' % (version, b"x" * 40)


# -- a thousand versions ------------------------------------------------------------------------------


def after_many_versions(arguments: argparse.Namespace, keys: list[bytes]) -> None:
    aged, fresh = (made(arguments.store, f"bench-{kind}-{os.getpid()}") for kind in ("aged", "fresh"))
    started = time.perf_counter()
    for version in range(1, arguments.versions + 1):
        put(aged, version, keys)
        oldest = version - arguments.keep + 1
        if oldest > 1 and aged.announce(oldest) == oldest:
            aged.retire(stamp(oldest), counts_of(keys), iter([chunk_of(oldest, keys)]))
    put(fresh, 1, keys)
    print(
        f"{arguments.versions} versions of {len(keys):,} keys, {arguments.keep} kept, written and retired in"
        f" {time.perf_counter() - started:.0f} s"
    )
    await_rest(aged)
    chance = random.Random(2)
    aged_us, fresh_us = in_turns(
        lambda: aged.get("t", chance.choice(keys), arguments.versions),
        lambda: fresh.get("t", chance.choice(keys), 1),
    )
    print(f"get: aged {aged_us:.0f} us, fresh {fresh_us:.0f} us, ratio {aged_us / fresh_us:.2f}")
    for store in (aged, fresh):
        store.drop()
        store.close()


def made(url: str, namespace: str) -> CassandraStore:
    store = CassandraStore(url, namespace, **MADE)
    store.create(Identity(namespace, namespace, KEY_GROUPS))
    store.claim(1, "bench")
    return store


def put(store: CassandraStore, version: int, keys: list[bytes]) -> None:
    store.apply(stamp(version), chunk_of(version, keys))
    store.seal(stamp(version), counts_of(keys))
    tables, changes = {"t": TableAt("schema", 0)}, {"t": len(keys)}
    origin, at_us = LoadOrigin(str(version)), stamp(version).decided_at_us
    entry = CatalogEntry(version, f"digest-{version}", "attempt", origin, at_us, tables, changes)
    assert store.publish(entry, 1)


def stamp(version: int) -> Stamp:
    return Stamp(version, 1_700_000_000_000_000 + version)


def by_group(keys: list[bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for key in keys:
        found.setdefault(key_group(key, KEY_GROUPS), []).append(key)
    return found


def counts_of(keys: list[bytes]) -> dict[int, dict[str, int]]:
    return {group: {"t": len(some)} for group, some in by_group(keys).items()}


def chunk_of(version: int, keys: list[bytes]) -> Chunk:
    value = b"+" + value_of(version)
    runs = [
        Run(group, "t", pa.array(sorted(some), pa.binary()), pa.array([value] * len(some), pa.binary()))
        for group, some in sorted(by_group(keys).items())
    ]
    return Chunk(0, runs)


def await_rest(store: CassandraStore) -> None:
    """Until the server compacts no more."""
    session = store._space.session.coordinator  # noqa: SLF001
    end = time.monotonic() + REST_S
    while list(session.execute("SELECT task_id FROM system_views.sstable_tasks LIMIT 1")):
        if time.monotonic() > end:
            print(f"it still compacts after {REST_S} s")
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()
