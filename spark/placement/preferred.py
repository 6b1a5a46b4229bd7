"""Preferred locations, by which Spark runs a task where it ran before. They are hints only.

A job's tasks get their preferred locations from its last RDD that has some. ``SparkContext.makeRDD`` of
(element, locations) pairs has them, and Python can call it, too. For the tasks after a shuffle Spark would
choose places by the sizes of the map outputs. So an RDD with one partition per executor is crossed with the
shuffled one, and of that product one partition per task runs: the one of the task's executor. This does not
touch any row (docs/decisions/0002).
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import TidegateError
from tidegate.keys.groups import task_of
from tidegate.spark.errors import Py4JError
from tidegate.spark.placement.assignment import RanAt, assign, carried_over
from tidegate.spark.placement.locality import (
    EnvironmentLocation,
    LocalityManager,
    LocationIdProvider,
    MetadataStore,
    executor_here,
    location_by,
)
from tidegate.spark.session.jvm import (
    internal_rows,
    java_rows,
    jvm_context,
    jvm_ints,
    jvm_view,
    of_internal_rows,
)
from tidegate.spark.session.releases import SparkContext
from tidegate.spark.session.runs import Runs
from tidegate.wal.record import BatchOrigin, DecidedVersion
from tidegate.wal.staging.acks import Ack

logger = logging.getLogger("tidegate")

RanBefore = Callable[[str], list[RanAt | None]]
PRODUCT_MAX = 1_000_000
"""The most executors times tasks; the driver has a small object for each. Beyond it tasks run anywhere."""


@dataclasses.dataclass(frozen=True)
class Places:
    """The preferred places of a job's tasks: ``executors`` by task; ``hosts`` by executor."""

    key_groups: int
    executors: tuple[str, ...]
    hosts: Mapping[str, str]

    def location_of(self, first_group: int) -> str:
        """Return Spark's name for the place of the task that owns this key group."""
        return preferred(
            self.executors[task_of(first_group, len(self.executors), self.key_groups)], self.hosts
        )


def preferred(executor: str, hosts: Mapping[str, str]) -> str:
    """Return Spark's name for an executor as a preferred location."""
    host = hosts[executor]
    return host if "_" in host else f"executor_{host}_{executor}"  # Spark cuts it at the first two _


