"""The parts of a comparison: large batches, small ones, reads, and roll-forward of a version from the log."""

from __future__ import annotations

import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from tidegate.base import failpoints
from tidegate.bench.baselines.interface import KEY, Baselines
from tidegate.bench.batches import sink_for, spark_rows, stream
from tidegate.bench.plan import TABLE, Plan
from tidegate.bench.report import Figure, compared
from tidegate.committers.apply.processes import LocalApply
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.reader.open_gate import connect

OURS, COLLECT = "tidegate", "a sink that collects"
MANY, EACH, WARM_UP = 1_000, 100, 5
"""Keys of a large read; single reads between two large ones; small batches that are not counted."""
Key = TypeVar("Key")
Samples = dict[str, list[float]]


def throughput(spark: SparkSession, plan: Plan, baselines: Baselines) -> list[Figure]:
    """Measure rows per second of each writer.

    All write each batch, alternately first; the first batch warms up.
    """
    sink = sink_for(plan, "large")
    names = [*baselines.writers, OURS]
    per_s: Samples = {name: [] for name in names}
    phases: Samples = defaultdict(list)

    def in_turns(batch: DataFrame, batch_id: int) -> None:
        for turn in range(len(names)):
            name = names[(turn + batch_id) % len(names)]
            started = time.perf_counter()
            if name == OURS:
                sink(batch, batch_id)
            else:
                baselines.writers[name](batch)
            per_s[name].append(plan.rows / (time.perf_counter() - started))
        for name, took in sink.last_phases.items():
            phases[name].append(took)

    with contextlib.closing(sink):
        stream(spark, plan, plan.rows, plan.distinct, plan.rounds + 1, in_turns)
    what = f"batches of {plan.rows:,} rows over {plan.distinct:,} keys"
    measured = {name: of[1:] for name, of in per_s.items()}
    figures = compared("throughput", what, "rows/s", measured, ours=[OURS], more_is_better=True)
    whole = {f"{OURS}, {mode}": [_whole_stream(spark, plan, mode)] for mode in ("sync", "pipelined")}
    streams = "from the second batch to the last one visible, Spark's own work between batches included"
    figures += compared(
        "throughput", streams, "rows/s", whole, ours=[f"{OURS}, pipelined"], more_is_better=True
    )
    in_phases = {f"{OURS}, {name.lower()}": of[1:] for name, of in phases.items()}
    return figures + compared("throughput", "of that, by phase", "s", in_phases, ours=())


def _whole_stream(spark: SparkSession, plan: Plan, mode: str) -> float:
    """Measure rows per second of a query that does nothing else."""
    began: list[float] = []
    with contextlib.closing(sink_for(plan, mode, commit=mode)) as sink:

        def timed(batch: DataFrame, batch_id: int) -> None:
            began.append(time.perf_counter())
            sink(batch, batch_id)
            if len(began) == plan.rounds + 1:
                sink.drain(plan.deadline_s)
                began.append(time.perf_counter())

        stream(spark, plan, plan.rows, plan.distinct, plan.rounds + 1, timed)
    return plan.rows * plan.rounds / (began[-1] - began[1])


def latency(spark: SparkSession, plan: Plan, _: Baselines) -> list[Figure]:
    """Measure milliseconds of foreachBatch for small batches: in ours, and in one that only collects."""
    took: Samples = {}
    sink = sink_for(plan, "small")
    with contextlib.closing(sink):
        for name, write in {COLLECT: lambda batch, _: batch.collect(), OURS: sink}.items():
            of = took.setdefault(name, [])

            def timed(batch: DataFrame, batch_id: int, write: Any = write, of: list[float] = of) -> None:
                started = time.perf_counter()
                write(batch, batch_id)
                of.append(1000 * (time.perf_counter() - started))

            stream(spark, plan, plan.small_rows, plan.small_rows, plan.small_batches + WARM_UP, timed)
    measured = {name: of[WARM_UP:] for name, of in took.items()}
    what = f"a batch of {plan.small_rows:,} rows"
    figures = []
    for quantile, named in ((0.5, "p50"), (0.99, "p99")):
        of_all = compared("latency", f"{what}, {named}", "ms", measured, ours=[OURS], at=quantile)
        collected, ours = of_all
        added = Figure(
            part="latency",
            what=f"{what}, {named}",
            who="added by tidegate",
            value=ours.value - collected.value,
            unit="ms",
        )
        figures += [*of_all, added]
    return figures


