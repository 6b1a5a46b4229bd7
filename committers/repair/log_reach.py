"""The reach of the log: the versions, and the tables at a version, of which it still has every row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from tidegate.committers.apply import apply
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.steps.decided_versions import decided_version, decided_versions
from tidegate.committers.steps.retire import kept_by
from tidegate.errors import IncompleteError, StoreLostError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.fit import FROM_ELSEWHERE, Held
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.sinks.store import Store
from tidegate.wal.fold import recent_version
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion, Folded

Has = Callable[[Log, DecidedVersion], bool]


def first_kept(coordinator: Coordinator) -> int:
    """Return the horizon of a rebuilt store: as many versions are readable as retirement keeps."""
    readable, _ = kept_by(coordinator.store, coordinator.options)
    return max(coordinator.folded.last_version - readable + 1, FILLED_FROM)


def refilled_at(coordinator: Coordinator) -> int:
    """Return the version at which a store that lost the namespace is filled again; 0: its first one is next.

    Redis is repaired by key groups, at any version.
    """
    last = coordinator.folded.last_version
    if isinstance(coordinator.store, SupportsRebuild):
        return last
    return first_kept(coordinator) if last >= FILLED_FROM else 0


def log_can_fill(coordinator: Coordinator) -> bool:
    """Whether the log has every version from 1 on, and the store can be filled from it."""
    return _has_all(coordinator) and not isinstance(coordinator.store, SupportsRebuild)


def log_can_rebuild(coordinator: Coordinator) -> bool:
    """Whether the log has every version from 1 on, and the store is repaired from it by key groups."""
    return isinstance(coordinator.store, SupportsRebuild) and _has_all(coordinator)


def _has_all(coordinator: Coordinator) -> bool:
    return oldest_whole(coordinator.log, coordinator.folded, 1) == 1


def refuse_missing_place(coordinator: Coordinator) -> None:
    """Refuse to make a store again in a folder that is not the one which held it. It writes nothing.

    The disk of a store in files may not be mounted: a second store in its place would be hidden by the first
    one later, and readers would get the old versions. Raises: StoreLostError.
    """
    store = coordinator.store
    place = "" if coordinator.request.may_make_again else store.missing_place()
    if place:
        raise StoreLostError(
            f"{store.where}: the folder {place} is missing, or is not the one in which the store was made,"
            f" and {coordinator.log.where} has {coordinator.folded.last_version} decided versions. Nothing"
            " was made there: is its disk mounted, and is the store's URL right? Mount it, then start the"
            " query again. If the store is lost, `tidegate recover` makes it again from the log"
        )


def refuse_unrecoverable(coordinator: Coordinator) -> None:
    """Refuse a store that lost every row if the log cannot rebuild it. It writes nothing.

    Raises: WalGapError: the log no longer has the first versions; the error names those that it has.
    """
    store = coordinator.store
    if isinstance(store, SupportsRebuild) and store.has_headers(coordinator.folded.key_groups):
        return  # the pointer alone was lost
    oldest = oldest_whole(coordinator.log, coordinator.folded, 1)
    if oldest == 1:
        return
    last = coordinator.folded.last_version
    reach = f"has versions {oldest} to {last} only" if oldest else "has the rows of no version"
    others = [fills_from(coordinator, ref) for ref in coordinator.endpoints.also]
    elsewhere = f"from one that has its rows: {' or '.join(others)}" if others else FROM_ELSEWHERE
    raise WalGapError(
        f"{coordinator.store.where} holds no row, and {coordinator.log.where} {reach}: the rest was trimmed"
        " (wal_retain_s), so no log can rebuild this store. Nothing was written. If there is a"
        " backup: `tidegate restore-from FOLDER`. Else put a copy of the store back, or fill it"
        f" {elsewhere}; without any of these, rebuild it from the input (docs/operations.md)"
    )


def fills_from(coordinator: Coordinator, source: StoreRef) -> str:
    """Return the command that fills the primary from another store, which it puts first."""
    others = [ref.name for ref in coordinator.endpoints.stores if ref != source]
    return f"`tidegate recover {' '.join(f'--store {name}=URL' for name in (source.name, *others))}`"


def oldest_whole(log: Log, state: Folded, version: int, has: Has | None = None) -> int:
    """Return the oldest version from ``version`` on that the log still has; 0: it has none.

    Without ``has`` that is by ``is_whole``, and no later manifest is missing: a log whose clock went back is
    trimmed of versions in the middle.
    """
    oldest = 0
    for decided in decided_versions(log, state, version):
        if not oldest:
            oldest = decided.version if (has or is_whole)(log, decided) else 0
            if oldest and has:
                break
        elif not has_manifest(log, decided):
            oldest = 0
    return oldest


def present_before(decisions: DecisionLog, version: int) -> frozenset[str]:
    """List the tables that may have rows of versions before ``version``, whose manifest the log has.

    Where the log lacks the manifest before, all of its own tables may.
    """
    if version <= 1:
        return frozenset()
    for number in (version - 1, version):
        decided = decided_version(decisions, number)
        with contextlib.suppress(WalGapError):
            if decided is not None:
                return frozenset(apply.read_manifest(decisions.log, decided).table_schemas)
    return frozenset()


def tables_lost(manifest: Manifest, first: int, present: Collection[str]) -> set[str]:
    """List the tables at a version of which the versions from ``first`` on have not every row.

    ``present`` are the tables from before ``first``. A table that was emptied or made since is whole.
    """
    tables = manifest.table_schemas
    return {name for name, table_at in tables.items() if table_at.start < first and name in present}


def held_for(log: Log, store: Store, state: Folded, pointer: Pointer) -> Held | None:
    """Find the part of the log that a store needs, as ``held_by``; None also: its pointer alone was lost."""
    if isinstance(store, SupportsRebuild) and not pointer.visible and store.has_headers(state.key_groups):
        return None
    return held_by(log, state, pointer.visible, is_whole)


def held_by(log: Log, state: Folded, visible: int, has: Has) -> Held | None:
    """Find the part of the log that a store at a version needs; None: the log has all of it.

    A store that does not lag still needs the visible version's manifest: without it nothing can be retired,
    repaired or fed. A log with a retention may have dropped that by age. ``has`` decides whether the log has
    a version that a lagging store needs.
    """
    if visible < state.last_version:
        return Held(visible + 1, oldest_whole(log, state, visible + 1, has))
    decided = recent_version(state, visible)
    if decided is None or has_manifest(log, decided) or log.retention_s() is not None:
        return None
    return Held(visible, 0)


def has_manifest(log: Log, decided: DecidedVersion) -> bool:
    """Whether the log still has the manifest of the version."""
    try:
        apply.read_manifest(log, decided)
    except WalGapError:
        return False
    return True


def is_whole(log: Log, decided: DecidedVersion) -> bool:
    """Whether the log still has the manifest and every frame of the version."""
    try:
        addresses = [frame.address for frame in apply.read_manifest(log, decided).frames()]
        return len(list(log.read(addresses) if addresses else ())) == len(addresses)
    except WalGapError:
        return False


def refused_rows(coordinator: Coordinator, what: str) -> IncompleteError:
    """Build the error for rows that the store does not take again.

    ``what`` begins with the store, and says what was written. In Cassandra the mark of a delete, or of a row
    that has expired, wins over the row itself.
    """
    name = coordinator.endpoints.stores[0].name
    again = (
        "Make the store again from the log: stop the query, then `tidegate drop --only-stores --store"
        f" {name}=URL --force`, then `tidegate recover`"
    )
    if not log_can_fill(coordinator):
        again = "Bring the rows that `tidegate verify` names in again by a `load`: they get a new version"
    return IncompleteError(
        f"{what}. Somebody deleted rows in the store, or set a time to live there, and its marks of that win"
        f" over the rows. {again}"
    )
