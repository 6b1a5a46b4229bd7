"""The rows that one version wrote into a table, read from the log, as ``Gate.changes`` returns them.

The log has each version's rows in frames. The manifest lists the key groups of each frame, so one key group
costs only the frames that contain it. The store need not have the version any more.

>>> import tidegate
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://written", store="memory://written")
>>> gate = tidegate.connect("memory://written", namespace="flights", wal="memory://written")
>>> for row in gate.changes(3, "aircraft"):
...     row.kind, row.key, row.value
('delete', 'N24211', None)
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.base.extras import pa, require_arrow
from tidegate.base.names import listed
from tidegate.base.text import brief, html_table
from tidegate.errors import ConfigError, WalGapError
from tidegate.reader import rules
from tidegate.reader.decided_log import DecidedLog
from tidegate.reader.table import OfProcess, TableView
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.reads import values_at
from tidegate.values.decode import Value, values_of
from tidegate.wal.catch_up import read_manifest
from tidegate.wal.frame import decode_frame
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion

if TYPE_CHECKING:
    from typing_extensions import Self

CHANGE_TYPE, KEY_GROUP = "_change_type", "_key_group"
"""The columns of ``Changes.to_arrow`` besides the table's; the first is the change feed's, too."""


class WrittenRow(NamedTuple):
    """One row that a version wrote. ``value`` None: it deleted the key."""

    key: Any
    value: Value | None
    key_group: int

    @property
    def kind(self) -> str:
        """``upsert`` or ``delete``."""
        return "delete" if self.value is None else "upsert"


class Changes(OfProcess, Iterator[WrittenRow]):
    """The rows that one version wrote into a table, one per key, in no particular order of key groups.

    Rows are read from the log on demand, a frame at a time, and decoded by the table's schema at that
    version. ``row_count`` is their number, by the manifest. ``emptied``: the version removed all earlier
    rows first. No lease holds the log: once it was trimmed, the next row raises WalGapError. One thread at a
    time.
    """

    def __init__(
        self, log: DecidedLog, fact: DecidedVersion, manifest: Manifest, table: str, key_group: int | None
    ) -> None:
        self.namespace, self.table, self.version = log.folded.name, table, fact.version
        self.key_group = key_group
        self.closed = False
        self._log, self._fact = log.log, fact
        table_at = manifest.table_schemas[table]
        self.emptied = table_at.start == fact.version
        index = manifest.tables.index(table) if table in manifest.tables else -1
        self._frames = {}
        self.row_count = 0
        for frame in manifest.frames():
            runs = zip(frame.groups, frame.tables, frame.rows, strict=True)
            rows = sum(rows for group, of, rows in runs if of == index and key_group in (None, group))
            if rows:
                self._frames[frame.address] = frame
                self.row_count += rows
        self._view: TableView | None = None
        if table in manifest.tables:
            values = values_of(manifest.schemas[table_at.schema_id])
            where = f"log {log.log.where}, version {fact.version}"
            read_at = ReadAt(table, fact.version, table_at.start, table_at.apart, fact.decided_at_us)
            self._view = TableView(where, read_at, manifest.key_groups, values)
        self._rows = self._read()

    @property
    def decided_at(self) -> datetime.datetime:
        """The time of the version's decision (UTC)."""
        return visible.moment(self._fact.decided_at_us)

    def _read(self) -> Iterator[WrittenRow]:
        view, attempt = self._view, self._fact.attempt
        if view is None or not self._frames:
            return
        try:
            for blob in self._log.read(list(self._frames)):
                where = f"{view.where}, frame at {blob.address}"
                for run in decode_frame(blob.content, self._frames[blob.address], attempt, where):
                    if run.table == self.table and self.key_group in (None, run.group):
                        yield from _decoded(view, run.group, run.keys.to_pylist(), run.values)
        except WalGapError as error:
            raise gone(self.version, self._log.where, str(error)) from error

    def __next__(self) -> WrittenRow:
        if self.closed:
            raise StopIteration
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    @property
    def arrow_schema(self) -> Any:
        """The Arrow schema of ``to_arrow``: the key's columns, the value's, the kind and the key group."""
        own = () if self._view is None else tuple(self._view.values.arrow_schema)
        extra = [pa.field(CHANGE_TYPE, pa.string()), pa.field(KEY_GROUP, pa.int32())]
        for name in {field.name for field in own} & {CHANGE_TYPE, KEY_GROUP}:
            raise ConfigError(
                f"table {self.table} has a column {name!r}, which is the name of a column that is added here:"
                " read the rows one by one, or as JSON (`tidegate changes VERSION TABLE --json`)"
            )
        return pa.schema([*own, *extra])

    def to_arrow(self) -> Any:
        """Return the remaining rows as a ``pyarrow.Table``.

        The columns are the key's, the value's (null in a delete), ``_change_type`` (``upsert`` or ``delete``)
        and ``_key_group``. Those of a table of which the version wrote no row are the last two.
        """
        require_arrow("to_arrow")
        return self.arrow_of(self)

    def arrow_of(self, rows: Iterable[WrittenRow]) -> Any:
        """Return rows of this iterator as a ``pyarrow.Table``, for a part of them."""
        kinds: list[str] = []
        groups: list[int] = []

        def pairs() -> Iterator[tuple[Any, Value]]:
            for row in rows:
                kinds.append(row.kind)
                groups.append(row.key_group)
                yield row.key, absent if row.value is None else row.value

        if self._view is None:
            return self.arrow_schema.empty_table()
        values = self._view.values
        is_bytes = values.schema.value_format == "bytes"
        absent = None if is_bytes else {column.name: None for column in values.schema.value}
        table = values.to_arrow(pairs())
        extra = pa.array(kinds, pa.string()), pa.array(groups, pa.int32())
        return pa.table([*table.columns, *extra], schema=self.arrow_schema)

    def close(self) -> None:
        """Return no more rows. Repeatable."""
        self.closed = True
        self._rows = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts(self) -> list[tuple[str, object]]:
        return [
            *(("namespace", self.namespace), ("version", self.version), ("table", self.table)),
            ("key group", "all" if self.key_group is None else self.key_group),
            *(("rows", self.row_count), ("closed", self.closed)),
        ]

    def __repr__(self) -> str:
        groups = "" if self.key_group is None else f", key group {self.key_group}"
        where = f"version {self.version} of {self.namespace}, table {self.table}{groups}"
        return f"<Changes of {where}: {self.row_count:,} rows{', closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        return html_table(self._facts())