def reads(spark: SparkSession, plan: Plan, baselines: Baselines) -> list[Figure]:
    """Measure reads of one key and of a thousand, at one version, against the bare client on its own rows."""
    static = spark_rows(spark, plan)
    list(baselines.writers.values())[-1](static)
    with contextlib.closing(sink_for(plan, "reads")) as sink:
        sink.load({TABLE: static}, token=plan.mark)
    chance, ours = random.Random(1), f"{OURS}, a snapshot"
    keys = [KEY.format(chance.randrange(plan.distinct)) for _ in range(plan.reads)]
    many = list(dict.fromkeys(keys[:MANY]))
    where = plan.endpoints("reads")
    with connect(where.store, where.namespace, where.store_options) as gate, gate.snapshot() as snap:
        table = snap.table(TABLE)

        def get(key: str) -> int:
            return int(table.get(key) is not None)

        def get_many(chosen: Sequence[str]) -> int:
            return len(table.get_many(chosen))

        one: Samples = {baselines.reader: [], ours: []}
        several: Samples = {baselines.reader: [], ours: []}
        for index, key in enumerate(keys):
            one[baselines.reader].append(_us(baselines.get, key, 1))
            one[ours].append(_us(get, key, 1))
            if index % EACH == 0:
                several[baselines.reader].append(_us(baselines.get_many, many, len(many)))
                several[ours].append(_us(get_many, many, len(many)))
    figures = compared("reads", "one key, p50", "us", one, ours=[ours])
    figures += compared("reads", "one key, p99", "us", one, ours=[ours], at=0.99)
    return figures + compared("reads", f"{len(many):,} keys at once, p50", "us", several, ours=[ours])


def recovery(spark: SparkSession, plan: Plan, _: Baselines) -> list[Figure]:
    """Measure seconds from decided to visible: by the query itself, and by a recovery from the log alone."""
    rows, took = spark_rows(spark, plan), defaultdict[str, list[float]](list)
    for number in range(plan.rounds + 1):
        with contextlib.closing(sink_for(plan, "recovery")) as sink:
            sink.load({TABLE: rows}, token=f"whole {number}")
            took["the query"].append(sum(sink.last_phases[name] for name in ("decided", "sealed")))
        with contextlib.closing(sink_for(plan, "recovery")) as sink:
            failpoints.arm("decide.after_append=raise")
            try:
                with contextlib.suppress(failpoints.FailpointError):
                    sink.load({TABLE: rows}, token=f"left undone {number}")
            finally:
                failpoints.arm(None)
        took["from the log, without Spark"].append(_recovered(plan))
    what = f"{plan.rows:,} rows that were decided, until they are visible"
    measured = {name: of[1:] for name, of in took.items()}
    return compared("recovery", what, "s", measured, ours=["from the log, without Spark"])


def _recovered(plan: Plan) -> float:
    where, options = plan.endpoints("recovery"), Options(allow_unsafe=plan.allow_unsafe)
    with coordinator_for(where, options, jobs=None) as coordinator:
        if isinstance(coordinator.apply_on_executors, LocalApply):
            coordinator.apply_on_executors.start()
        started = time.perf_counter()
        made = open_namespace(coordinator, None)
        seconds = time.perf_counter() - started
    if not made:
        raise TidegateError("the version that was left undone is finished already: somebody else did it")
    return seconds


def _us(read: Callable[[Key], int], key: Key, expected: int) -> float:
    started = time.perf_counter()
    got = read(key)
    took = 1e6 * (time.perf_counter() - started)
    if got != expected:
        raise TidegateError(f"{got} keys were found of {expected}: somebody else writes there; measure again")
    return took
