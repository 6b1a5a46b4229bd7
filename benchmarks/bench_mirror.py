r"""A mirror in memory and in a file, beside the table in its store and a dict: one key, and moves.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_mirror.py --store {redis} [--rows 1000000] [--changes 10000]

The baseline of a read is a ``dict`` whose values are JSON, decoded at each read; ``table.get`` of the same
gate is beside it. A move is the time from a commit's return until the mirror has the version, without the
commit; its baseline is a whole read of the tables in the same run. The file is in the system's temporary
folder. A restart is the time until a mirror on an existing file answers, and until it has the newest version,
which is as many changes ahead.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import alternate_calls, json_value, keys_up_to, new_folder, parser_of, write_versions, writer_of

import tidegate
from tidegate.committers.coordinator import Coordinator
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.reader.gate import Gate
from tidegate.sinks.open_store import open_store

MOVES = 5


def main() -> None:
    parser = parser_of(__doc__, store=True, rows=1_000_000, changes=10_000)
    arguments = parser.parse_args()
    keys, chance = keys_up_to(arguments.rows), random.Random(1)
    names = [key.decode() for key in keys]
    some = keys[:: max(arguments.rows // arguments.changes, 1)][: arguments.changes]
    with new_folder() as folder:
        where = Endpoints("bench-mirror", f"file://{folder}/wal", arguments.store)
        with writer_of(where, Options(key_groups=128)) as writer:
            write_versions(writer, keys, 1)
            with tidegate.connect(arguments.store, namespace=where.namespace) as gate:
                file = {"path": folder / "mirror.db"}
                with measured("memory", gate, writer, some, bytes_max=4 << 30) as mirror:
                    mirrored = mirror.view().table("t")  # readable when the mirror is closed
                with measured("file", gate, writer, some, **file) as mirror:
                    plain, stored, filed = (
                        dict.fromkeys(names, json_value(0)),
                        gate.table("t"),
                        mirror.table("t"),
                    )
                    sides = {
                        "dict and JSON": lambda: msgspec.json.decode(
                            plain[names[chance.randrange(len(names))]]
                        ),
                        "memory": lambda: mirrored.get(names[chance.randrange(len(names))]),
                        "file": lambda: filed.get(names[chance.randrange(len(names))]),
                        "store": lambda: stored.get(names[chance.randrange(len(names))]),
                    }
                    took = alternate_calls(sides, 5, 2_000, warm_up=1)
                    for name, each in took.items():
                        print(f"get, {name:14} {each:8.2f} us, {each / took['dict and JSON']:.1f} x a dict")
                write_versions(writer, some, 1)
                began = time.monotonic()
                with gate.mirror("t", **file) as mirror:
                    mirror.table("t").get(names[0])
                    answered_s = time.monotonic() - began
                    mirror.wait_for(writer.folded.last_version, timeout=60)
                    moved_s = time.monotonic() - began
                print(
                    f"restart on the file: answers after {1e3 * answered_s:.1f} ms, is moved after"
                    f" {moved_s:.3f} s"
                )
        open_store(arguments.store, where.namespace).drop()


@contextlib.contextmanager
def measured(
    place: str, gate: Gate, writer: Coordinator, some: list[bytes], **options: Any
) -> Iterator[tidegate.Mirror]:
    """Print the times of a whole read and of moves; yield the mirror."""
    began = time.monotonic()
    with gate.mirror("t", **options) as mirror:
        whole_s = time.monotonic() - began
        print(
            f"{place}: {len(mirror.table('t')):,} rows, {mirror.size / 1e6:,.0f} MB; read whole:"
            f" {whole_s:.2f} s"
        )
        moves = []
        for _ in range(MOVES):
            write_versions(writer, some, 1)
            began = time.monotonic()
            mirror.wait_for(writer.folded.last_version, timeout=60)
            moves.append(time.monotonic() - began)
        move_s = statistics.median(moves)
        print(
            f"{place}: moved by {len(some):,} changes: {move_s:.3f} s, {whole_s / move_s:.0f} times less than"
            " a whole read"
        )
        yield mirror


if __name__ == "__main__":
    main()
