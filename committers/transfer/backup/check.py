"""The checks of a backup: every byte of it, and restores of it into a log and a store in memory.

A restore in memory is ``restore-from`` itself, in each of its ways. Its rows are restored a slice at a time,
so that a backup of any size is checked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.base.clock import Clock
from tidegate.base.files import open_regular
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.export_format import check_files, place_of
from tidegate.committers.exports.export_format import read_manifest as read_export
from tidegate.committers.exports.export_rows import ROWS
from tidegate.committers.opening.begin_log import summary_of
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.transfer.backup.blobs import BackupBlobs
from tidegate.committers.transfer.backup.chain import (
    FULL,
    MENDED_BY,
    PLACE,
    Chain,
    Link,
    Place,
    check_digest,
    read_sealed,
    require_chain,
)
from tidegate.committers.transfer.backup.contents import Contents, contents_of, state_in
from tidegate.committers.transfer.backup.restore_from import (
    Way,
    plan_restore,
    restore_from,
)
from tidegate.errors import CorruptError, TidegateError
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.wal import memory_log
from tidegate.wal.fold import last_batch_within, last_followed
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import BatchOrigin, Folded, TableAt, encode_record
from tidegate.wal.staging.own_tables import queues_of

SLICE_ROWS, SLICE_BYTES = 10_000, 64 * 1024 * 1024
"""The most rows that are restored in memory at once, give or take a page."""
LOG_HAS = {
    Way.CONTINUE: "the log has every version",
    Way.AGAIN: "the log lost rows",
    Way.NEW: "the log is gone",
}
"""The ways of a restore, and when each is taken."""

Rows = dict[str, list[Any]]
"""By table, record batches of key groups, keys and values as they are stored."""


def check(folder: Path) -> Chain:
    """Read every byte of a backup, and restore the version of each link in memory; return its chain.

    All rows are restored at the versions that ``Chain.versions`` marks, a sample of them at the others.
    Raises: ConfigError: there is no backup, or the temporary folder has no room. CorruptError: a file is
    missing or damaged, or has other rows, or a version cannot be restored.
    """
    chain = require_chain(folder)
    try:
        for link in chain.links:
            check_link(folder, link)
        for version, is_last in chain.versions.items():
            rehearse(folder, chain, version, sample=not is_last)
    except TidegateError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise CorruptError(f"{folder} holds what no backup writes: {what}; {MENDED_BY}") from error
    return chain


def check_link(folder: Path, link: Link, path: Path | None = None) -> None:
    """Read every byte of a link, which may still have another path.

    Raises: CorruptError: a file is missing or damaged, or has other rows.
    """
    from pyarrow import parquet

    path = path or folder / link.name
    if path == folder / link.name:
        check_digest(folder, link)
    if link.kind == FULL:
        export, _ = read_export(path)
        check_files(path, export)
        rows = 0
        for name, table in export.tables.items():
            for number, file in enumerate(table.files):
                part = place_of(path, name, number)
                with os.fdopen(open_regular(part), "rb") as content:  # pyarrow may take a name for a URL
                    count = parquet.read_metadata(content).num_rows
                if count != file.rows:
                    raise CorruptError(
                        f"{part} has {count} rows, the manifest lists {file.rows}; {MENDED_BY}"
                    )
                rows += count
        state = state_in(path, read_sealed(path / PLACE, Place))
        if state.last_version != link.version:
            raise CorruptError(f"{path / PLACE} is of version {state.last_version}; {MENDED_BY}")
    else:
        blobs = BackupBlobs(path)
        blobs.check()
        rows = _changes(blobs, link.version)
    if rows != link.rows:
        raise CorruptError(f"{path} has {rows} rows, the chain lists {link.rows}; {MENDED_BY}")


def _changes(blobs: BackupBlobs, last: int) -> int:
    return sum(
        frame.changes for decided in blobs.versions(last) for frame in read_manifest(blobs, decided).frames()
    )


# -- restores in memory --------------------------------------------------------------------------------


def rehearse(folder: Path, chain: Chain, version: int, *, sample: bool) -> None:
    """Restore a version in memory in each way, with all rows or with some of its last link's.

    Raises: CorruptError: it cannot be restored, or not as it was. Otherwise as ``contents_of``.
    """
    with contents_of(folder, version, chain, sample=sample) as contents:
        for rows in _slices(contents.rows, contents.reached.state.key_groups):
            _rehearse(folder, contents, rows)
            if sample:
                break


def _slices(rows: LogState, key_groups: int) -> Iterator[Rows]:
    """Yield all rows, some at a time; at least once."""
    part: Rows = {}
    taken = size = 0
    for table in sorted(rows.entry.tables):
        for group, batch in rows.scan_groups_stored(rows.entry.read_at(table), range(key_groups)):
            groups = pa.repeat(pa.scalar(group, pa.int32()), batch.num_rows)
            columns = [groups, batch["key"], batch["value"]]
            part.setdefault(table, []).append(pa.record_batch(columns, schema=ROWS))
            taken, size = taken + batch.num_rows, size + batch.nbytes
            if taken >= SLICE_ROWS or size >= SLICE_BYTES:
                yield part
                part, taken, size = {}, 0, 0
    yield part


def _rehearse(folder: Path, contents: Contents, part: Rows) -> None:
    """Restore some of the rows in each way."""
    whole = contents.rows
    for way, log_has in LOG_HAS.items():
        if way is Way.CONTINUE and whole.entry.version < FILLED_FROM:
            continue  # then a log that has every version is restored as one that lost rows
        with contextlib.closing(LogState(whole.where)) as rows:
            rows.schemas, rows.last, rows.entry = dict(whole.schemas), whole.last, whole.entry
            for table, batches in part.items():
                rows.put(table, batches)
            try:
                _restore(folder, contents._replace(rows=rows), part, way)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise CorruptError(
                    f"{folder}: version {whole.entry.version} cannot be restored where {log_has}: {what};"
                    " restore at an older version (--to), or make a backup in a new folder"
                ) from error


LAST_US = 253_370_764_800_000_000
"""The start of the year 9999, the last one that times are printed of."""


class _ClockOfLog(Clock):
    """A clock that is not behind the log's last decision, as this machine's may be."""

    def __init__(self, least_us: int) -> None:
        super().__init__()
        self._least_us = min(least_us, LAST_US)

    def now_us(self) -> int:
        return max(super().now_us(), self._least_us)


def _restore(folder: Path, contents: Contents, part: Rows, way: Way) -> None:
    """Restore contents into a new log and store in memory, and compare the result."""
    state = contents.reached.state
    clock = _ClockOfLog(state.decided_at_us)
    place = clock.new_id()
    log, store = MemoryLog(place, state.name), MemoryStore(place, state.name)
    where = Endpoints(state.name, f"memory://{place}", f"memory://{place}")
    coordinator = Coordinator(where, log, store, clock=clock)
    try:
        if way is not Way.NEW:
            log.create()
            log.append_decision(encode_record(summary_of(_trimmed(state))))
        plan = plan_restore(coordinator, contents.reached, folder, is_newest=True)
        if way is Way.AGAIN:
            plan = plan._replace(way=way, kept=last_batch_within(state, state.last_version))
        restore_from(coordinator, contents, plan)
        _compare(coordinator, state, plan.kept, part)
    finally:
        memory_log.forget(place)
        memory_store.forget(place)


def _trimmed(state: Folded) -> Folded:
    """Return the state of a log of one store, from which the blobs of every version were trimmed."""
    recent = tuple(msgspec.structs.replace(each, manifest_address="trimmed:0") for each in state.recent)
    return msgspec.structs.replace(state, recent=recent, stores=())


def _compare(coordinator: Coordinator, state: Folded, origin: BatchOrigin | None, part: Rows) -> None:
    """Compare a restored namespace with the fold and the rows of the backup. Raises: CorruptError."""
    store, folded = coordinator.store, coordinator.folded
    visible = store.pointer().visible
    (entry,) = store.catalog(visible, visible)
    followed = last_followed(folded)
    facts = (folded.lineage, set(folded.once), None if followed is None else followed.origin)
    if facts != (state.lineage, set(state.once), origin) or folded.generation < state.generation:
        raise CorruptError("the query that is followed, its last batch or the tokens are not the backup's")
    made = queues_of(state.tables).keys() - state.tables.keys()  # by the restore, of the due times
    shown, known = {name: t for name, t in entry.tables.items() if name not in made}, store.schemas()
    schemas = {t.schema_id for t in state.tables.values()}
    if _tables_at(shown) != _tables_at(state.tables) or not schemas <= known.keys():
        raise CorruptError("its tables, or their columns, are not the backup's")
    for table in shown:
        rows = (
            (group, *row)
            for group, batch in store.scan_groups_stored(entry.read_at(table), range(state.key_groups))
            for row in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
        )
        expected = (
            row
            for batch in part.get(table, ())
            for row in zip(*(column.to_pylist() for column in _live(batch, entry).columns), strict=True)
        )
        if sorted(rows) != sorted(expected):
            raise CorruptError(f"the rows of table {table} are not the backup's")


def _tables_at(tables: Mapping[str, TableAt]) -> dict[str, tuple[str, int]]:
    return {name: (table_at.schema_id, table_at.apart) for name, table_at in tables.items()}


def _live(batch: Any, entry: CatalogEntry) -> Any:
    return batch.filter(payloads(batch["value"], entry.decided_at_us).is_valid())
