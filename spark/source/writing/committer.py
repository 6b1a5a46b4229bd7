"""The commit of a staged batch, in a Python process that Spark keeps beside its driver, or starts again."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from tidegate.base.decoders import msgpack_decoder
from tidegate.committers.barrier import stage_spec
from tidegate.committers.states import Watch
from tidegate.errors import ConfigError, ConflictError
from tidegate.spark.batch import BatchContext, warn_of_missing_batches
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.source.writing.plan import Write, accepts, barrier_of, changed
from tidegate.spark.writer import OpenWriter, SyncCommits
from tidegate.wal.fold import replay_of
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion
from tidegate.wal.staging.acks import Ack, StateReads, decode_ack
from tidegate.wal.staging.spec import StageSpec

if TYPE_CHECKING:
    from tidegate.committers.steps.phase_times import Phases

logger = logging.getLogger("tidegate")


@dataclasses.dataclass
class Staged:
    """The part of a task: its batch, the version whose state it read, its spec and its ack, both encoded.

    ``epoch`` is the newest that the plan saw. Without an ack: the batch was decided before, and not staged.
    """

    batch: BatchContext
    base_version: int
    epoch: int
    spec: bytes
    ack: bytes


def commit_staged(write: Write, staged: Sequence[Staged], batch_id: int) -> None:
    """Decide and apply a batch that its tasks have staged.

    Durable: on return its version is visible. Repeatable: a batch that was decided is skipped. Raises: as a
    batch of ``VersionedSink``. ConflictError: the tasks staged by different plans, or read different runs of
    a shuffle; nothing was decided.
    """
    plans = {(each.batch, each.base_version, each.epoch, each.spec) for each in staged}
    if len(plans) != 1 or staged[0].batch.batch_id != batch_id:
        raise ConflictError(
            f"the tasks of batch {batch_id} staged by {len(plans)} plans, or another batch: nothing was"
            " decided. Start the query again, which stages the batch once more"
        )
    if not _committers or _committers[0].key != (os.getpid(), write):
        forget_committer()
        _committers.append(Committer(write))
    _committers[0].commit(staged)


def forget_committer() -> None:
    """Close the committer of this process, if there is one."""
    while _committers:
        _committers.pop().release()


class Committer:
    """Commits the batches of one write in this process. After an error it opens the namespace again."""

    def __init__(self, write: Write) -> None:
        self.key = os.getpid(), write
        self._write, self._reporter = write, SinkReporter(write.to.endpoints, write.options)
        self._writer: OpenWriter | None = None

    def commit(self, staged: Sequence[Staged]) -> None:
        """Commit a batch, as ``commit_staged``."""
        batch = staged[0].batch
        try:
            writer = self._opened(staged[0])
            writer.check()
            state = writer.coordinator.folded
            fact = replay_of(state, batch.origin(state))
            if fact is None:
                self._commit(writer, batch, staged)
            else:
                logger.info("batch %s is version %s already; it is skipped", batch.batch_id, fact.version)
        except BaseException as error:
            self._reporter.failed(batch.batch_id, error)
            self.release()
            raise

    def release(self) -> None:
        """Close the namespace. Repeatable."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._reporter.closed()

    def _opened(self, staged: Staged) -> OpenWriter:
        """Return the writer; another one if the plan has seen versions that are not this one's, or an epoch.

        The query may have run by ``foreachBatch`` meanwhile, or the namespace was dropped and made again. The
        plan's own process opens the namespace where a store was lost.
        """
        writer, batch = self._writer, staged.batch
        if writer is not None:
            other = writer.coordinator.folded.last_version != staged.base_version
            if other or writer.coordinator.epoch < staged.epoch:
                self.release()
        if self._writer is None:
            connections = self._write.connections(self._reporter, self._published)
            parent = os.getppid()
            check = accepts(self._write, batch)
            self._writer = OpenWriter.open(connections, batch.lineage, check, lambda: os.getppid() == parent)
            namespace = self._write.to.endpoints.namespace
            warn_of_missing_batches(namespace, batch, self._writer.coordinator.folded)
        return self._writer

    def _commit(self, writer: OpenWriter, batch: BatchContext, staged: Sequence[Staged]) -> None:
        coordinator, base = writer.coordinator, staged[0].base_version
        if not staged[0].ack:
            raise changed("the version of this batch was taken back")
        if coordinator.folded.last_version != base:
            raise changed(f"version {coordinator.folded.last_version} was decided")
        acks = [decode_ack(each.ack) for each in staged]
        self._check(acks)
        barrier = barrier_of(self._write, coordinator, writer.schemas(), batch, acks)
        spec = msgpack_decoder(StageSpec).decode(staged[0].spec)
        now = stage_spec(coordinator, barrier, spec.attempt)
        last = max(coordinator.folded.decided_at_us, coordinator.begun_us)
        if msgspec.structs.replace(now, at_us=spec.at_us) != spec or not last < spec.at_us <= now.at_us:
            raise changed("the namespace or the time of its last version was changed")
        commits = cast("SyncCommits", writer.commits)
        with self._reporter.watching(coordinator, barrier.origin):
            fact = commits.commit(barrier, spec)
        self._reporter.decided(coordinator, fact, StateReads(), 0)

    def _check(self, acks: Sequence[Ack]) -> None:
        """Refuse tasks that are not those of ``prepare``, or that read different runs of its shuffle (I1)."""
        tasks = self._write.rows.parallelism
        if len(acks) != tasks and any(ack.given[0] for ack in acks):
            raise ConfigError(
                f"prepare has sent the rows to {tasks} tasks, and {len(acks)} have written them: call"
                " prepare as the last step before writeStream. Nothing was decided"
            )
        if any(ack.runs != acks[0].runs for ack in acks):
            raise ConflictError(
                "Spark made a shuffle again after tasks had read it, and its rows are not the same: nothing"
                " was decided. Start the query again, which stages the batch once more"
            )

    def _published(self, fact: DecidedVersion, manifest: Manifest | None, watch: Watch) -> None:
        self._reporter.published(fact, manifest, cast("Phases", watch))  # each commit is watched so


_committers: list[Committer] = []
"""The one open committer of this process."""
