"""``spark.readStream.format("tidegate")``: the changes of a table, resumable by version.

The offset is a ``VersionRef``: everything up to its version, of its history, was returned. Each offset of
the checkpoint is compared with log and store before it is used (I12). ``FeedReader`` runs in a process of
its own for as long as the query runs; its ``read`` runs in tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError, WalGapError
from tidegate.keys.groups import groups_of
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.version_ref import VersionRef
from tidegate.spark.errors import told_rows
from tidegate.spark.session.releases import arrow_schema_of
from tidegate.spark.source.arrow_rows import check_columns, ddl_of
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.source.leased_table import LeasedTable
from tidegate.spark.source.options import SourceOptions
from tidegate.wal.open_log import open_log

try:  # Spark 4.2 and newer bound a batch; before, a batch takes all that is visible
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # pragma: no cover
    ReadAllAvailable = ReadLimit = ReadMaxFiles = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

logger = logging.getLogger("tidegate")

VERSIONS_MAX = 100
Offset = dict[str, Any]
"""The fields of a ``VersionRef``. An earlier release wrote the version alone."""


def feed_ddl(leased: LeasedTable) -> str:
    """Return the DDL of the table's columns, the kind of change, and its version."""
    names = [field.name for field in leased.values.arrow_schema]
    clash = [name for name in names if name in (CHANGE_TYPE, VERSION)]
    if clash:
        raise ConfigError(f"{leased.where} has a column {clash[0]!r}, which the change feed adds: rename it")
    return f"{ddl_of(leased.values)}, `{CHANGE_TYPE}` string, `{VERSION}` bigint"


class FeedPart(InputPartition):
    """Works of the log; or, with a ``leased`` table, rows of these key groups."""

    def __init__(
        self, works: bytes, leased: LeasedTable | None = None, groups: tuple[int, int] = (0, 0)
    ) -> None:
        self.works, self.leased, self.groups = works, leased, groups


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of versions in order, at most ``maxVersionsPerTrigger`` at once."""

    def __init__(self, leased: LeasedTable, options: SourceOptions, schema: StructType) -> None:
        if not options.wal:
            raise ConfigError(
                "readStream.format('tidegate') reads changes from the log: name it with the option wal, as"
                " the writer has it"
            )
        self._options = options
        self._feed = Feed(leased, options.wal, options.wal_options, options.exact)
        self._arrow = arrow_schema_of(schema)
        added = [pa.field(CHANGE_TYPE, pa.string()), pa.field(VERSION, pa.int64())]
        check_columns(leased.where, self._arrow, [*leased.values.arrow_schema, *added])
        self._limit = options.versions_max or VERSIONS_MAX
        self._target: int | None = None
        self._planner: FeedPlanner | None = None
        self._opened: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that travels to tasks: nothing that is open."""
        return {**self.__dict__, "_planner": None, "_opened": []}

    @property
    def _plans(self) -> FeedPlanner:
        if self._planner is None:
            options = self._options
            log = open_log(options.wal, options.namespace, options.wal_options)
            store = open_store(options.store, options.namespace, options.store_options)
            self._opened = [log, store]
            self._planner = FeedPlanner(self._feed, log, store, options.parallelism)
        return self._planner

    # -- offsets, in the driver --------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the start of a new checkpoint. Raises: ConfigError, the starting version follows
        no visible one. WalGapError, it is of another history.
        """
        starting, pointer = self._options.starting, self._plans.pointer()
        if starting is None:
            return self._offset(pointer.visible, pointer)
        self._plans.check_given(starting, pointer)
        if starting.version > pointer.visible:
            raise ConfigError(
                f"{self._feed.leased.where}: option startingVersion is {starting.version + 1}, the visible"
                f" version is {pointer.visible}: begin at {pointer.visible + 1} at most, or with"
                " startingVersion=latest"
            )
        return self._offset(starting.version, pointer)

    def _offset(self, version: int, pointer: Pointer) -> Offset:
        offset: Offset = msgspec.to_builtins(self._plans.ref(version, pointer))
        return offset

    def _given(self, offset: Offset, pointer: Pointer) -> VersionRef:
        """Return an offset of the checkpoint, compared. Raises: WalGapError: it is of another history."""
        given = VersionRef.of(offset, "the checkpoint's offset")
        if given.version and not given.has_history:
            logger.warning(
                "%s: the checkpoint's version %s has no history, since an earlier release wrote it: it is"
                " taken for one of this namespace, once. If the namespace was made again or restored since,"
                " start a new checkpoint",
                self._feed.leased.where,
                given.version,
            )
        self._plans.check_given(given, pointer)
        return given

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch. Spark has no limit by versions, so a version counts as a file."""
        return ReadMaxFiles(self._limit)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        """Return the newest visible version, within the batch's limit."""
        pointer = self._plans.pointer()
        visible = pointer.visible
        end = visible if self._target is None else min(visible, self._target)
        if start is None:
            return self._offset(end, pointer)
        after = self._given(start, pointer)
        if visible < after.version:
            raise WalGapError(
                f"{self._feed.leased.where}: the checkpoint has given version {after.version}, the store's"
                f" visible version is {visible}: it went back; repair the store, or start a new checkpoint"
            )
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, after.version + self._limit)
        if after.version < end < visible and self._bridges(after):
            end = visible  # an earlier version may be retired: it could not be returned whole
        return self._offset(max(end, after.version), pointer)

    def _bridges(self, after: VersionRef) -> bool:
        return self._options.snapshot_when_retired and not self._plans.continues(after)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the visible version, by which the query's progress shows the feed's lag."""
        pointer = self._plans.pointer()
        return self._offset(pointer.visible, pointer)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the currently visible version as the end of ``availableNow``."""
        self._target = self._plans.pointer().visible

    # -- batches -----------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the versions after ``start`` up to ``end``; the same again when a batch is replayed."""
        pointer = self._plans.pointer()
        first, last = self._given(start, pointer), self._given(end, pointer)
        try:
            self._plans.check_comparable(first)
            works = self._plans.works(first.version, last.version)
        except WalGapError:
            if not self._options.snapshot_when_retired:
                raise
            return self._snapshot(last.version)
        return [FeedPart(encode_works(part)) for part in works]

    def _snapshot(self, version: int) -> Sequence[InputPartition]:
        truncation = self._plans.truncation(version)
        if truncation is not None:
            return [FeedPart(encode_works([truncation]))]
        leased = self._feed.lease(self._options, version)
        tasks = min(self._options.parallelism, leased.key_groups)
        ranges = [groups_of(task, tasks, leased.key_groups) for task in range(tasks)]
        return [FeedPart(b"", leased, (groups.start, groups.stop)) for groups in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part, in a task."""
        assert isinstance(partition, FeedPart)
        if partition.leased is not None:
            return told_rows(self._feed.snapshot(partition.leased, range(*partition.groups), self._arrow))
        return told_rows(self._feed.rows(partition.works, self._arrow))

    def commit(self, end: Offset) -> None:
        """Do nothing: the checkpoint has the offset, and the log is kept by ``wal_retain_s``."""

    def stop(self) -> None:
        """Close what is open."""
        for resource in self._opened:
            resource.close()
        self._opened, self._planner = [], None
