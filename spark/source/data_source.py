"""``format("tidegate")``: one table at one version as a DataFrame, or its changes as a stream.

Spark creates the source in a Python process of its own, pickles it, and plans and reads in others:
only the plain data of ``LeasedTable`` is passed between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from tidegate.errors import ConfigError, TidegateError
from tidegate.keys.groups import groups_of
from tidegate.spark.errors import told_rows
from tidegate.spark.session.releases import arrow_schema_of
from tidegate.spark.source.arrow_rows import check_columns, ddl_of
from tidegate.spark.source.leased_table import LeasedTable, lease_table
from tidegate.spark.source.options import BATCH, STREAM, SourceOptions
from tidegate.spark.source.stream import FeedReader, feed_ddl

HIDDEN = {
    "spark.sql.redaction.options.regex": "(?i)^(store|wal)(options)?$",
    "spark.sql.redaction.string.regex": (
        r'(?i:"(?:store|wal)(?:options)?"\s+value: )"[^"\\]*(?:\\.[^"\\]*)*"|(?<=://)[^/?#\s"@]+(?=@)'
    ),
}
"""Patterns of the options of this source that may contain a login, by the setting that makes Spark hide them.

Spark prints the options of a stream in its plan; a Spark Connect server prints each request as text, for its
page and its event log.
"""

CHECKPOINT = "checkpointlocation"
"""An option of every query that writes."""


def register(spark: SparkSession) -> None:
    """Register ``format("tidegate")`` in this session. Repeatable.

    Spark finds the installed source by itself. This adds the options that may contain a login to what Spark
    hides, in plans and in the requests of Spark Connect.
    """
    try:
        spark.dataSource.register(TidegateSource)
    except PySparkException as error:  # Spark has found it, and keeps that one
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
    for setting, logins in HIDDEN.items():
        hidden = spark.conf.get(setting, None) or ""
        if logins not in hidden:
            spark.conf.set(setting, f"{hidden}|{logins}" if hidden else logins)


class TidegateSource(DataSource):
    """The data source. Options choose the table; see docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._leased: LeasedTable | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Choose the version before Spark copies the source: each scan may plan with a copy of its own.

        A copy for a write chooses none. A read has met the errors of its options before.
        """
        if CHECKPOINT not in map(str.lower, self.options):
            with contextlib.suppress(TidegateError):
                return {**self.__dict__, "_leased": self.leased}
        return self.__dict__

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> str:
        """Return the table's columns at the version that is read, which is chosen and pinned from here on.

        Spark does not report whether it is for a stream. Only a stream needs the log, so the option
        ``wal`` decides: with it the feed's columns are included.
        """
        return feed_ddl(self.leased) if self.checked.wal else ddl_of(self.leased.values)

    @property
    def checked(self) -> SourceOptions:
        """The options. Raises: ConfigError that names the wrong one, and the reason."""
        return SourceOptions.of(self.options)

    @property
    def leased(self) -> LeasedTable:
        """The table at its version; the same for all uses of one DataFrame."""
        if self._leased is None:
            self._leased = lease_table(self.checked)
        return self._leased

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all rows of the version."""
        if name := self._given(STREAM):
            raise ConfigError(
                f"the option {name} is for spark.readStream, which reads changes; spark.read reads a version"
                " from the store: leave it out"
            )
        return TidegateReader(self.leased, schema, self.checked.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of changes, version by version."""
        if name := self._given(BATCH):
            raise ConfigError(
                f"the option {name} is for spark.read, which reads one version; spark.readStream reads"
                " changes, from startingVersion: leave it out"
            )
        return FeedReader(self.leased, self.checked, schema)

    def _given(self, names: Sequence[str]) -> str:
        """Return the first of these options that is given; '': none is."""
        given = set(map(str.lower, self.options))
        return next((name for name in names if name.lower() in given), "")

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001 - Spark's signature
        """Refuse: see docs/decisions/0038."""
        raise ConfigError(
            "df.write.format('tidegate') cannot write: use VersionedSink(...).load({table: df}, token=...,"
            " key=...), which makes one version, once per token"
        )

    def streamWriter(  # noqa: N802 - Spark's name and signature
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return a writer of one batch, whose rows ``tidegate.spark.prepare`` has placed."""
        try:
            from tidegate.spark.source.writing.stream_writer import StreamWriter
        except ImportError as error:
            if "DataSourceStreamArrowWriter" not in str(error):
                raise
            raise ConfigError(
                "writeStream.format('tidegate') needs Spark 4.1 or newer: write by"
                " df.writeStream.foreachBatch(VersionedSink(...)). Nothing was written"
            ) from None
        return StreamWriter(self.options, schema, overwrite=overwrite)


class Part(InputPartition):
    """The rows of some key groups."""

    def __init__(self, first_group: int, end_group: int) -> None:
        self.first_group, self.end_group = first_group, end_group


class TidegateReader(DataSourceReader):
    """A reader of all rows, by ranges of key groups.

    It takes no filters: Spark 4.1 to 4.3 keep one reader and its parts for all scans of a DataFrame, so the
    filter of one scan would apply to the others.
    """

    def __init__(self, leased: LeasedTable, schema: StructType, parallelism: int) -> None:
        self._leased, self._parallelism = leased, min(parallelism, leased.key_groups)
        self._arrow = arrow_schema_of(schema)
        check_columns(leased.where, self._arrow, leased.values.arrow_schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return contiguous ranges of key groups."""
        of = self._parallelism, self._leased.key_groups
        ranges = [groups_of(task, *of) for task in range(self._parallelism)]
        return [Part(groups.start, groups.stop) for groups in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part, in a task."""
        assert isinstance(partition, Part)
        groups = range(partition.first_group, partition.end_group)
        return told_rows(self._leased.rows(groups, self._arrow))
