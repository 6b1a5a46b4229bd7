"""A driver that is a Spark application: one query, which commits a workload and suffers one fault.

The query reads one file for each batch, and writes through ``VersionedSink``. Its checkpoint says where a
driver that starts again continues. The history is that of a driver without Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tidegate.base import failpoints
from tidegate.errors import FencedError, LineageError, WaitTimeoutError
from tidegate.spark import Derived, VersionedSink, writer
from tidegate.spark.batch import batch_context
from tidegate.spark.transaction import Transaction
from tidegate.torture.driver.driver import LIVES_MAX, Plan, exit_code_of, read_own_commit
from tidegate.torture.driver.faults import CLUSTER, SPARK, Disturber, Strike
from tidegate.torture.driver.faults import kill as kill_driver
from tidegate.torture.driver.workloads import VALUE, changes_of, derived_of
from tidegate.torture.history.events import Change, Offered, Opened, Raised, Returned
from tidegate.torture.history.files import Recorder, boot_id
from tidegate.torture.history.repairs import MendingNotes
from tidegate.torture.spark_app import rows as files
from tidegate.torture.spark_app import strikes
from tidegate.torture.spark_app.strikes import PROPERTY, TaskStrike

FAILED_IN_SPARK = 1
"""The exit code after an error that is Spark's own."""
QUERY_PARTS = 3
"""A query is stopped after this number of the driver's deadlines."""
NO_HEARTBEAT_S = 3_600.0
"""The heartbeats' interval: a fault at the next write is meant for a write of the commit."""
INPUT = "input"


