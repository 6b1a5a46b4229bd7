"""The state of all tables at one version, computed from the log, or from an export and the log after it.

The versions are read once, oldest first, into a temporary file of this machine, so memory stays bounded
(I11). Nothing is written into log or store. ``opening/lost_store.py`` writes these rows into a lost store,
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
from tidegate.errors import ConfigError
from tidegate.sinks.rules.reads import batch_of
from tidegate.wal.frame import Run
from tidegate.wal.log import Log
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
INSERT = "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)"
SCAN = "SELECT key, value FROM state WHERE kg = ? AND name = ? ORDER BY key"


class LogState:
    """The rows of every table after the last of some consecutive versions.

    They begin with version 1, or with the version after that of ``base``: its rows by table, as batches of
    key group, key and stored value. Without either, only tables that these versions made or emptied are
    whole. ``last`` is the last version, ``manifest`` its manifest. Raises: WalGapError: the log no longer has
    one of them. ConfigError: the temporary folder has no room.
    """

    last: DecidedVersion
    manifest: Manifest
    schemas: dict[str, TableSchema]
    """Every schema that these versions brought, by its id."""

    def __init__(
        self, log: Log, versions: Iterable[DecidedVersion], base: Iterable[tuple[str, Any]] = ()
    ) -> None:
        self._log, self.where = log, log.where
        self._closing = contextlib.ExitStack()
        try:
            folder = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-rebuild-"))
            self._rows = sqlite3.connect(Path(folder) / "state.sqlite", isolation_level=None)
            self._closing.callback(self._rows.close)
            for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
                self._rows.execute(f"PRAGMA {setting}")
            self._rows.execute(ROWS)
            self._read_base(base)
            self._read(versions)
        except (sqlite3.OperationalError, OSError) as error:
            self.close()
            raise ConfigError(
                f"the temporary folder takes no copy of the rows of {log.where}: {error}; free some room"
                " there, or set TMPDIR to another folder. Nothing was written"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the temporary file. Repeatable."""
        self._closing.close()

    def scan_groups_stored(
        self, table: str, groups: Sequence[int], version: int, start: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Yield the rows of key groups by key, as ``Store.scan_groups_stored``, at the only ``version``."""
        for group in groups:
            cursor = self._rows.execute(SCAN, (group, table))
            while rows := cursor.fetchmany(PAGE_ROWS):
                keys, values = zip(*rows, strict=True)
                yield group, batch_of(keys, values)

    def _read_base(self, base: Iterable[tuple[str, Any]]) -> None:
        self._rows.execute("BEGIN")
        for table, batch in base:
            columns = (batch[name].to_pylist() for name in ("key_group", "key", "value"))
            rows = ((group, table, key, value) for group, key, value in zip(*columns, strict=True))
            self._rows.executemany(INSERT, rows)
        self._rows.execute("COMMIT")

    def _read(self, versions: Iterable[DecidedVersion]) -> None:
        self.schemas = {}
        for decided in versions:
            self.last, self.manifest = decided, apply.read_manifest(self._log, decided)
            self.schemas |= self.manifest.schemas
            self._rows.execute("BEGIN")
            emptied = [
                name for name, at in self.manifest.table_schemas.items() if at.start == decided.version
            ]
            for table in [*emptied, *(self.manifest.dropped or ())]:
                self._rows.execute("DELETE FROM state WHERE name = ?", (table,))
            for work in apply.plan(self.manifest, decided, 1):
                for chunk in apply.chunks_of(work, self._log):
                    for run in chunk.runs:
                        self._add(run)
            self._rows.execute("COMMIT")
            if decided.version % REPORT_EVERY == 0:
                logger.info(
                    "%s: version %s was read to compute an earlier state",
                    self._log.where,
                    decided.version,
                )

    def _add(self, run: Run) -> None:
        deleted = pc.equal(run.values, pa.scalar(DELETE, run.values.type))
        kept = pc.invert(deleted)
        at = run.group, run.table
        keys, values = run.keys.filter(kept).to_pylist(), run.values.filter(kept).to_pylist()
        self._rows.executemany(
            INSERT,
            ((*at, key, value) for key, value in zip(keys, values, strict=True)),
        )
        self._rows.executemany(
            "DELETE FROM state WHERE kg = ? AND name = ? AND key = ?",
            ((*at, key) for key in run.keys.filter(deleted).to_pylist()),
        )
