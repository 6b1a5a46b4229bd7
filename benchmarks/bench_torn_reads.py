r"""Torn reads: a hundred markers rewritten to one number in every batch, and a reader that looks all along.

    tools/run python tests/services/run.py kafka redis -- \
        python benchmarks/bench_torn_reads.py --wal {kafka} --store {redis} [--snapshots 10000]

The plain writer is ``foreachPartition`` with redis-py pipelines of SETs; its reader takes all markers
with one MGET. With ``--store {cassandra} --jars <folder>`` it is the Spark Cassandra Connector (how to fetch
it: spark-cassandra-connector-pom.xml), and its reader takes all markers with one SELECT. tidegate's takes
a snapshot and one ``get_many``. A read that sees two numbers is torn. Batches go on until the reader has
made ``--snapshots`` reads of tidegate, and a tenth of that of the plain writer, or ``--seconds`` are over for
each of the two; ``--only tidegate`` leaves the other out. ``--readers`` are processes that read at once, and
``--key-groups`` those of tidegate's namespace: markers in fewer groups are fewer requests. Printed: how many
reads were torn, and how many versions the reader that saw most of them saw.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import connector_settings, new_folder, parser_of, sink_in, spark_on

BATCHES_MIN = 20
TABLE = "torn.plain"
MARKERS = [f"marker-{number}" for number in range(100)]


def watch(kind: str, url: str, namespace: str, stop: Path) -> None:
    """The reader process: until the file appears; reads, torn ones and numbers seen, as JSON, each second."""
    read = plain_reader(url) if kind == "plain" else versioned_reader(url, namespace)
    reads, torn, seen, told = 0, 0, set(), time.monotonic()
    while True:
        ending = stop.exists()
        values = read()
        if values and values[0] is not None:
            reads += 1
            torn += len(set(values)) > 1
            seen |= set(values)
        if ending or time.monotonic() > told + 1:
            told = time.monotonic()
            print(json.dumps({"reads": reads, "torn": torn, "seen": len(seen)}), flush=True)
        if ending:
            return


def versioned_reader(url: str, namespace: str) -> Callable[[], list[Any]]:
    """What tidegate's reader calls: the numbers of all markers in one snapshot. Empty: no version yet."""
    import tidegate

    gate = None

    def read() -> list[Any]:
        nonlocal gate
        with contextlib.suppress(tidegate.ConfigError, tidegate.SnapshotExpiredError):
            gate = gate or tidegate.connect(url, namespace=namespace)
            with gate.snapshot() as snapshot:
                found = snapshot.table("t").get_many(MARKERS)
                return [found[name]["n"] if name in found else None for name in MARKERS]
        return []

    return read


def plain_reader(url: str) -> Callable[[], list[Any]]:
    """What the plain writer's reader calls: the numbers of all markers."""
    if url.startswith("redis"):
        import redis

        client: Any = redis.Redis.from_url(url)
        return lambda: [None if found is None else int(found) for found in client.mget(MARKERS)]
    session = cassandra_session(url)
    select = session.prepare("SELECT key, n FROM torn.plain WHERE key IN ?")

    def read() -> list[Any]:
        found = {row.key: row.n for row in session.execute(select, (MARKERS,))}
        return [found.get(name) for name in MARKERS]

    return read


def cassandra_session(url: str) -> Any:
    from cassandra.cluster import Cluster

    node = urlsplit(url)
    return Cluster([node.hostname], port=node.port).connect()


def plain_writer(url: str) -> Callable[[Any], object]:
    """Writes a batch without versions."""
    if url.startswith("redis"):
        import redis

        from tidegate.bench.baselines.redis import write_rows

        return functools.partial(write_rows, functools.partial(redis.Redis.from_url, url), "")
    session = cassandra_session(url)
    keyspace, table = TABLE.split(".")
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace}"
        " WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
    )
    session.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (key text PRIMARY KEY, n int)")
    session.cluster.shutdown()
    options = {"keyspace": keyspace, "table": table}

    def write(batch: Any) -> None:
        batch.write.format("org.apache.spark.sql.cassandra").options(**options).mode("append").save()

    return write


