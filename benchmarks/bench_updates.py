r"""Updates of a table in Redis: tidegate beside writers without guarantees, with the bill of each.

    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_updates.py --wal {kafka} --store {redis} \
        [--keys 1000000] [--batch 50000] [--zipf] [--far-ms 0] [--block 4] [--rounds 5]

One query on local[2], beside the servers on the same cores. Each trigger changes ``--batch`` keys of a
table of ``--keys``: uniform, or by ``--zipf`` key k with a chance of 1/k. Blocks of ``--block`` triggers go
to the writers alternately: one MSET per Arrow batch, in tasks; one MSET by the driver, which collects the
rows; pipelines of 5,000 SETs; tidegate with sync commits, and with pipelined ones, whose last version is
visible at the end of the block. Printed: the median seconds of a trigger, from the start of its block, so
that Spark's own work between two batches counts; the processor time of a trigger by kind of process; the
bytes that the server received; ratios to MSET. With ``--far-ms`` every writer reaches Redis by a relay that
keeps each byte for half of that time, there and back.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from far import relayed
from harness import DEADLINE_S, UNIT, VALUE, parser_of, rate, run_batches, sink_in, spark_on, tree

from tidegate.bench.baselines.redis import write_arrow, write_rows
from tidegate.sinks.redis.client.settings import settings_of

MSET, HERE, SETS = "MSET", "MSET by the driver", "SETs"
SYNC, PIPELINED = "tidegate sync", "tidegate pipelined"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KINDS = {"redis-server": "Redis", "java": "JVM", "python": "Python workers"}
Bill = collections.Counter[str]


def processor_s() -> Bill:
    """Return the processor seconds of this process, Spark's JVM and workers, and servers beside it, so far.

    A worker that ended counts for the process that waited for it.
    """
    spent: Bill = collections.Counter()
    mine = set(tree(os.getpid()))
    for pid in {*mine, *tree(os.getppid())}:
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            kind = "driver" if pid == os.getpid() else KINDS.get(name.rstrip("0123456789."), "")
            kind = kind if pid in mine or kind == "Redis" else "Kafka" if kind == "JVM" else ""
            own_and_waited_for = slice(11, 15)
            ticks = map(int, rest.split()[own_and_waited_for][: 2 if kind in ("driver", "JVM") else 4])
            spent[kind or "other"] += sum(ticks) * TICK_S
    del spent["other"]
    return spent


class Blocks:
    """Blocks of triggers, one writer's after another's: seconds, processor time and bytes of each trigger."""

    def __init__(self, sides: dict[str, Any], drain: dict[str, Callable[[], None]], block: int) -> None:
        self._sides, self._drain, self._block = sides, drain, block
        self._received: Callable[[], int] = lambda: 0
        self._since: tuple[float, Bill, int] = (0.0, collections.Counter(), 0)
        self.seconds: dict[str, list[float]] = {name: [] for name in sides}
        self.bills: dict[str, list[Bill]] = {name: [] for name in sides}
        self.received: dict[str, list[float]] = {name: [] for name in sides}

    def count_bytes(self, received: Callable[[], int]) -> None:
        self._received = received

    def write(self, batch: Any, batch_id: int) -> None:
        if batch_id == 0:  # a namespace begins with its checkpoint's first batch
            for write in self._sides.values():
                write(batch, batch_id)
            return
        turn, place = divmod(batch_id - 1, self._block)
        name = list(self._sides)[turn % len(self._sides)]
        if place == 0:
            self._since = time.perf_counter(), processor_s(), self._received()
        self._sides[name](batch, batch_id)
        if place == self._block - 1:
            self._drain.get(name, lambda: None)()
            began, spent, received = self._since
            self.seconds[name].append((time.perf_counter() - began) / self._block)
            bill = processor_s()
            bill.subtract(spent)
            self.bills[name].append(bill)
            self.received[name].append((self._received() - received) / self._block)

    def report(self, warm_up: int) -> None:
        kinds = ("JVM", "Python workers", "driver", "Redis", "Kafka")
        rows = {}
        for name, each in self.seconds.items():
            bills = self.bills[name][warm_up:]
            spent = [statistics.median(bill[kind] / self._block for bill in bills) for kind in kinds]
            received = statistics.median(self.received[name][warm_up:])
            rows[name] = statistics.median(each[warm_up:]), spent, received
        seconds, spent, received = rows[MSET]
        bill = f"processor ms: {', '.join(kinds)}; sum, ratio"
        print(f"{'':20}{'ms':>8}{'ratio':>7}   {bill}; MB to the server")
        for name, (mine, parts, size) in rows.items():
            shown = "".join(f"{1000 * part:8.0f}" for part in parts)
            print(
                f"{name:20}{1000 * mine:8.0f}{mine / seconds:7.2f}   {shown}"
                f"{1000 * sum(parts):9.0f}{sum(parts) / sum(spent):7.2f}{size / 1e6:8.2f}"
            )


def write_here(client: Callable[[], Any], prefix: str, batch: Any) -> None:
    """Write a DataFrame of keys and values by one MSET of this process."""
    rows = batch.toArrow()
    keys = [prefix + key for key in rows["key"].to_pylist()]
    with contextlib.closing(client()) as server:
        server.mset(dict(zip(keys, rows["value"].to_pylist(), strict=True)))


def loading_first(sink: Any, table: Any) -> Callable[[Any, int], None]:
    """Return a writer that writes the whole table instead of its first batch."""
    load = sink.each(lambda txn, _: txn.replace("t", table, "key", value="value"))
    return lambda batch, batch_id: (sink if batch_id else load)(batch, batch_id)


def main() -> None:
    parser = parser_of(
        __doc__, wal=True, store=True, keys=1_000_000, batch=50_000, block=4, rounds=5, far_ms=0.0
    )
    parser.add_argument("--zipf", action="store_true")
    parser.add_argument("--warm-up", type=int, default=1, help="blocks of each writer before")
    arguments = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # each sink gets every fourth block of the batches
    drawn = f"pow({arguments.keys}, {UNIT})" if arguments.zipf else f"{arguments.keys} * {UNIT}"
    text = "concat('key-', cast(cast(floor({}) AS bigint) AS string)) AS key"
    columns = {"table": "t", "key": "key", "value": "value", "parallelism": 2}
    with spark_on() as spark, contextlib.ExitStack() as opened:
        if arguments.far_ms:
            port = opened.enter_context(relayed(settings_of(arguments.store, {}).seeds[0], arguments.far_ms))
            arguments.store = f"redis://127.0.0.1:{port}"
        client = functools.partial(redis.Redis.from_url, arguments.store)
        sides: dict[str, Any] = {
            MSET: lambda batch, _: write_arrow(client, "b:", batch),
            HERE: lambda batch, _: write_here(client, "d:", batch),
            SETS: lambda batch, _: write_rows(client, "a:", batch),
        }
        drain = {}
        table = spark.range(0, arguments.keys, numPartitions=2).selectExpr(text.format("id"), VALUE)
        for name, commit in ((SYNC, "sync"), (PIPELINED, "pipelined")):
            sink = opened.enter_context(sink_in(None, arguments, f"-{commit}", commit=commit, **columns))
            sides[name], drain[name] = loading_first(sink, table), functools.partial(sink.drain, DEADLINE_S)
        blocks = Blocks(sides, drain, arguments.block)
        server = opened.enter_context(contextlib.closing(client()))
        blocks.count_bytes(lambda: int(server.info("stats")["total_net_input_bytes"]))
        write_arrow(client, "b:", table)
        numbered = rate(spark, arguments.batch).selectExpr(text.format(drawn), "value AS id")
        last = arguments.rounds + arguments.warm_up
        run_batches(
            numbered.selectExpr("key", VALUE), blocks.write, lambda: len(blocks.seconds[PIPELINED]) >= last
        )
    shape = "zipf" if arguments.zipf else "uniform"
    far = f", Redis {arguments.far_ms:g} ms away" if arguments.far_ms else ""
    print(f"{arguments.batch:,} changes a trigger, {shape}, of {arguments.keys:,} keys{far}")
    blocks.report(arguments.warm_up)


if __name__ == "__main__":
    main()
