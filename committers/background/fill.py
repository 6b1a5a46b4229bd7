"""The fill: a new store gets the state of another one at one version, then follows the log from there.

A lease pins the version in the source, and the new store is marked with it before anything is written there.
Every row that is live at the version is applied as that version's, and sealed. Then that version is the first
one visible. A second or concurrent filler at the same version writes the same rows in the same chunks.
docs/decisions/0015 explains why an older filler can do no harm.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base import failpoints
from tidegate.committers.apply.apply import stamp_of
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.repair.repair import repair
from tidegate.committers.states import Machine, State
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.committers.steps.publish import publish
from tidegate.errors import (
    CorruptError,
    FencedError,
    SnapshotExpiredError,
    StoreUnavailableError,
    WalGapError,
)
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import DecidedVersion

logger = logging.getLogger("tidegate")

CHUNK_ROWS = 1_000
CHUNK_BYTES = 4 * 1024 * 1024
"""The size of a chunk. Only rows and bytes decide the cut, so every source and filler has the same chunks."""


class Rows(Protocol):
    """The rows of one version: a store, or the state that the log gives."""

    def scan_stored(self, table: str, group: int, version: int, start: int = 0) -> Iterator[Any]:
        """Yield the rows of one key group by key, as ``Store.scan_stored``."""


def fill(coordinator: Coordinator, source: Store, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Fill the driver's store from ``source``; False: stopped half-way, call it again.

    The epoch must be claimed. Durable: on return of True a version is visible there, complete; readers never
    saw a part of it. Repeatable: also after an interruption; it continues at the version that was begun if
    the source still has it, else at a newer one, from ``FILLED_FROM`` on. Raises: StoreUnavailableError,
    SnapshotExpiredError: call it again. FencedError: a newer driver fills. ConfigError: the store cannot be
    filled. WalGapError: the log does not know the source's version.
    """
    if coordinator.store.pointer().filling_at and coordinator.store.unverified():
        repair(coordinator)  # puts nothing back: the fill writes again the rows of it that servers lost
    held = _hold(coordinator, source)
    try:
        decided = _decided(coordinator.decisions, held.version)
        entry = _entry(source, decided)
        _refuse_other_base(coordinator, held.version)
        stands = coordinator.store.begin_fill(entry, coordinator.epoch)
        failpoints.hit("fill.after_begin")
        if stands != held.version:
            return is_filled(coordinator, held.version, stands)
        coordinator.store.put_schemas(source.schemas().values())
        if not fill_groups(coordinator, source, stamp_of(decided), entry, stopped, held.keep):
            return False
        publish(
            coordinator,
            Machine(State.SEALED, coordinator.watch),
            decided,
            entry,
            first_of=(entry,),
        )
        logger.info(
            "%s was filled from %s, version %s is visible",
            coordinator.store.where,
            source.where,
            decided.version,
        )
        return True
    finally:
        held.give_back()


def _hold(coordinator: Coordinator, source: Store) -> VersionPin:
    """Pin the version that was begun if the source still has it, else its newest."""
    begun, newest = coordinator.store.pointer().filling_at, source.pointer().visible
    wanted = max(begun, FILLED_FROM)
    if newest < wanted:
        msg = (
            f"{coordinator.store.where} waits to be filled from {source.where}: version {wanted} is not"
            f" visible there yet, version {newest} is"
        )
        raise StoreUnavailableError(msg)
    if begun >= FILLED_FROM:
        with contextlib.suppress(SnapshotExpiredError):
            return VersionPin(source, begun, coordinator.clock)
    return VersionPin(source, newest, coordinator.clock)


def _refuse_other_base(coordinator: Coordinator, version: int) -> None:
    """Refuse to fill a store whose rebuild from the log has written versions above another base.

    Raises: WalGapError: it has to be dropped first.
    """
    begun = coordinator.store.pointer().filling_at
    if begun and begun != version and any(stamp.version > begun for stamp in coordinator.store.begun()):
        raise WalGapError(
            f"{coordinator.store.where}: its rebuild from the log, at version {begun}, was interrupted, and"
            f" {version} is the version to fill it at now: remove it, drop its data, and add it again"
            " (`tidegate store remove`, `tidegate drop --only-stores`, `tidegate store add`)"
        )


def is_filled(coordinator: Coordinator, version: int, stands: int) -> bool:
    """Whether a version is visible by now, by another fill. Raises: FencedError, StoreUnavailableError.

    ``stands`` is the version that the store is marked with, instead of ``version``.
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
    msg = f"{coordinator.store.where} is being filled at version {stands}, not {version}: tried again"
    raise StoreUnavailableError(msg)


def _decided(decisions: DecisionLog, version: int) -> DecidedVersion:
    decisions.catch_up()  # a version visible in the source was decided before
    decided = decided_version(decisions, version)
    if decided is None:
        msg = f"{decisions.where} does not know version {version}: log and stores do not belong together"
        raise WalGapError(msg)
    return decided


def _entry(source: Store, decided: DecidedVersion) -> CatalogEntry:
    entries = source.catalog(decided.version, decided.version)
    if not entries:
        raise SnapshotExpiredError(f"{source.where}: version {decided.version} was retired meanwhile")
    if entries[0].digest != decided.digest:
        msg = (
            f"{source.where}: version {decided.version} has digest {entries[0].digest} in the catalog,"
            f" {decided.digest} in the log: they are of two histories; nothing was copied"
        )
        raise CorruptError(msg)
    return entries[0]


def fill_groups(
    coordinator: Coordinator,
    source: Rows,
    stamp: Stamp,
    entry: CatalogEntry,
    stopped: Callable[[], bool] = lambda: False,
    keep: Callable[[], None] = lambda: None,
) -> bool:
    """Apply and seal every live row of the source at the entry's version; False: stopped half-way.

    ``keep`` is called before each chunk. Repeatable: any source of the same rows gives the same chunks.
    """
    for group in range(coordinator.folded.key_groups):
        if stopped():
            return False
        _fill_group(coordinator.store, source, stamp, entry, group, keep)
        failpoints.hit("fill.after_group")
    return True


def _fill_group(
    target: Store, source: Rows, stamp: Stamp, entry: CatalogEntry, group: int, keep: Callable[[], None]
) -> None:
    counts: dict[str, int] = {}
    ordinal = 0
    for table, at in sorted(entry.tables.items()):
        for run in _runs(source, table, group, stamp, at.start):
            keep()
            target.apply(stamp, Chunk(ordinal, [run]))
            counts[table] = counts.get(table, 0) + len(run.keys)
            ordinal += 1
    keep()
    if counts:
        target.seal(stamp, {group: counts})


def _runs(source: Rows, table: str, group: int, stamp: Stamp, start: int) -> Iterator[Run]:
    """Yield the live rows of a table in a key group, in pieces that depend on the rows alone.

    They are copied as they are stored, with their expiry. Rows that have expired at the version are left out.
    """
    keys = values = pa.array([], pa.binary())
    for batch in source.scan_stored(table, group, stamp.version, start):
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