def _decoded(view: TableView, group: int, keys: list[bytes], stored: Any) -> Iterator[WrittenRow]:
    """Decode a run. A row that had expired by the version's decision is a delete, as for readers."""
    contents = values_at(view.where, view.at, keys, stored).to_pylist()
    for key, content in zip(keys, contents, strict=True):
        value = None if content is None else view.decode(key, content)
        yield WrittenRow(view.decode_key(key), value, group)


def changes_of(log: DecidedLog, version: int, table: str, key_group: int | None) -> Changes:
    """Read the manifest of a visible version, and return the rows that it wrote.

    Raises: WalGapError: the log no longer has the version. ConfigError: there is no such table or key group
    at this version.
    """
    require_arrow("changes")
    rules.check_table(table)
    fact, manifest = manifest_at(log, version)
    rules.check_key_group(key_group, manifest.key_groups, f"namespace {log.folded.name}")
    if table not in manifest.table_schemas:
        known = ", ".join(listed(manifest.table_schemas)) or "none"
        dropped = f"; version {version} dropped it" * (table in (manifest.dropped or ()))
        raise ConfigError(
            f"there is no table {brief(table)} at version {version} of namespace"
            f" {log.folded.name}; the tables"
            f" there are: {known}{dropped}"
        )
    return Changes(log, fact, manifest, table, key_group)


def manifest_at(log: DecidedLog, version: int) -> tuple[DecidedVersion, Manifest]:
    """Read a version's decision and manifest. Raises: WalGapError: the log no longer has them."""
    fact = log.at(version)
    if fact is None:
        raise gone(version, log.log.where, "its decision was trimmed")
    try:
        return fact, read_manifest(log.log, fact)
    except WalGapError as error:
        raise gone(version, log.log.where, str(error)) from error


def gone(version: int, where: str, why: str) -> WalGapError:
    """Build the error for a version that the log no longer has."""
    return WalGapError(
        f"the rows that version {version} wrote are no longer in log {where} ({why}): read a later version;"
        " wal_retain_s at the writer sets how far back the log reaches. While readers can still read both"
        f" versions, `tidegate diff {version - 1} {version}` compares them in the store"
    )


def no_log(namespace: str) -> ConfigError:
    """Build the error for a gate that was connected without the log."""
    return ConfigError(
        f"this gate to namespace {namespace} knows no log, and only the log has the rows of each version:"
        " connect with wal=, the URL that the writer has, as in connect(store, namespace, wal='file:///path')"
    )
