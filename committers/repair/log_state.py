"""The state of all tables at one version, computed from the log, or from a backup and the log after it.

The versions are read once, oldest first, into a temporary file of this machine, so memory stays bounded
(I11). Nothing is written into log or store. ``lost_store.py`` writes these rows into a lost store,
``operations/restore.py`` into a new version.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.committers.apply import apply
from tidegate.committers.barrier import catalog_entry
from tidegate.errors import ConfigError
from tidegate.sinks.records import CatalogEntry, ReadAt
from tidegate.sinks.rules.reads import batch_of
from tidegate.wal.frame import Run
from tidegate.wal.log import Blobs
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion, TableSchema
from tidegate.wal.value_flags import DELETE

logger = logging.getLogger("tidegate")

PAGE_ROWS = 1_000
"""The number of rows in one batch of a scan."""
REPORT_EVERY = 100
"""The number of versions that are read between two lines of progress."""
ROWS = """CREATE TABLE state (kg INTEGER, name TEXT, key BLOB, value BLOB NOT NULL,
    PRIMARY KEY (kg, name, key)) WITHOUT ROWID"""
SCAN = "SELECT key, value FROM state WHERE kg = ? AND name = ? ORDER BY key"


class LogState:
    """The rows of every table after the last of some versions.

    They are read in order: from version 1 on, or after the rows of a backup were put; without
    either, only tables that these versions made or emptied are whole. ``last`` is the last
    version, ``entry`` its catalog entry. Every call that reads raises WalGapError: the log no longer has a
    version, and ConfigError: the temporary folder has no room.
    """

    last: DecidedVersion
    entry: CatalogEntry

    def __init__(self, where: str) -> None:
        self.where, self._closing = where, contextlib.ExitStack()
        self.schemas: dict[str, TableSchema] = {}
        """Every schema that these versions brought, by its id."""
        with self._writing():
            folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-rebuild-"))
            self._rows = sqlite3.connect(Path(folder) / "state.sqlite", isolation_level=None)
            self._closing.callback(self._rows.close)
            for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                self._rows.execute(f"PRAGMA {setting}")
            self._rows.execute(ROWS)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the cause when the temporary folder takes no rows; remove the temporary file on any error."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            self.close()
            raise ConfigError(
                f"the temporary folder takes no copy of the rows of {self.where}: {error}; free some room"
                " there, or set TMPDIR to another folder. Nothing was written"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the temporary file. Repeatable."""
        self._closing.close()

    def scan_groups_stored(self, at: ReadAt, groups: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the rows of key groups by key, as ``Store.scan_groups_stored``, at the only version."""
        for group in groups:
            cursor = self._rows.execute(SCAN, (group, at.table))
            while rows := cursor.fetchmany(PAGE_ROWS):
                keys, values = zip(*rows, strict=True)
                yield group, batch_of(keys, values)

    def put(self, table: str, batches: Iterable[Any]) -> None:
        """Add the rows of a table that a backup holds: record batches of key group, key and value."""
        with self._writing():
            self._rows.execute("BEGIN")
            for batch in batches:
                columns = (batch[name].to_pylist() for name in ("key_group", "key", "value"))
                self._rows.executemany(
                    "INSERT INTO state (kg, name, key, value) VALUES (?, ?, ?, ?)",
                    ((group, table, key, value) for group, key, value in zip(*columns, strict=True)),
                )
            self._rows.execute("COMMIT")

    def read(self, log: Blobs, versions: Iterable[DecidedVersion], *, changes: bool = True) -> None:
        """Add the changes of versions that follow those read so far, oldest first; or only their schemas."""
        with self._writing():
            manifest = None
            for self.last in versions:
                manifest = self._add_version(log, self.last, changes=changes)
                if self.last.version % REPORT_EVERY == 0:
                    logger.info(
                        "%s: version %s was read to compute an earlier state", log.where, self.last.version
                    )
            if manifest is not None:
                self.entry = catalog_entry(self.last, manifest)

    def _add_version(self, log: Blobs, decided: DecidedVersion, *, changes: bool) -> Manifest:
        manifest = apply.read_manifest(log, decided)
        self.schemas |= manifest.schemas
        if not changes:
            return manifest
        self._rows.execute("BEGIN")
        emptied = [name for name, state in manifest.table_schemas.items() if state.start == decided.version]
        for table in [*emptied, *(manifest.dropped or ())]:
            self._rows.execute("DELETE FROM state WHERE name = ?", (table,))
        for work in apply.plan(manifest, decided, 1):
            for chunk in apply.chunks_of(work, log):
                for run in chunk.runs:
                    self._add(run)
        self._rows.execute("COMMIT")
        return manifest

    def _add(self, run: Run) -> None:
        deleted = pc.equal(run.values, pa.scalar(DELETE, run.values.type))
        live = pc.invert(deleted)
        place = run.group, run.table
        keys, values = run.keys.filter(live).to_pylist(), run.values.filter(live).to_pylist()
        self._rows.executemany(
            "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)",
            ((*place, key, value) for key, value in zip(keys, values, strict=True)),
        )
        self._rows.executemany(
            "DELETE FROM state WHERE kg = ? AND name = ? AND key = ?",
            ((*place, key) for key in run.keys.filter(deleted).to_pylist()),
        )
