"""Reading from SQLite: tidegate's reader beside bare sqlite3 on the same files, in one run.

    tools/run python benchmarks/bench_reader.py [--keys 100000]

A namespace with two versions of every key is read through ``tidegate.connect`` and, with the
statements of docs/storage-format.md, by bare sqlite3: one key, and a thousand keys at once. The
bare reads check nothing (no horizon, no floor) and decode the same JSON. Printed: p50 of each
and the ratio.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import keys_up_to, microseconds_of, new_folder, parser_of, percentile, write_versions, writer_of

import tidegate
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints

KEY_GROUPS, SHARDS = 128, 16
ONE = "SELECT value FROM t_t WHERE kg = ? AND key = ? AND version <= ? ORDER BY version DESC LIMIT 1"


def main() -> None:
    arguments = parser_of(__doc__, keys=100_000).parse_args()
    with new_folder() as folder:
        where = Endpoints("bench", f"file://{folder}/wal", f"sqlite://{folder}/store")
        keys = keys_up_to(arguments.keys)
        with writer_of(where, Options(key_groups=KEY_GROUPS)) as coordinator:
            write_versions(coordinator, keys, 2)
        compare(where, keys, sorted((folder / "store" / "bench").glob("shard-*.sqlite")))


def compare(where: Endpoints, keys: list[bytes], paths: list[Path]) -> None:
    files, chance = [sqlite3.connect(path) for path in paths], random.Random(1)

    def bare_one(key: bytes) -> object:
        group = key_group(key, KEY_GROUPS)
        (value,) = files[group * SHARDS // KEY_GROUPS].execute(ONE, (group, key, 2)).fetchone()
        return json.loads(value[1:])

    with tidegate.connect(where.store, namespace="bench") as gate, gate.snapshot() as snapshot:
        table = snapshot.table("t")
        assert table.get(keys[0].decode()) == bare_one(keys[0])
        many = [keys[chance.randrange(len(keys))] for _ in range(1_000)]
        names, many_names = [key.decode() for key in keys], [key.decode() for key in many]
        reads = {
            "get, one key": (
                3_000,
                lambda: bare_one(keys[chance.randrange(len(keys))]),
                lambda: table.get(names[chance.randrange(len(keys))]),
            ),
            "get_many, 1,000 keys": (
                50,
                lambda: [bare_one(key) for key in many],
                lambda: table.get_many(many_names),
            ),
        }
        print(f"{len(keys):,} keys, two versions of each; p50 in microseconds")
        for name, (calls, *sides) in reads.items():
            bare, ours = (percentile(microseconds_of(side, calls), 0.5) for side in sides)
            print(f"{name:22} bare sqlite3 {bare:9.1f}   tidegate {ours:9.1f}   ratio {ours / bare:.2f}")


if __name__ == "__main__":
    main()
