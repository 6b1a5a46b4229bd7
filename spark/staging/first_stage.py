"""The first stage of an update: rows are sent to the tasks that own their keys, where the function runs.

Its output is rows of changes, which join those of all other calls and are staged with them: so an
emitted row is sent on to the task that owns its key. Everything is one Spark job.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession, functions

from tidegate.keys.groups import groups_of
from tidegate.keys.groups import task_of as group_owner
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import InFlightVersions
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.open_store import shared_store
from tidegate.spark.calls.columns import key_group, output_changes, task_of
from tidegate.spark.calls.records import Update
from tidegate.spark.errors import told
from tidegate.spark.placement.preferred import Places, placed
from tidegate.spark.session.marked_runs import marked as with_marks
from tidegate.spark.session.releases import repartition_by_id
from tidegate.spark.staging.reads_by_task import ReadsByTask, note
from tidegate.spark.state.cache import CachedState, CachePlace, state_reader
from tidegate.spark.state.output_rows import OUTPUT_DDL, first_groups
from tidegate.spark.state.read import uncached
from tidegate.spark.state.update import UpdateWork, run_function
from tidegate.wal.open_log import shared_log

Base = tuple[int, InFlightVersions]
"""The base version, and the versions in flight up to it."""


def first_stage(
    call: Update,
    work: UpdateWork,
    endpoints: Endpoints,
    base: Base,
    cached_at: CachePlace | None,
    places: Places | None,
    reads: Accumulator[ReadsByTask] | None,
    *,
    marked: bool,
) -> DataFrame:
    """Return the output of an update's function from its rows: (k, t, c, two order columns, v, g).

    With ``places`` each task prefers the location of the staging task of the same key groups. ``reads`` gets
    how each task read its state. ``marked``: the rows get marks on their way to the function.
    """
    orders = {f"o{place}": column for place, column in enumerate(call.order)}
    keyed = call.rows.select(
        call.key.alias("k"), *(column.alias(name) for name, column in orders.items()), call.value.alias("v")
    ).withColumn("g", key_group(functions.col("k"), work.spec.key_groups, work.spec.stride(work.table)))
    if marked:
        readers = {"g": first_groups(work.parallelism, work.spec.key_groups)}
        keyed = with_marks(keyed, f"rows of {work.call}", readers)
    if work.timeout is not None:
        keyed = keyed.unionByName(_marks(call.rows.sparkSession, work), allowMissingColumns=True)
    owner = task_of(functions.col("g"), work.parallelism, work.spec.key_groups)
    sorted_rows = (
        repartition_by_id(keyed, work.parallelism, owner)
        .sortWithinPartitions("g", "k", *orders, "v")
        .select("g", "k", "v")
    )
    run = _functions(call, work, endpoints, base, cached_at, reads)
    if places is not None:
        sorted_rows = placed(sorted_rows, places)
    output = sorted_rows.mapInArrow(told(run), OUTPUT_DDL)
    return output_changes(output, work.call, work.spec)


def _marks(session: SparkSession, work: UpdateWork) -> DataFrame:
    """Return a row without a value for each task, with its first key group, so that each task runs."""
    tasks = session.range(0, work.parallelism, 1, 1).select("id")
    first = functions.ceil(functions.col("id") * work.spec.key_groups / functions.lit(work.parallelism))
    return tasks.select(first.cast("int").alias("g"))


def _without_marks(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.filter(batch["v"].is_valid()) if batch["v"].null_count else batch


def _functions(
    call: Update,
    work: UpdateWork,
    endpoints: Endpoints,
    base: Base,
    cached_at: CachePlace | None,
    reads: Accumulator[ReadsByTask] | None,
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    called = call.functions  # without the call's DataFrame, which stays in the driver

    def run(rows: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            msg = "the function of an update runs inside a Spark task only"
            raise RuntimeError(msg)
        owner, batches = _owner(rows, work)
        named = endpoints.namespace, work.spec.namespace
        log = partial(shared_log, endpoints.wal, *named, endpoints.wal_options)
        task, cache = -1 - context.partitionId() if owner is None else owner, None
        if cached_at is not None and owner is not None:
            run = f"{work.call}-{context.attemptNumber()}-{secrets.token_hex(4)}"
            cache = CachedState(cached_at, work.spec, owner, work.parallelism, run, work.cached_tables, log)
        store = shared_store(endpoints.store, *named, endpoints.store_options)
        groups = range(0) if owner is None else groups_of(owner, work.parallelism, work.spec.key_groups)
        read = state_reader(StateAt(store, *base, log, groups, work.spec.stride), work.spec, cache)
        every_group = StateAt(store, *base, log, range(work.spec.key_groups), work.spec.stride)
        read_stored = uncached(every_group, work.spec.at_us)
        yield from run_function(_without_marks(batches), work, called, read, task, read_stored)
        if cache is not None and reads is not None:
            note(reads, work.spec.attempt, f"{work.call}/{task}", cache.reads())
        if cache is not None:
            cache.hand_over()

    return run


def _owner(batches: Iterator[Any], work: UpdateWork) -> tuple[int | None, Iterator[Any]]:
    """Return this task's number, from its rows' key groups, and all of its rows; None: there are none.

    The partition's number is not the task's: calls are joined in one stage, and preferred locations
    change the order.
    """
    for batch in batches:
        if batch.num_rows:
            group = batch["g"][0].as_py()
            return group_owner(group, work.parallelism, work.spec.key_groups), chain([batch], batches)
    return None, iter(())