def batch_of(spark: Any, rows: int, number: int) -> Any:
    """Return the rows of a batch: each with its number, the markers spread over them."""
    every = rows // len(MARKERS)
    marker = f"concat('marker-', cast(id div {every} as string))"
    key = f"if(id % {every} = 0, {marker}, concat('other-', cast(id as string))) as key"
    return spark.range(0, rows, numPartitions=2).selectExpr(key, f"{number} as n")


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=True, rows=50_000, snapshots=10_000, readers=1)
    parser.add_argument("--jars", help="the folder with the connector's jars, for Cassandra")
    parser.add_argument("--seconds", type=float, default=400.0, help="of each writer, at most")
    parser.add_argument("--key-groups", type=int, help="of tidegate's namespace")
    parser.add_argument("--only", choices=["plain", "tidegate"], help="this writer alone")
    parser.add_argument("--watch", nargs=3, metavar=("KIND", "NAMESPACE", "STOP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watch:
        kind, namespace, stop = arguments.watch
        watch(kind, arguments.store, namespace, Path(stop))
        return
    columns = {"table": "t", "key": "key", "key_groups": arguments.key_groups}
    with (
        new_folder() as folder,
        spark_on(**connector_settings(arguments.store, arguments.jars)) as spark,
        sink_in(folder, arguments, "-torn", **columns) as sink,
    ):
        batch = functools.partial(batch_of, spark, arguments.rows)
        writers: dict[str, tuple[Callable[[int], object], float]] = {}
        if arguments.only != "tidegate":
            write_plain = plain_writer(arguments.store)
            writers["plain"] = (lambda number: write_plain(batch(number)), 0.1)
        if arguments.only != "plain":
            writers["tidegate"] = (lambda number: sink.load({"t": batch(number)}, token=str(number)), 1.0)
        print(f"{len(MARKERS)} markers among {arguments.rows:,} rows a batch")
        for kind, (write, share) in writers.items():
            reads = int(share * arguments.snapshots)
            report = against_a_reader(kind, write, reads, f"bench-{os.getpid()}-torn", arguments, folder)
            torn = f"{report['torn']:,} of {report['reads']:,} reads torn"
            print(f"{kind:9} {torn} ({report['torn'] / report['reads']:.1%}), {report['seen']} numbers seen")


def against_a_reader(
    kind: str, write: Callable[[int], object], reads: int, namespace: str, arguments: Any, folder: Path
) -> dict[str, int]:
    stop, number, ends_at = folder / f"{kind}.stop", 0, time.monotonic() + arguments.seconds
    command = [sys.executable, __file__, "--store", arguments.store, "--watch", kind, namespace, str(stop)]
    every = [folder / f"{kind}-{reader}.json" for reader in range(arguments.readers)]
    with contextlib.ExitStack() as running:
        readers = []
        for told in every:
            output = running.enter_context(told.open("w"))
            readers.append(running.enter_context(subprocess.Popen(command, stdout=output)))
        while all(reader.poll() is None for reader in readers):
            number += 1
            write(number)
            enough = number >= BATCHES_MIN and so_far(every)["reads"] >= reads
            if enough or time.monotonic() > ends_at:
                stop.touch()
                for reader in readers:
                    reader.wait(60)
    assert all(reader.returncode == 0 for reader in readers), "a reader failed"
    return so_far(every)


def so_far(every: list[Path]) -> dict[str, int]:
    """Of all readers: their reads and torn reads, and the most numbers that one of them saw."""
    told = [json.loads(lines[-1]) for path in every if (lines := path.read_text().splitlines())]
    sums = {name: sum(each[name] for each in told) for name in ("reads", "torn")}
    return sums | {"seen": max((each["seen"] for each in told), default=0)}


if __name__ == "__main__":
    main()
