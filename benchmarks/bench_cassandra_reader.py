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
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off


from harness import (
    alternate_calls,
    json_value,
    keys_up_to,
    new_folder,
    parser_of,
    write_versions,
    writer_of,
)

import tidegate
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Identity, ReadAt
from tidegate.testing.store.harness import put, retire_version, runs_of
from tidegate.wal.frame import Chunk

KEY_GROUPS, ROUNDS, CALLS = 128, 10, 500
MADE = {"create": True, "replication": 1}
REST_S = 180


def main() -> None:
    arguments = parser_of(__doc__, store=True, keys=10_000, versions=1_000, keep=100).parse_args()
    keys = keys_up_to(arguments.keys)
    beside_a_bare_select(arguments.store, keys)
    after_many_versions(arguments, keys)


# -- one read -------------------------------------------------------------------------------------


def beside_a_bare_select(url: str, keys: list[bytes]) -> None:
    namespace, chance = f"bench-{os.getpid()}", random.Random(1)
    options = Options(key_groups=KEY_GROUPS, allow_unsafe=True)
    with (
        new_folder() as folder,
        writer_of(Endpoints(namespace, f"file://{folder}/wal", url, store_options=MADE), options) as writer,
    ):
        write_versions(writer, keys, 1)
        space: Any = writer.store._space  # type: ignore[attr-defined]  # noqa: SLF001 - the same driver for both
        session = space.session.driver
        session.set_keyspace(space.settings.keyspace)
        session.execute(
            "CREATE TABLE IF NOT EXISTS plain (kg int, key blob, value blob, PRIMARY KEY (kg, key))"
        )
        insert = session.prepare("INSERT INTO plain (kg, key, value) VALUES (?, ?, ?)")
        for key in keys:
            session.execute(insert, (key_group(key, KEY_GROUPS), key, json_value(0)))
        select = session.prepare("SELECT value FROM plain WHERE kg = ? AND key = ?")

        def bare() -> Any:
            key = chance.choice(keys)
            return json.loads(session.execute(select, (key_group(key, KEY_GROUPS), key)).one()[0])

        with tidegate.connect(url, namespace=namespace) as gate, gate.snapshot() as snapshot:
            table, names = snapshot.table("t"), [key.decode() for key in keys]
            assert table.get(names[5]) == bare()
            medians = alternate_calls(
                {"bare": bare, "ours": lambda: table.get(chance.choice(names))}, ROUNDS, CALLS, warm_up=1
            )
        ratio = medians["ours"] / medians["bare"]
        print(
            f"get: bare SELECT {medians['bare']:.0f} us, tidegate {medians['ours']:.0f} us, ratio {ratio:.2f}"
        )
        session.execute("DROP TABLE plain")
        writer.store.drop()


# -- a thousand versions ------------------------------------------------------------------------------


def after_many_versions(arguments: argparse.Namespace, keys: list[bytes]) -> None:
    aged, fresh = (created(arguments.store, f"bench-{kind}-{os.getpid()}") for kind in ("aged", "fresh"))
    started = time.perf_counter()
    for version in range(1, arguments.versions + 1):
        put(aged, version, changes_of(keys, version), KEY_GROUPS)
        oldest = version - arguments.keep + 1
        if oldest > 1 and aged.announce(oldest) == oldest:
            retire_version(aged, oldest, [Chunk(0, runs_of(changes_of(keys, oldest), KEY_GROUPS))])
    put(fresh, 1, changes_of(keys, 1), KEY_GROUPS)
    print(
        f"{arguments.versions} versions of {len(keys):,} keys, {arguments.keep} kept, written and retired in"
        f" {time.perf_counter() - started:.0f} s"
    )
    await_rest(aged)
    chance = random.Random(2)
    medians = alternate_calls(
        {
            "aged": lambda: aged.get(ReadAt("t", arguments.versions), chance.choice(keys)),
            "fresh": lambda: fresh.get(ReadAt("t", 1), chance.choice(keys)),
        },
        ROUNDS,
        CALLS,
        warm_up=1,
    )
    ratio = medians["aged"] / medians["fresh"]
    print(f"get: aged {medians['aged']:.0f} us, fresh {medians['fresh']:.0f} us, ratio {ratio:.2f}")
    for store in (aged, fresh):
        store.drop()
        store.close()


def created(url: str, namespace: str) -> CassandraStore:
    store = CassandraStore(url, namespace, **MADE)
    store.create(Identity(namespace, namespace, KEY_GROUPS))
    store.claim(1, "bench")
    return store


def changes_of(keys: list[bytes], version: int) -> dict[str, dict[bytes, bytes | None]]:
    return {"t": dict.fromkeys(keys, json_value(version))}


def await_rest(store: CassandraStore) -> None:
    """Until the server compacts no more."""
    session = store._space.session.driver  # noqa: SLF001
    end = time.monotonic() + REST_S
    while list(session.execute("SELECT task_id FROM system_views.sstable_tasks LIMIT 1")):
        if time.monotonic() > end:
            print(f"it still compacts after {REST_S} s")
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()
