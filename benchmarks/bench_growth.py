"""Curves of growth: what a process, a log, a store and a reader cost at 1, 10, 100 or 10,000 of something.

    run.py kafka redis-memory -- python benchmarks/bench_growth.py --wal '{kafka}' --store '{redis}' CURVE ...

Each curve prints one line for each size; ``--sizes 10,100`` replaces those of the curves that are named.
CPU is this process's; ``redis`` is the server's own time for commands (INFO commandstats). Without ``--wal``
and ``--store`` both are files in a temporary folder.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import os
import random
import re
import sqlite3
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import redis

import tidegate
from tidegate.aio import connect as connect_async
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.testing import arrow_barrier
from tidegate.wal.fold import View, fold, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Decided, Genesis, LoadOrigin, Open

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off
from harness import SCHEMA, json_value, keys_up_to, new_folder, parser_of, write_versions, writer_of

Row = dict[str, float | int | str]


class Place:
    """The log and the store of the curves, each namespace of its own."""

    def __init__(self, wal: str, store: str) -> None:
        self.wal, self.store = wal, store
        self.server = redis.Redis.from_url(store) if store.startswith("redis://") else None

    def endpoints(self) -> Endpoints:
        """Return a new namespace."""
        return Endpoints(f"growth-{uuid.uuid4().hex[:8]}", self.wal, self.store)

    def counters(self) -> tuple[float, int]:
        """Return the milliseconds that Redis has spent in commands, and the number of commands."""
        if self.server is None:
            return 0.0, 0
        stats = self.server.info("commandstats")
        return sum(each["usec"] for each in stats.values()) / 1e3, sum(e["calls"] for e in stats.values())


def process() -> Row:
    """Return what this process holds."""
    gc.collect()
    pages = int(re.split(r"\s+", open("/proc/self/statm").read())[1])  # noqa: SIM115, PTH123 - one line
    return {
        "objects": len(gc.get_objects()),
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "MiB": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
    }


def options(**more: Any) -> Options:
    """Return options of a writer for tests of cost."""
    return Options(allow_unsafe=True, **more)


# -- curves ---------------------------------------------------------------------------------------------


def versions(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Versions in one process: what it holds after each number of them."""
    with writer_of(place.endpoints(), options(key_groups=8, keep_versions=2)) as writer:
        done = 0
        for size in sizes:
            started = time.process_time()
            write_versions(writer, [b"key-%d" % n for n in range(10)], size - done)
            cost = (time.process_time() - started) * 1e3 / max(size - done, 1)
            done = size
            yield {"versions": size, "CPU ms a version": round(cost, 2), **process()}