class SparkTorture:
    """The queries of one plan, one after another, in an application that outlives them."""

    def __init__(self, spark: SparkSession, plan: Plan, recorder: Recorder, mending: MendingNotes) -> None:
        self._spark, self._plan, self._recorder, self._mending = spark, plan, recorder, mending
        strike = Strike(plan.fault, plan.failpoint, plan.nth, plan.taken_over)
        self._disturber = Disturber(strike, recorder, lambda: None)
        self._strike = TaskStrike(
            fault=plan.fault,
            failpoint=plan.failpoint,
            folder=plan.folder,
            name=f"{plan.name}-task",
            boot=boot_id(),
            driver=os.getpid() if plan.taken_over else 0,
        )
        self._is_armed = self._reopened = False
        self._name, self._epoch, self._call = plan.name, 0, 0
        self._fingerprint = ""
        self._error: Exception | None = None

    def run(self) -> int:
        """Run the query until every batch is done, in up to ``LIVES_MAX`` lives; return an exit code."""
        plan = self._plan
        of_batch: Callable[[int], Any] = lambda batch: changes_of(  # noqa: E731
            plan.workloads, plan.seed, batch, plan.salt
        )
        files.write_files(self._input, plan.batches, of_batch)
        if plan.fault:
            failpoints.listen(self._hit if plan.fault in SPARK else self._disturber.hit)
        try:
            for life in itertools.count(1):
                self._name, self._error = f"{plan.name}.{life}", None
                code = self._live()
                if not code or not plan.goes_on or life >= LIVES_MAX:
                    break
                if isinstance(self._error, FencedError | LineageError):
                    break
        finally:
            failpoints.listen(None)
        return code

    @property
    def _input(self) -> Path:
        return Path(self._plan.checkpoint).parent / INPUT

    def _live(self) -> int:
        """Run one query over the files that are left, to its end."""
        plan = self._plan
        with self._watched(), contextlib.closing(self._sink()) as sink:
            commit = sink.each(lambda txn, rows: self._write(sink, txn, rows))
            query = (
                self._spark.readStream.schema(files.SCHEMA)
                .option("maxFilesPerTrigger", 1)
                .json(str(self._input))
                .writeStream.foreachBatch(lambda rows, batch: self._one_batch(sink, commit, rows, batch))
                .option("checkpointLocation", plan.checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            try:
                ended = query.awaitTermination(round(QUERY_PARTS * plan.deadline_s))
            except StreamingQueryException as error:
                print(self._error or error, flush=True)  # noqa: T201 - to the cell's folder
                return FAILED_IN_SPARK if self._error is None else exit_code_of(self._error)
            if not ended:
                query.stop()
                print(f"{WaitTimeoutError.__name__}: the query did not end", flush=True)  # noqa: T201
                return WaitTimeoutError.exit_code
        return 0

    def _sink(self) -> VersionedSink:
        plan, where = self._plan, self._plan.where
        by_tasks = plan.fault == CLUSTER and not plan.failpoint.startswith(("apply.", "seal."))
        constants: Any = {
            "frame_bytes": plan.frame_bytes,
            "driver_stage_max_rows": 0,
            # Faults of Spark's processes need tasks that apply, those of a driver's calls a driver that does.
            "driver_apply_max_changes": 0 if plan.fault in SPARK or by_tasks else 5_000,
            "decide_deadline_s": plan.deadline_s,
            "heartbeat_s": NO_HEARTBEAT_S,
        }
        return VersionedSink(
            namespace=where.namespace,
            wal=where.wal,
            store=where.store,
            wal_options=where.wal_options,
            store_options=where.store_options,
            key_groups=plan.key_groups,
            parallelism=plan.parallelism,
            apply_deadline_s=plan.deadline_s,
            allow_unsafe=where.allow_unsafe,
            local_dir=str(Path(plan.checkpoint).parent / "local"),
            derived=[
                Derived(name, of=base, key=VALUE, aggregates={"n": "count"})
                for name, base in derived_of(plan.workloads).items()
            ],
            **constants,
        )

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Route the writing calls of logs and stores that a sink opens through the disturber."""
        opens: Any = writer  # the module by whose names a sink opens them
        plain_log, plain_store, disturber = opens.open_log, opens.open_store, self._disturber

        def watched(kind: str, opened: Any) -> Any:
            plain_close = opened.close
            disturber.watch(kind, opened)

            def close() -> None:
                disturber.do_late()
                plain_close()

            opened.close = close
            return opened

        if not self._plan.fault or self._plan.fault in SPARK:
            yield
            return
        opens.open_log = lambda *args, **options: watched("log", plain_log(*args, **options))
        opens.open_store = lambda *args, **options: watched("store", plain_store(*args, **options))
        try:
            yield
        finally:
            opens.open_log, opens.open_store = plain_log, plain_store

    # -- one batch ----------------------------------------------------------------------------------------

    def _one_batch(
        self, sink: VersionedSink, commit: Callable[[DataFrame, int], None], rows: DataFrame, batch: int
    ) -> None:
        """Commit one batch, and note how that ended. Spark calls this from ``foreachBatch``."""
        plan, recorder = self._plan, self._recorder
        self._call, self._mending.began = 0, recorder.now()
        if batch and batch == plan.reopen_at and not self._reopened:
            self._reopened = True
            sink.close()
        self._arm(batch)
        self._fingerprint = batch_context(rows, batch).fingerprint
        try:
            commit(rows, batch)
        except Exception as error:
            self._error = error
            if self._call:
                recorder.note(Raised(call=self._call, error=type(error).__name__, text=str(error)[:500]))
            raise
        self._note_opened(sink)
        if self._call and sink.last_decided is not None:
            recorder.note(Returned(call=self._call, version=sink.last_decided.version))
            read_own_commit(plan.where, recorder)

    def _write(self, sink: VersionedSink, txn: Transaction, rows: DataFrame) -> None:
        """Note the offer of the batch, and make its calls. The sink calls this for a new batch."""
        plan, recorder = self._plan, self._recorder
        self._note_opened(sink)
        changes = changes_of(plan.workloads, plan.seed, txn.batch_id, plan.salt)
        counts = [Change(table=name, counts=base) for name, base in derived_of(plan.workloads).items()]
        self._call = recorder.number()
        recorder.note(
            Offered(
                call=self._call,
                driver=self._name,
                namespace=plan.where.namespace,
                lineage=plan.checkpoint,
                batch=txn.batch_id,
                fingerprint=self._fingerprint,
                changes=[*changes, *counts],
            )
        )
        files.write(txn, rows, changes)

    def _note_opened(self, sink: VersionedSink) -> None:
        """Note the epoch of a driver that has opened the namespace since the last batch."""
        opened = sink._writing.now  # noqa: SLF001 - a sink shows no epoch
        if opened is not None and opened.coordinator.epoch != self._epoch:
            self._epoch = opened.coordinator.epoch
            namespace = self._plan.where.namespace
            self._recorder.note(Opened(driver=self._name, namespace=namespace, epoch=self._epoch))

    # -- faults of Spark's processes ----------------------------------------------------------------------

    def _arm(self, batch: int) -> None:
        """Give the fault to the jobs of this batch, from the batch on that the plan names."""
        plan = self._plan
        self._is_armed = plan.fault in SPARK and batch >= plan.nth - 1 and not self._strike.done
        text = msgspec.json.encode(self._strike).decode() if self._is_armed else None
        self._spark.sparkContext.setLocalProperty(PROPERTY, text)  # type: ignore[arg-type] # None removes it

    def _hit(self, name: str) -> None:
        """Do the fault at a failpoint that the driver reaches: between two jobs, to all processes."""
        plan = self._plan
        if not self._is_armed or name != plan.failpoint or self._strike.done:
            return
        pids = self._targets()
        if not pids or not strikes.noted(self._strike, f"all {len(pids)} of this machine, between two jobs"):
            return
        self._is_armed = False
        strikes.kill(pids)
        if plan.taken_over:
            kill_driver()

    def _targets(self) -> list[int]:
        context: Any = self._spark.sparkContext
        executors = strikes.executors_of(context.applicationId)
        if self._plan.fault == "executor":
            return executors
        return strikes.python_workers_of([*executors, context._gateway.proc.pid])  # noqa: SLF001