class Placement:
    """The assignment of each batch's tasks to executors, by their earlier places. One per open driver.

    It never fails a batch: without an answer of Spark there are no hints, and one warning is logged.
    ``ran_before`` returns where the tasks of a lineage ran last, by the log. With ``metadata`` a store of the
    user's has it, too, and where executors are.
    """

    def __init__(
        self,
        ran_before: RanBefore = lambda _: [],
        provider: LocationIdProvider | None = None,
        metadata: MetadataStore | None = None,
    ) -> None:
        self._ran_before, self._metadata = ran_before, metadata
        self.provider = provider or EnvironmentLocation()
        self._manager: LocalityManager | None = None
        self._lineage: str | None = None
        self._ran: list[RanAt | None] = []
        self._executors: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self._of_hosts: dict[str, str] = {}
        self._ids = ""
        self._warned = False
        self._lock = threading.Lock()
        self.current: Places | None = None
        """The preferred places of the last batch's tasks; None: they had none."""
        self.met: tuple[int, int] = (0, 0)
        """The last batch's tasks that ran at their preferred place, and the tasks that had one."""

    def places(self, context: SparkContext, lineage: str, tasks: int, key_groups: int) -> Places | None:
        """Choose the places of the next batch's tasks; None: anywhere, also if there is only one executor."""
        with self._lock:
            try:
                self.current = self._places(context, lineage, tasks, key_groups)
            except (Py4JError, PySparkException) as error:  # parts of it are not public API of Spark
                self.current = None
                if not self._warned:
                    why = str(error).partition("\n")[0]
                    logger.warning("tasks run anywhere, this Spark does not report its executors: %s", why)
                self._warned = True
            return self.current

    def _places(self, context: SparkContext, lineage: str, tasks: int, key_groups: int) -> Places | None:
        if str(context.master).partition("[")[0] == "local":
            return None
        if lineage != self._lineage:
            self._begin(lineage)
        self._look_at_executors(context)
        if len(self._executors) < 2 or len(self._executors) * tasks > PRODUCT_MAX:
            return None
        ran = carried_over(self._ran, tasks, key_groups) if len(self._ran) <= key_groups else []
        before = ran or [None] * tasks
        return Places(key_groups, tuple(assign(before, self._locations)), dict(self._executors))

    def _begin(self, lineage: str) -> None:
        self._lineage, self._manager = lineage, None
        if self._metadata is not None:
            self._manager = LocalityManager(self._metadata, lineage)
            self._of_hosts = self._manager.processor_locality()
        self._ran = self._ran_before(lineage) or (
            [] if self._manager is None else self._manager.task_locality()
        )

    def _look_at_executors(self, context: SparkContext) -> None:
        ids = executor_ids(context)
        if ids == self._ids:
            return
        self._executors = executors_now(context)
        self._ids = ids if set(ids.split(",")) == self._executors.keys() else ""  # '': read again next time
        self._locations = {name: place for name, place in self._locations.items() if name in self._executors}
        new = {name: host for name, host in self._executors.items() if name not in self._locations}
        reported = locations_of(context, new, self.provider) if len(self._executors) > 1 and new else {}
        self._of_hosts |= {new[name]: location for name, location in reported.items() if name in new}
        # One that does not answer is where others of its host are.
        self._locations |= {
            name: reported.get(name) or self._of_hosts.get(host, host) for name, host in new.items()
        }

    def ran(self, acks: Sequence[Ack]) -> None:
        """Store the places at which the tasks really ran, and have their caches."""
        with self._lock:
            ran: list[RanAt | None] = [None] * len(acks)
            for ack in acks:
                ran[ack.task] = RanAt(ack.executor, ack.host) if ack.executor else None
            self.met, places = (0, 0), self.current
            if places is not None and len(acks) == len(places.executors):
                pairs = zip(ran, places.executors, strict=True)
                self.met = sum(was is not None and was.executor == name for was, name in pairs), len(acks)
            # Without hints, too: on one executor, or where Spark did not report its executors.
            if any(ran) and ran != self._ran:
                self._ran = ran
                if self._manager is not None:
                    self._manager.write_task_locality(ran)
                    self._manager.write_processor_locality(self._of_hosts)


def ran_before(coordinator: Coordinator, lineage: str) -> list[RanAt | None]:
    """Return where the tasks of the lineage's last batch ran, by its manifest; nothing when unknown.

    Versions after it that are no batches, such as loads and restores, do not matter.
    """
    fact = next((each for each in reversed(coordinator.folded.recent) if _is_batch(each, lineage)), None)
    if fact is None:
        return []
    manifest = coordinator.last_manifest
    try:
        if manifest is None or manifest.attempt != fact.attempt:
            manifest = read_manifest(coordinator.log, fact, rows=False)
    except TidegateError as error:
        logger.warning("where tasks ran before is not known, they may get other executors: %s", error)
        return []
    return [
        None if place is None else RanAt(*msgspec.structs.astuple(place)) for place in manifest.places or ()
    ]


def _is_batch(decided: DecidedVersion, lineage: str) -> bool:
    return isinstance(decided.origin, BatchOrigin) and decided.origin.lineage == lineage


# -- executors ----------------------------------------------------------------------------------


def executor_ids(context: SparkContext) -> str:
    """List the ids of the present executors, in one text."""
    ids = jvm_context(context).getExecutorIds().mkString(",")
    return ",".join(sorted(filter(None, str(ids).split(","))))


def executors_now(context: SparkContext) -> dict[str, str]:
    """Map the present executors to their hosts."""
    listed = jvm_context(context).statusStore().executorList(True)  # noqa: FBT003 - only those that live
    hosts = {}
    for index in range(listed.size()):
        executor = listed.apply(index)
        if executor.id() != "driver":
            hosts[str(executor.id())] = re.sub(r":\d+$", "", str(executor.hostPort()))
    return hosts


