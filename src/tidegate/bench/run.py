"""One comparison from beginning to end.

Everything that it made on the servers is removed, even after an error.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections.abc import Callable

import pyspark

import tidegate
from tidegate.base.urls import redact
from tidegate.bench import parts
from tidegate.bench.baselines.interface import Baselines, baselines_for
from tidegate.bench.batches import session
from tidegate.bench.plan import PARTS, Plan
from tidegate.bench.report import Report
from tidegate.committers.operations.drop import drop_namespace
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.errors import TidegateError

Progress = Callable[[str], None]
NAMESPACES = {
    "throughput": ("large", "sync", "pipelined"),
    "latency": ("small",),
    "reads": ("reads",),
    "recovery": ("recovery",),
}


def run(plan: Plan, progress: Progress | None = None) -> Report:
    """Run all parts of the plan. Needs Spark. Everything written is removed at the end, even after an error.

    ``report.left_out`` also names what could not be removed. ConfigError: the plan does not fit the servers.
    TidegateError: a part failed.
    """
    tell = progress or (lambda _: None)
    started = time.monotonic()
    report = Report(made_at=_now(), settings=_settings(plan))
    with coordinator_for(
        plan.endpoints("large")
    ) as coordinator:  # raises here, in plain words, if a server does not answer
        coordinator.decisions.catch_up()
        coordinator.store.prepare()
        coordinator.store.identity()
    with contextlib.ExitStack() as ending:
        baselines = baselines_for(plan)
        ending.callback(_remove, baselines, report)
        report.left_out += baselines.left_out
        with session(plan.master, {"spark.driver.memory": "2g"}) as spark:
            report.settings["cores"] = str(spark.sparkContext.defaultParallelism)
            for part in (each for each in PARTS if each in plan.parts):
                tell(f"{part}: measuring")
                try:
                    report.figures += getattr(parts, part)(spark, plan, baselines)
                finally:
                    tell(f"{part}: removing what it wrote")
                    for named in NAMESPACES[part]:
                        report.left_out += _removed(plan, named)
    report.seconds = time.monotonic() - started
    return report


def _remove(baselines: Baselines, report: Report) -> None:
    try:
        baselines.remove()
    except Exception as error:  # noqa: BLE001 - a client's own; what was measured is not lost for it
        report.left_out.append(f"the baselines' rows may still be there: {error}")


def _removed(plan: Plan, named: str) -> list[str]:
    where = plan.endpoints(named)
    try:
        with coordinator_for(where) as coordinator:
            drop_namespace(coordinator)
    except TidegateError as error:
        remedy = f"`tidegate drop --namespace {where.namespace}`"
        return [f"namespace {where.namespace} is still there: {error}; remove it with {remedy}"]
    return []


def _settings(plan: Plan) -> dict[str, str]:
    return {
        "log": redact(plan.wal),
        "store": redact(plan.store),
        "Spark": f"{pyspark.__version__} on {plan.master}",
        "tidegate": tidegate.__version__,
        "Python": platform.python_version(),
        "this machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "rows a batch": f"{plan.rows:,}",
        "keys": f"{plan.distinct:,}",
        "rounds": f"{plan.rounds} after one to warm up",
    }


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
