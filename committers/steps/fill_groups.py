"""The fill of key groups at one version, from another store or from the state that the log gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base import failpoints
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import FencedError, StoreUnavailableError, WalGapError
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.rules.reads import GroupedRows, StoredRows, values_at, windows
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run

CHUNK_ROWS = 1_000
CHUNK_BYTES = 4 * 1024 * 1024
"""The size of a chunk. Only rows and bytes decide the cut, so every source and filler has the same chunks."""


def is_filled(coordinator: Coordinator, version: int, mark: int) -> bool:
    """Whether a version is visible by now, by another fill. Raises: FencedError, StoreUnavailableError.

    ``mark`` is the version that the store is marked with, instead of ``version``. Raises also: WalGapError:
    the log does not have it, so no fill ends there.
    """
    pointer = coordinator.store.pointer()
    if pointer.epoch > coordinator.epoch:
        msg = (
            f"driver {pointer.writer} claimed epoch {pointer.epoch} in {coordinator.store.where}, above this"
            f" driver's {coordinator.epoch}: that driver fills it; stop this one"
        )
        raise FencedError(msg)
    if pointer.visible:
        return True
    coordinator.decisions.catch_up()
    if mark > coordinator.last_decided:
        raise WalGapError(
            f"{coordinator.store.where} was being filled at version {mark}, and {coordinator.log.where}"
            f" ends at version {coordinator.last_decided}: it lost its end, or an older copy was put back."
            " Put the newest copy back; or, if there is none, run `tidegate drop --only-stores --store"
            f" {coordinator.endpoints.stores[0].name}=URL --force`, then this again"
        )
    msg = f"{coordinator.store.where} is being filled at version {mark}, not {version}: tried again"
    raise StoreUnavailableError(msg)


def fill_groups(
    coordinator: Coordinator,
    source: StoredRows,
    stamp: Stamp,
    entry: CatalogEntry,
    stopped: Callable[[], bool] = lambda: False,
    keep: Callable[[], None] = lambda: None,
) -> bool:
    """Apply and seal every live row of the source at the entry's version; False: stopped half-way.

    ``keep`` is called before each chunk. Repeatable: any source of the same rows gives the same chunks.
    """
    for group, tables in rows_by_group(source, entry, range(coordinator.folded.key_groups), keep):
        if stopped():
            return False
        _fill_group(coordinator.store, tables, stamp, group, keep)
        failpoints.hit("fill.after_group")
    return True


def rows_by_group(
    source: StoredRows, entry: CatalogEntry, groups: Sequence[int], keep: Callable[[], None]
) -> Iterator[tuple[int, Mapping[str, GroupedRows]]]:
    """Yield each key group with the rows of all tables, which are to be taken; many are read at once."""
    for step in windows(groups, len(entry.tables)):
        keep()
        tables = {
            table: GroupedRows(source.scan_groups_stored(entry.read_at(table), step))
            for table in sorted(entry.tables)
        }
        for group in step:
            yield group, tables


def live_rows(
    store: Store, entry: CatalogEntry, key_groups: int, at_us: int, keep: Callable[[], None]
) -> Iterator[tuple[int, int, Any]]:
    """Yield the rows that live at a time, as they are stored: key group, the index of the table, batch."""
    for group, tables in rows_by_group(store, entry, range(key_groups), keep):
        for index, (table, rows) in enumerate(tables.items()):
            read_at = entry.read_at(table)._replace(at_us=at_us)
            for batch in rows.take(group):
                keep()
                values = values_at(store.where, read_at, batch["key"].to_pylist(), batch["value"])
                yield group, index, batch.filter(values.is_valid())


def _fill_group(
    target: Store, tables: Mapping[str, GroupedRows], stamp: Stamp, group: int, keep: Callable[[], None]
) -> None:
    counts: dict[str, int] = {}
    ordinal = 0
    for table, rows in tables.items():
        for run in _runs(rows.take(group), table, group, stamp):
            keep()
            target.apply(stamp, Chunk(ordinal, [run]))
            counts[table] = counts.get(table, 0) + len(run.keys)
            ordinal += 1
    keep()
    if counts:
        target.seal(stamp, {group: counts})


def _runs(batches: Iterator[Any], table: str, group: int, stamp: Stamp) -> Iterator[Run]:
    """Yield the live rows of a table in a key group, in pieces that depend on the rows alone.

    They are copied as they are stored, with their expiry. Rows that have expired at the version are left out.
    """
    keys = values = pa.array([], pa.binary())
    for batch in batches:
        live = batch.filter(payloads(batch["value"], stamp.decided_at_us).is_valid())
        keys = pa.concat_arrays([keys, live["key"]])
        values = pa.concat_arrays([values, live["value"]])
        while cut := _first_cut(keys, values):
            yield Run(group, table, keys[:cut], values[:cut])
            keys, values = keys[cut:], values[cut:]
    if len(keys):
        yield Run(group, table, keys, values)


def _first_cut(keys: Any, values: Any) -> int:
    """Return the number of rows in the first piece, which ends at ``CHUNK_ROWS`` or ``CHUNK_BYTES``.

    0: the rows reach neither limit. The flags byte of a value does not count.
    """
    lengths = pc.add(pc.binary_length(keys[:CHUNK_ROWS]), pc.binary_length(values[:CHUNK_ROWS]))
    ends = pc.cumulative_sum(pc.cast(pc.subtract(lengths, 1), pa.int64())).to_numpy(zero_copy_only=False)
    cut = int(ends.searchsorted(CHUNK_BYTES)) + 1
    return cut if cut <= len(ends) else len(ends) if len(ends) == CHUNK_ROWS else 0
