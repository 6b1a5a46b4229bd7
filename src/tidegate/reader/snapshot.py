"""The snapshot, in threads: one version, pinned by a lease.

Every read through it answers from that version, or raises SnapshotExpiredError (I8). ``reader/flow/`` has
the control flow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from tidegate.base.steps import run
from tidegate.reader import rules
from tidegate.reader.diff import Side
from tidegate.reader.flow.snapshot import SnapshotFlow
from tidegate.reader.table import Table, TableReader
from tidegate.sinks.rules.version_ref import VersionRef

if TYPE_CHECKING:
    from typing_extensions import Self


class Snapshot(SnapshotFlow):
    """One version for all reads, pinned by a lease until ``close`` or the end of a ``with``. Thread-safe.

    ``Gate.snapshot`` creates it. The lease is renewed in the background while the snapshot is open. Every
    read answers from ``version`` or raises SnapshotExpiredError: if the lease was not renewed in time (by
    this process's monotonic clock), or was revoked because a writer's ``max_lease_s`` or ``max_layers``
    ended it. After the first such error every read raises it.
    """

    def table(self, name: str) -> Table:
        """Return a table at this version. Raises: ConfigError: it does not exist; it names those that do."""
        run(self._table(name))
        return Table(self, name)

    @contextlib.contextmanager
    def pin(self, table: str) -> Iterator[TableReader]:
        """Give the table's reader, for ``Scan``; it does not close the snapshot."""
        with self._noting():
            yield run(self._table(table))

    def reader(self, table: str) -> TableReader:
        """Give the table's reader, for a mirror: an error of the other version is none of this one."""
        return run(self._table(table))

    def side(self) -> Side:
        """Return this version as one of two, for ``Diff``."""
        return Side(self.version, self._entry, self._check)

    def check_follows(self, older: VersionRef) -> None:
        """Compare an older version, which is pinned, with the store that this snapshot is of (I12).

        Raises: VersionRegressedError: it is of another history. SnapshotExpiredError: it is not pinned.
        """
        digest = run(self._reader.entry(older.version)).digest if older.version else ""
        rules.check_ref(older, self._reader.store.where, self.uuid, digest)

    def close(self) -> None:
        """Release the lease. Repeatable."""
        run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit and not self._closed:
            # The snapshot of a dropped scan: it is collected at any point, even within a call of the store.
            self._closed = True
            self._reader.leases.leave(self._hold)
        else:
            self.close()
