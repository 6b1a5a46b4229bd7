"""``spark.readStream.format("tidegate")``: the changes of a table, resumable by version.

The offset is ``{"version": n}``: everything up to version n was returned. ``FeedReader`` runs in a
process beside the driver for as long as the query runs; its ``read`` runs in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError, WalGapError
from tidegate.keys.groups import groups_of
from tidegate.sinks.open_store import open_store
from tidegate.spark.calls.columns import arrow_schema_of
from tidegate.spark.source.arrow_rows import ddl_of
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

VERSIONS_MAX = 100


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

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the start of a new checkpoint. Raises: ConfigError, the starting version follows
        no visible one.
        """
        starting, visible = self._options.starting, self._plans.visible()
        if starting is not None and starting > visible:
            raise ConfigError(
                f"{self._feed.leased.where}: option startingVersion is {starting + 1}, the visible version is"
                f" {visible}: begin at {visible + 1} at most, or with startingVersion=latest"
            )
        return {"version": visible if starting is None else starting}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch. Spark has no limit by versions, so a version counts as a file."""
        return ReadMaxFiles(self._limit)

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """Return the newest visible version, within the batch's limit."""
        visible = self._plans.visible()
        end = visible if self._target is None else min(visible, self._target)
        if start is None:
            return {"version": end}
        if visible < start["version"]:
            raise WalGapError(
                f"{self._feed.leased.where}: the checkpoint has given version {start['version']}, the store's"
                f" visible version is {visible}: it went back; repair the store, or start a new checkpoint"
            )
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, start["version"] + self._limit)
        if start["version"] < end < visible and self._bridges(start["version"]):
            end = visible  # an earlier version may be retired: it could not be returned whole
        return {"version": max(end, start["version"])}

    def _bridges(self, after: int) -> bool:
        return self._options.snapshot_when_retired and not self._plans.has(after + 1)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the visible version, by which the query's progress shows the feed's lag."""
        return {"version": self._plans.visible()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the currently visible version as the end of ``availableNow``."""
        self._target = self._plans.visible()

    # -- batches -----------------------------------------------------------------------------------

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the versions after ``start`` up to ``end``; the same again when a batch is replayed."""
        first, last = start["version"], end["version"]
        try:
            works = self._plans.works(first, last)
        except WalGapError:
            if not self._options.snapshot_when_retired:
                raise
            return self._snapshot(last)
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
            return self._feed.snapshot(partition.leased, range(*partition.groups), self._arrow)
        return self._feed.rows(partition.works, self._arrow)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the checkpoint has the offset, and the log is kept by ``wal_retain_s``."""

    def stop(self) -> None:
        """Close what is open."""
        for resource in self._opened:
            resource.close()
        self._opened, self._planner = [], None
