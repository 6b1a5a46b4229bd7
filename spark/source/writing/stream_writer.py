"""The writer of ``writeStream.format("tidegate")``: ``write`` runs in tasks, ``commit`` beside the driver.

Spark makes it for each batch, pickles it for the tasks, and makes it again for the commit. The plan is made
when it is pickled: a writer for a commit has none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from pyspark import TaskContext, __version__
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError
from tidegate.keys.groups import groups_of
from tidegate.sinks.open_store import shared_store
from tidegate.spark.batch import BatchContext
from tidegate.spark.placement.locality import EnvironmentLocation, location_by
from tidegate.spark.session.marked_runs import MANAGERS
from tidegate.spark.session.whole_retries import OPTIONS
from tidegate.spark.source.writing.committer import Staged, commit_staged
from tidegate.spark.source.writing.options import WriteOptions
from tidegate.spark.source.writing.plan import Plan, Write, plan_of
from tidegate.spark.source.writing.prepare import prepared_in
from tidegate.spark.source.writing.sorted_rows import sorted_by_place
from tidegate.spark.staging.job import with_groups
from tidegate.spark.staging.work import StageWork
from tidegate.wal.open_log import shared_log
from tidegate.wal.staging.acks import encode_ack
from tidegate.wal.staging.last_per_key import PLACE, groups_and_tables

ON_BY_DEFAULT = (4, 2)
"""The first release in which ``OPTIONS`` are on unless they are switched off."""


@dataclasses.dataclass
class Message(WriterCommitMessage):
    """A task's result, as plain data. ``refused``: why the batch cannot be written; nothing was staged."""

    staged: Staged
    refused: str = ""


class StreamWriter(DataSourceStreamArrowWriter):
    """One batch's writer."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._write = Write(WriteOptions.of(options), prepared_in(schema), overwrite)
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Plan the batch before Spark sends the writer to the tasks."""
        if self._plan is None:
            self._plan = plan_of(self._write)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> Message:
        """Stage the rows of a task; return its ack once they are durable."""
        context, plan = TaskContext.get(), self._plan
        assert context is not None
        assert plan is not None
        run = context.getLocalProperty("spark.jobGroup.id") or ""
        batch = plan.batch._replace(run_id=run)
        refused = _other_batch(context, batch, self._write.to.checkpoint) or _no_proof(context)
        if plan.work is None or refused:
            for _ in iterator:
                pass  # stages in front keep state: they end as they do when the batch is staged
            return Message(Staged(batch, 0, plan.epoch, b"", b""), refused)
        work, task = plan.work, context.partitionId()
        names = work.endpoints.namespace, work.spec.namespace
        log = shared_log(work.endpoints.wal, *names, work.endpoints.wal_options)
        store = partial(shared_store, work.endpoints.store, *names, work.endpoints.store_options)
        rows = map(with_groups, _owned(sorted_by_place(iterator), work, task))
        host = location_by(EnvironmentLocation())
        ack = work.run(rows, log, store, lambda: log, task, context.attemptNumber(), host)
        spec = msgspec.msgpack.encode(work.spec)
        return Message(Staged(batch, work.base_version, plan.epoch, spec, encode_ack(ack)))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the batch a version, and visible. Repeatable: a batch that was decided is skipped."""
        given: list[Message] = [message for message in messages if message is not None]
        for message in given:
            if message.refused:
                raise ConfigError(message.refused)
        commit_staged(self._write, [message.staged for message in given], batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: frames that were not decided are trimmed, and a decided version stays (T11)."""


def _other_batch(context: TaskContext, batch: BatchContext, checkpoint: str) -> str:
    """Return why the checkpoint of the options is not that of the batch that runs; empty: it is."""
    query, number = (
        context.getLocalProperty("sql.streaming.queryId"),
        context.getLocalProperty("streaming.sql.batchId"),
    )
    if (query, number) == (batch.lineage, str(batch.batch_id)):
        return ""
    return (
        f"{checkpoint} is the checkpoint of batch {batch.batch_id} of query {batch.lineage}, and this is"
        f" batch {number} of query {query}: nothing was written. Start the query with a checkpoint of its"
        " own, by .option('checkpointLocation', ...)"
    )


def _no_proof(context: TaskContext) -> str:
    """Return why Spark does not prove single runs of the shuffles in front (I1); empty: it does.

    The marks prove those of the shuffle by ``prepare``. Spark's checksums prove those of earlier ones, which
    only its own shuffle manager writes. A task sees the options of the session as local properties.
    """
    manager = context.getLocalProperty("spark.shuffle.manager") or MANAGERS[0]
    wrong = "" if manager in MANAGERS else f"spark.shuffle.manager={manager}"
    if (context.getLocalProperty("spark.shuffle.push.enabled") or "false").lower() == "true":
        wrong = "spark.shuffle.push.enabled=true"
    is_default = tuple(int(part) for part in __version__.split(".")[:2]) >= ON_BY_DEFAULT
    for name in OPTIONS:
        if (context.getLocalProperty(name) or str(is_default)).lower() != "true":
            wrong = f"{name}=false"
    return wrong and (
        f"this query runs with {wrong}, so Spark may compare no rows of a shuffle that it makes again, and"
        " one version could mix two runs (I1). Nothing was written; take that option out, call"
        " tidegate.spark.configure before getOrCreate, or write by foreachBatch"
    )


def _owned(batches: Iterator[Any], work: StageWork, task: int) -> Iterator[Any]:
    """Yield sorted batches; of their rows, all have to be of this task's key groups. Raises: ConfigError."""
    owned = groups_of(task, work.tasks, work.spec.key_groups)
    for batch in batches:
        ends, _ = groups_and_tables(batch[PLACE].to_numpy()[[0, -1]])
        if not all(int(group) in owned for group in ends):
            raise ConfigError(
                "rows are not in the tasks to which prepare has sent them: call prepare as the last step"
                " before writeStream. Nothing was decided"
            )
        yield batch
