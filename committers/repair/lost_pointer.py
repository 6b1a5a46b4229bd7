"""The repair of a lost pointer from the log: the visible version, and the catalog's entries."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from tidegate.committers.apply import apply
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import first_kept, oldest_whole
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.errors import WalGapError
from tidegate.sinks.capabilities import SupportsPutEntries, SupportsRebuild
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.wal.record import DecidedVersion

logger = logging.getLogger("tidegate")


def resume(coordinator: Coordinator) -> None:
    """Make the last decided version visible when the pointer was lost, or went back past the log's start.

    A pointer that was lost and created again has no visible version. It continues at the log's last version.
    As many versions are readable as retirement keeps, if the log has them: they were sealed wherever their
    rows are. The servers count as not compared, so a repair follows before any read: nobody reads the
    past as the present. Key groups without any row are rebuilt by that repair: the state at the horizon, then
    the versions above it. The driver owns the epoch. Repeatable. Raises: WalGapError: the store was being
    filled.
    """
    store, last = coordinator.store, coordinator.folded.last_version
    if not isinstance(store, SupportsRebuild) or not last:
        return
    pointer = store.pointer()
    if pointer.filling_at or pointer.visible >= last:
        return
    horizon = resumed_horizon(coordinator, pointer.visible)
    if not horizon:
        return
    versions = list(decided_versions(coordinator.log, coordinator.folded, 1))
    entry = catalog_entry(versions[-1], apply.read_manifest(coordinator.log, versions[-1]))
    _put_schemas(coordinator, versions, entry)  # first: readers need them as soon as the version is visible
    if store.resume(entry, horizon, coordinator.epoch, pointer.visible):
        coordinator.rebuilt_from = horizon
        logger.warning(
            "%s had lost its pointer's contents: version %s is the visible one again, and version %s the"
            " oldest; every server is compared with the log now, and readers are refused until then",
            store.where,
            entry.version,
            horizon,
        )


def resumed_horizon(coordinator: Coordinator, visible: int) -> int:
    """Return the oldest readable version once ``resume`` has put the pointer back; 0: it does not."""
    state = coordinator.folded
    oldest = oldest_whole(coordinator.log, state, visible + 1)
    was_lost = not visible and state.last_version >= FILLED_FROM
    if not oldest or (oldest == visible + 1 and not was_lost):
        return 0
    return max(oldest, first_kept(coordinator)) if was_lost else oldest


def _put_schemas(coordinator: Coordinator, versions: Sequence[DecidedVersion], entry: CatalogEntry) -> None:
    """Put back the schemas of the entry's tables: each from the newest version that brought it."""
    missing = {table_at.schema_id for table_at in entry.tables.values()} - coordinator.store.schemas().keys()
    for decided in reversed(versions):
        if not missing:
            break
        with contextlib.suppress(WalGapError):
            schemas = apply.read_manifest(coordinator.log, decided).schemas
            coordinator.store.put_schemas([schemas[name] for name in missing & schemas.keys()])
            missing -= schemas.keys()


def put_back_entries(coordinator: Coordinator) -> list[int]:
    """Put back the entries of readable versions that the store's catalog lost; return their versions.

    An entry whose version the log no longer has stays lost; ``verify`` finds it.
    """
    store = coordinator.store
    if not isinstance(store, SupportsPutEntries):
        return []
    pointer = store.pointer()
    existing = {entry.version for entry in store.catalog()}
    versions = range(max(pointer.horizon, 1), pointer.visible + 1)
    if existing.issuperset(versions):
        return []
    put_back = []
    for decided in _known(coordinator, versions, existing):
        try:
            entry = catalog_entry(decided, apply.read_manifest(coordinator.log, decided))
        except WalGapError:
            continue
        if store.put_entries([entry]):
            put_back.append(decided.version)
    lost = sorted({*versions} - existing - {*put_back})
    if put_back:
        logger.warning("%s: the catalog's entries of versions %s were put back", store.where, put_back)
    if lost:
        logger.warning("%s: no log has the catalog's entries of versions %s", store.where, lost)
    return put_back


def _known(coordinator: Coordinator, versions: range, existing: set[int]) -> Iterator[DecidedVersion]:
    for decided in decided_versions(coordinator.log, coordinator.folded, versions.start):
        if decided.version in versions and decided.version not in existing:
            yield decided
