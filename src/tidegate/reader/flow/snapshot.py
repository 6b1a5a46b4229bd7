"""The control flow of snapshots: reads at one version, which a lease pins."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.base.deadline import one_call
from tidegate.base.names import listed
from tidegate.base.steps import Result, Steps
from tidegate.base.text import html_table
from tidegate.errors import SnapshotExpiredError
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.flow.reader import UNOBSERVED, Reader
from tidegate.reader.leases.active import Hold
from tidegate.reader.table import TableHints, TableReader
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.version_ref import VersionRef


class SnapshotFlow(TableHints):
    """One version for all reads, pinned by a lease."""

    def __init__(self, reader: Reader, entry: CatalogEntry | None, hold: Hold) -> None:
        self.version = hold.active.lease.version
        self._reader = reader
        self._entry = entry
        self._hold = hold
        self._closed = False

    @property
    def namespace(self) -> str:
        """The snapshot's namespace; for an alias, its target when the snapshot was taken."""
        return self._reader.identity.name

    @property
    def uuid(self) -> str:
        """The uuid of the snapshot's namespace."""
        return self._reader.identity.uuid

    @property
    def ref(self) -> VersionRef:
        """The version with its history, to be kept outside the process."""
        return VersionRef(self.version, self.uuid, "" if self._entry is None else self._entry.digest)

    def is_beside(self, other: SnapshotFlow) -> bool:
        """Whether both are of one namespace, read in one store by one gate."""
        return self._reader is other._reader

    @property
    def closed(self) -> bool:
        """Whether the snapshot was closed."""
        return self._closed

    @property
    def decided_at(self) -> datetime.datetime | None:
        """The time of the version's decision (UTC); None for version 0."""
        return None if self._entry is None else visible.moment(self._entry.decided_at_us)

    def tables(self) -> list[str]:
        """List the names of the tables at this version."""
        return [] if self._entry is None else listed(self._entry.tables)

    def __repr__(self) -> str:
        return f"<Snapshot of version {self.version}, {self._reader.store.where}>"

    def _repr_html_(self) -> str:
        return html_table(
            [
                *(("namespace", self.namespace), ("version", self.version), ("decided at", self.decided_at)),
                *(("tables", ", ".join(self.tables()) or "none"), ("closed", self.closed)),
            ]
        )

    def read(self, table: str, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read at this version, for ``Table``."""
        with events.Reading(self.namespace, table) if events.observers else UNOBSERVED, one_call():
            rows = yield from self._table(table)
            with self._noting():
                return (yield from fn(rows, *args))

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Note a read that finds the version retired: all further ones are refused."""
        try:
            yield
        except SnapshotExpiredError as error:
            self._hold.active.refused_read(error)
            raise

    def _table(self, table: str) -> Steps[TableReader]:
        self._check()
        return self._reader.table(self._entry_here(), table, self._check)

    def _entry_here(self) -> CatalogEntry:
        if self._entry is None:
            raise visible.no_version_yet(self.namespace)
        return self._entry

    def _check(self) -> None:
        self._reader.check_open()
        if self._closed:
            raise rules.snapshot_closed(self.version)
        self._hold.check(self._reader.clock)

    def _close(self) -> Steps[None]:
        if not self._closed:
            self._closed = True
            yield self._reader.leases.give_back(self._hold)