def locations_of(
    context: SparkContext, executors: Mapping[str, str], provider: LocationIdProvider
) -> dict[str, str]:
    """Ask executors for their locations, by a small job with a task for each.

    A task that ran on another executor returns that one's; executors without a task are missing.
    """
    elements = [(b"?", preferred(name, executors)) for name in executors]

    def ask(_: Iterable[bytes]) -> Iterator[tuple[str, str]]:
        yield executor_here()[0], location_by(provider)

    reported = _rdd(_located(context, elements), context).mapPartitions(ask).collect()
    return {name: location for name, location in reported if name}


# -- jobs ---------------------------------------------------------------------------------------


def map_at(
    context: SparkContext,
    parts: Sequence[tuple[bytes, str]],
    function: Callable[[Iterable[bytes]], Iterable[Any]],
) -> list[Any]:
    """Run the function once for each (content, preferred location), in a task of its own."""
    results: list[Any] = _rdd(_located(context, parts), context).mapPartitions(function).collect()
    return results


def collect_at(rows: DataFrame, places: Places, runs: Runs) -> list[bytes]:
    """Collect the one binary column of rows whose plan ends in a shuffle, each task at its preferred place.

    ``runs`` is notified of the rows. Tasks see partition ids of the product: ``partition % tasks`` is the
    task's own number.
    """
    context, tasks = rows.sparkSession.sparkContext, len(places.executors)
    shuffled = java_rows(rows)
    runs.read(shuffled.rdd())
    if shuffled.getNumPartitions() != tasks:  # Spark proved it empty: there is nothing to place
        return [bytes(row.get(0)) for row in shuffled.collect()]
    product, picks = _product(context, shuffled, places)
    parts = product.collectPartitions(jvm_ints(context, picks))
    return [bytes(parts[task].get(row).get(0)) for task in range(tasks) for row in range(parts[task].size())]


def placed(rows: DataFrame, places: Places) -> DataFrame:
    """Return the same rows, whose plan ends in a shuffle, with each of its tasks at its preferred place.

    It is for a stage in the middle of a job. The order of its partitions is another one.
    """
    context, tasks = rows.sparkSession.sparkContext, len(places.executors)
    shuffled = internal_rows(rows)
    if shuffled.getNumPartitions() != tasks:
        return rows
    product, picks = _product(context, shuffled, places)
    jvm = jvm_view(context)
    chosen = jvm.PythonUtils.toSeq(jvm.java.util.ArrayList(picks)).toSet()  # to Scala a set is a predicate
    pruned = jvm.org.apache.spark.rdd.PartitionPruningRDD.create(product.rdd(), chosen)
    return of_internal_rows(rows, pruned)


def _product(context: SparkContext, shuffled: Any, places: Places) -> tuple[Any, list[int]]:
    """Cross every task's rows with every executor; return also each task's preferred partition."""
    tasks, order = len(places.executors), {name: index for index, name in enumerate(places.hosts)}
    crossed = _located(context, [(b"?", preferred(name, places.hosts)) for name in order])
    picks = [order[name] * tasks + task for task, name in enumerate(places.executors)]
    return crossed.cartesian(shuffled).values(), picks


def _rdd(rows: Any, context: SparkContext) -> Any:
    from pyspark import RDD  # the client of Spark Connect has none

    return RDD(rows, context, NoOpSerializer())


def _located(context: SparkContext, elements: Sequence[tuple[bytes, str]]) -> Any:
    """Build a Java RDD with a partition for each element, which prefers the element's location."""
    jvm = jvm_view(context)
    pairs = jvm.java.util.ArrayList()
    for content, location in elements:
        locations = jvm.java.util.ArrayList()
        locations.add(location)
        pairs.add(jvm.scala.Tuple2(content, jvm.PythonUtils.toSeq(locations)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    return jvm_context(context).makeRDD(jvm.PythonUtils.toSeq(pairs), tag).toJavaRDD()