def namespaces(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Namespaces that are open in one process: what it holds."""
    opened = []
    for size in sizes:
        while len(opened) < size:
            context = writer_of(place.endpoints(), options(key_groups=8))
            write_versions(context.__enter__(), [b"key"], 1)
            opened.append(context)
        yield {"namespaces": size, **process()}
    for context in opened:
        context.__exit__(None, None, None)


def layers(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Versions that are kept: Redis ms for one read of a row of the newest version, and of the first."""
    where = place.endpoints()
    with writer_of(where, options(key_groups=1, keep_versions=1_000)) as writer:
        write_versions(writer, [b"first", b"newest"], 1)
        for size in sizes:
            write_versions(writer, [b"newest"], size - writer.last_decided)
            with tidegate.connect(where.store, namespace=where.namespace) as gate:
                get = gate.table("t").get
                row: Row = {"kept": size}
                for key in ("newest", "first"):
                    row[key] = cost_of(place, functools.partial(get, key))
                yield row


def cost_of(place: Place, read: Callable[[], object], calls: int = 200) -> str:
    """Return the server's milliseconds and this process's for one call."""
    read()
    before, started = place.counters()[0], time.process_time()
    for _ in range(calls):
        read()
    took = (time.process_time() - started) * 1e3 / calls
    return f"redis {(place.counters()[0] - before) / calls:.3f} ms, CPU {took:.3f} ms"


def key_groups(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Key groups: commands and seconds of a scan of ten rows, and of a diff of ten rows."""
    for size in sizes:
        where = place.endpoints()
        with writer_of(where, options(key_groups=size, keep_versions=3)) as writer:
            write_versions(writer, [b"key-%d" % n for n in range(10)], 2)
        with tidegate.connect(where.store, namespace=where.namespace) as gate:
            row: Row = {"key groups": size}
            for name, read in (
                ("scan", lambda: list(gate.table("t").scan())),
                ("diff", lambda: list(gate.diff(1, 2))),
            ):
                before, started = place.counters()[1], time.perf_counter()
                read()
                row[name] = f"{place.counters()[1] - before} commands, {time.perf_counter() - started:.3f} s"
            yield row


def memory(place: Place, sizes: list[int], rows: int = 20_000) -> Iterator[Row]:
    """Keys of a key group: bytes of Redis for each row (a key of 11 bytes, a value of 58)."""
    if place.server is None:
        return
    for size in sizes:
        before = place.server.info("memory")["used_memory"]
        count = max(1, rows // size)
        with writer_of(place.endpoints(), options(key_groups=count, keep_versions=1)) as writer:
            write_versions(writer, keys_up_to(rows), 1)
            used = place.server.info("memory")["used_memory"] - before
            yield {"keys a key group": size, "key groups": count, "bytes a row": round(used / rows)}


def snapshots(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Snapshots that are open at one asyncio gate: CPU ms to take one, on the way to each number."""
    where = place.endpoints()
    with writer_of(where, options(key_groups=8)) as writer:
        write_versions(writer, [b"key"], 1)
    yield from asyncio.run(_snapshots(where, sizes))


async def _snapshots(where: Endpoints, sizes: list[int]) -> list[Row]:
    rows: list[Row] = []
    gate = await connect_async(where.store, namespace=where.namespace)
    opened: list[Any] = []
    for size in sizes:
        started, before = time.process_time(), len(opened)
        while len(opened) < size:
            snapshot = gate.snapshot()
            await snapshot.__aenter__()
            opened.append(snapshot)
        cost = (time.process_time() - started) * 1e3 / max(size - before, 1)
        rows.append({"snapshots": size, "CPU ms each": round(cost, 3)})
    for snapshot in opened:
        await snapshot.__aexit__(None, None, None)
    await gate.close()
    return rows


def threads(place: Place, sizes: list[int], reads: int = 6_000) -> Iterator[Row]:
    """Threads that read at one gate: reads a second, CPU microseconds of one, connections to files opened."""
    where = place.endpoints()
    keys = keys_up_to(5_000)
    with writer_of(where, options(key_groups=128)) as writer:
        write_versions(writer, keys, 2)
    with tidegate.connect(where.store, namespace=where.namespace) as gate:
        table, names = gate.table("t"), [key.decode() for key in keys]
        table.get(names[0])
        for size in sizes:

            def read(seed: int, count: int = reads // size) -> None:
                chance = random.Random(seed)
                for _ in range(count):
                    table.get(chance.choice(names))

            with (
                mock.patch.object(sqlite3, "connect", wraps=sqlite3.connect) as connect,
                concurrent.futures.ThreadPoolExecutor(size) as pool,
            ):
                started, cpu = time.perf_counter(), time.process_time()
                list(pool.map(read, range(size)))
                took, cpu = time.perf_counter() - started, time.process_time() - cpu
            done = reads // size * size
            row: Row = {
                "threads": size,
                "reads/s": round(done / took),
                "CPU us each": round(cpu * 1e6 / done),
            }
            yield {**row, "opened": connect.call_count}


def tables(place: Place, sizes: list[int], versions: int = 30) -> Iterator[Row]:
    """Tables of a namespace: CPU ms of a version that writes one row of one, and bytes of its decision."""
    arrow_barrier.BYTES_SCHEMA = SCHEMA
    for size in sizes:
        with writer_of(place.endpoints(), options(key_groups=8, keep_versions=2)) as writer:

            def make(names: list[str], writer: Coordinator = writer) -> None:
                number = writer.folded.last_version
                rows = {name: {b"key": json_value(number)} for name in names}
                commit(
                    writer,
                    arrow_barrier.ArrowBarrier(writer.log, rows, arrow_barrier.batch("bench", number), 8),
                )

            make([f"table-{number:03}" for number in range(size)])
            started = time.process_time()
            for _ in range(versions):
                make(["table-000"])
            cost = (time.process_time() - started) * 1e3 / versions
            last = max(writer.log.decisions(), key=lambda entry: entry.position)
            yield {"tables": size, "CPU ms a version": round(cost, 2), "bytes": len(last.content)}


def loads(_: Place, sizes: list[int]) -> Iterator[Row]:
    """Loads in a log: CPU microseconds of the fold for each."""
    for size in sizes:
        head = {"namespace": "0123456789abcdef" * 2, "writer": "fedcba9876543210"}
        state = fold(None, Genesis(**head, epoch=0, prev_digest="", key_groups=8, name="n", created_at_us=1))
        state = fold(state, Open(**head, epoch=1, prev_digest=state.digest, lineage="q"))
        started = time.process_time()
        for nth in range(size):
            origin = LoadOrigin(f"{nth:032x}")
            where = {"manifest_address": "a", "manifest_digest": "d", "tables": {}, "parallelism": {}}
            more = {"version": nth + 1, "base_version": nth, "decided_at_us": nth + 1, "source_offsets": ""}
            state = fold(
                state,
                Decided(
                    **head,
                    epoch=1,
                    prev_digest=state.digest,
                    attempt=f"{nth}",
                    origin=origin,
                    **where,
                    **more,
                ),
            )
        cost = (time.process_time() - started) * 1e6 / size
        assert len(state.once) == size
        yield {"loads": size, "CPU us each": round(cost, 1)}


def log_memory(place: Place, sizes: list[int]) -> Iterator[Row]:
    """Versions in a log: the peak of Python's memory while it is folded, and the CPU."""
    where = place.endpoints()
    with writer_of(where, options(key_groups=1, keep_versions=1)) as writer:
        for size in sizes:
            write_versions(writer, [b"key"], size - writer.last_decided)
            log = open_log(where.wal, where.namespace)
            started = time.process_time()
            fold_all(View(), log.decisions(), log.where)
            cpu = time.process_time() - started
            tracemalloc.start()
            fold_all(View(), log.decisions(), log.where)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            log.close()
            yield {"versions": size, "peak MiB": round(peak / 2**20, 1), "CPU s": round(cpu, 2)}


CURVES: dict[str, tuple[Callable[[Place, list[int]], Iterator[Row]], list[int]]] = {
    "versions": (versions, [100, 300, 600, 1_000]),
    "namespaces": (namespaces, [1, 10, 40]),
    "layers": (layers, [1, 10, 100, 500]),
    "key-groups": (key_groups, [128, 1_024, 8_192]),
    "memory": (memory, [5, 20, 100, 200, 400]),
    "snapshots": (snapshots, [100, 1_000, 4_000, 10_000]),
    "threads": (threads, [1, 5, 20, 60]),
    "tables": (tables, [1, 100, 700]),
    "loads": (loads, [1_000, 10_000, 100_000]),
    "log-memory": (log_memory, [500, 2_000]),
}


def main() -> None:
    """Print the curves that are named, or all."""
    parser = parser_of(__doc__, wal=False, store=False)
    parser.add_argument("curves", nargs="*", choices=[[], *CURVES], metavar="CURVE", default=[])
    parser.add_argument("--sizes", help="of each curve, with commas", default="")
    arguments = parser.parse_args()
    with new_folder() as folder:
        place = Place(arguments.wal or f"file://{folder}/wal", arguments.store or f"sqlite://{folder}/store")
        for name in arguments.curves or CURVES:
            curve, sizes = CURVES[name]
            sizes = [int(size) for size in arguments.sizes.split(",") if size] or sizes
            print(f"{name}: {(curve.__doc__ or '').partition(':')[0]}")
            for row in curve(place, sizes):
                print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
