"""The plan of a restore: the version to go back to, the place of its rows, and the batches that it undoes.

A version that the store has retired is computed from the log, or from an export and the log after it. All
here only reads; ``restore.py`` carries the plan out. docs/decisions/0034.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.barrier import refuse_restored_strides
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.open import not_shown, refuse_lost
from tidegate.committers.opening.rekeyed import made_whole
from tidegate.committers.operations.restore_base import Base, read_base, refuse_other_base
from tidegate.committers.repair.log_reach import oldest_whole, present_before, tables_lost
from tidegate.committers.steps.decided_versions import LastBatch, decided_version, decided_versions
from tidegate.errors import ConfigError, SnapshotExpiredError, WalGapError
from tidegate.keys.groups import EPOCH
from tidegate.sinks.rules.visible import moment
from tidegate.wal.catch_up import source_offsets_of
from tidegate.wal.fold import RECENT_MAX, recent_version
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, Origin, RestoreOrigin


class Change(NamedTuple):
    """One version that a restore undoes; ``changes`` is None if log and store no longer have its counts."""

    version: int
    origin: Origin
    changes: Mapping[str, int] | None
    source_offsets: str


class RestorePlan(NamedTuple):
    """A restore before it acts.

    ``last`` is the last decided version: the restored one follows it. ``first`` is the first version that is
    read from the log, 0: the store still has the rows. ``manifest`` is the target's, if the rows are not from
    the store. ``made`` is the version that an earlier run of this restore has made. ``undone`` are the
    versions of batches, loads and imports that the new version does not hold and the last one holds, oldest
    first; ``returned`` are those that it holds again. ``kept`` is the last batch that it holds, and
    ``newest_batch`` the highest number that its query has decided. ``replayable``: batches after it may be
    replayed.
    """

    target: DecidedVersion
    last: int
    first: int
    base: Base | None
    manifest: Manifest | None
    made: int | None
    undone: Sequence[Change]
    returned: Sequence[DecidedVersion]
    kept: LastBatch | None
    newest_batch: int
    replayable: bool
    reprocess: bool


def plan_restore(
    coordinator: Coordinator,
    to: int | datetime.datetime,
    *,
    base: Path | None = None,
    reprocess: bool = False,
) -> RestorePlan:
    """Find the version, the place of its rows, and what a restore of it undoes. It writes nothing.

    A time means the newest version that was decided by then. ``base`` is an export of this namespace.
    Raises: ConfigError: there is no such version, it is visible, the export does not fit, a table has other
    key groups since, or with ``reprocess`` no query is followed. SnapshotExpiredError: the version was
    retired, and the log does not reach back to it; the error names the oldest version that can be restored.
    StoreLostError: the store has nothing of the namespace.
    """
    state, name = coordinator.decisions.catch_up(), coordinator.endpoints.namespace
    refuse_lost(coordinator.log, coordinator.store, state)
    pointer = coordinator.store.pointer()
    if state is None or not pointer.visible:
        raise ConfigError(
            f"namespace {name} has no visible version yet, so there is none to restore{not_shown(state)}"
        )
    if reprocess and state.lineage is None:
        raise ConfigError(
            f"namespace {name} follows no query, so there is nothing to replay: leave --reprocess out"
        )
    history = _History(coordinator.decisions)
    version = to if isinstance(to, int) else _newest_by(coordinator, state, to, pointer.horizon)
    _refuse_version(state, version, pointer.visible, name)
    made = state.last_version if _is_restored(state, version) else None
    if version == state.last_version or (made == pointer.visible and not reprocess):
        raise ConfigError(f"namespace {name} shows version {version} already: nothing was written")
    target = history.get(version)
    if target is None:
        raise _out_of_reach(coordinator, state, version, None, pointer.horizon)
    batch = _last_batch(coordinator, history, version)
    replayable = batch is None or batch.version > state.last_version + 1 - RECENT_MAX
    if reprocess and batch is not None and not replayable:
        raise _unguarded(state, batch, version, name)
    undone, returned = _between(history, state.last_version if made is None else made - 1, version)
    first, manifest, export = 0, None, None
    if base is not None:  # also where its rows are not needed
        refuse_other_base(coordinator, base, version)
    if made is None and version < pointer.horizon:
        first, manifest, export = _source(coordinator, state, target, base, pointer.horizon)
    if made is None:
        _refuse_other_strides(coordinator, state, version, manifest)
    return RestorePlan(
        target,
        state.last_version,
        first,
        export,
        manifest,
        made,
        _changes(coordinator, undone),
        returned,
        batch,
        _newest_batch(state, batch, undone),
        replayable,
        reprocess,
    )


def _refuse_other_strides(
    coordinator: Coordinator, state: Folded, version: int, manifest: Manifest | None
) -> None:
    """Refuse a table that was made again with other key groups. ``manifest``: of a retired version."""
    way = "drop it in a batch of its own, by `txn.drop_table`, and run this again"
    if manifest is not None:
        refuse_restored_strides(state, version, manifest.table_schemas, way)
    for entry in () if manifest else coordinator.store.catalog(version, version):
        also = f"; or `tidegate export FOLDER --at {version}`, then `tidegate import FOLDER`"
        refuse_restored_strides(state, version, entry.tables, way + also)


def _refuse_version(state: Folded, version: int, visible: int, name: str) -> None:
    if visible < version <= state.last_version:
        raise ConfigError(
            f"version {version} of namespace {name} is decided and not visible yet, the visible one is"
            f" {visible}: run `tidegate recover` first"
        )
    if version > visible or version < 1:
        raise ConfigError(
            f"there is no version {version} of namespace {name} to restore, the visible one is {visible}:"
            " `tidegate history` lists those that can be read"
        )


def _is_restored(state: Folded, version: int) -> bool:
    return bool(state.recent) and state.recent[-1].origin == RestoreOrigin(version)


def _unguarded(state: Folded, batch: LastBatch, version: int, name: str) -> ConfigError:
    """Build the error for a replay after a batch that the fold no longer keeps (I2)."""
    oldest = state.last_version + 2 - RECENT_MAX
    return ConfigError(
        f"version {version} of namespace {name} holds batches up to {batch.origin.batch_id}, and a replay is"
        f" safe only after one of the last {RECENT_MAX:,} versions, from {oldest} on: with"
        " an older checkpoint batches could count twice. Nothing was written. Leave --reprocess out;"
        " the command then shows how a query on a new checkpoint starts after that batch"
    )


def _newest_batch(state: Folded, batch: LastBatch | None, undone: Sequence[DecidedVersion]) -> int:
    if batch is None:
        return -1
    lineage, (_, last) = batch.origin.lineage, state.batches.get(batch.origin.lineage, (0, 0))
    origins = [each.origin for each in undone if isinstance(each.origin, BatchOrigin)]
    return max([last, batch.origin.batch_id, *(of.batch_id for of in origins if of.lineage == lineage)])


# -- times and histories --------------------------------------------------------------------------


def _newest_by(coordinator: Coordinator, state: Folded, time: datetime.datetime, horizon: int) -> int:
    """Find the newest version that was decided by a time."""
    at_us = (time - EPOCH) // datetime.timedelta(microseconds=1)
    recent = state.recent[0] if state.recent else None
    first = recent.version if recent and recent.decided_at_us <= at_us else 1
    newest = oldest = None
    for decided in decided_versions(coordinator.log, state, first):
        oldest = oldest or decided
        if decided.decided_at_us > at_us:
            break
        newest = decided
    if newest is not None:
        return newest.version
    if oldest is not None and oldest.version == 1:
        raise ConfigError(
            f"namespace {coordinator.endpoints.namespace} had no version at {time.isoformat()}: version 1,"
            f" decided at {shown_time(oldest)}, is its first"
        )
    raise _out_of_reach(coordinator, state, None, time, horizon)


def shown_time(decided: DecidedVersion) -> str:
    """Show the time of a decision, in a form that ``--to`` takes."""
    return moment(decided.decided_at_us).isoformat()


class _History:
    """The decided versions by number. Those that the fold no longer keeps are read from the log, once."""

    def __init__(self, decisions: DecisionLog) -> None:
        self._decisions = decisions
        self._older: dict[int, DecidedVersion] | None = None

    def get(self, version: int) -> DecidedVersion | None:
        state = self._decisions.folded
        decided = recent_version(state, version)
        if decided is None and 0 < version <= state.last_version:
            if self._older is None:
                older = decided_versions(self._decisions.log, state, 1)
                self._older = {each.version: each for each in older}
            decided = self._older.get(version)
        return decided


def _before(decided: DecidedVersion) -> int:
    """Return the version whose content this one continues."""
    return decided.origin.version if isinstance(decided.origin, RestoreOrigin) else decided.version - 1


def _between(history: _History, last: int, target: int) -> tuple[list[DecidedVersion], list[DecidedVersion]]:
    """List what ``last`` holds and ``target`` does not, and the opposite, oldest first.

    Versions form a tree by the content that they continue; the lists end where both branches meet.
    """
    undone, returned = list[DecidedVersion](), list[DecidedVersion]()
    while last != target:
        newer = history.get(max(last, target))
        if newer is None:  # the log no longer has its decision
            break
        if not isinstance(newer.origin, RestoreOrigin) and not made_whole(newer.origin):
            (undone if newer.version == last else returned).append(newer)
        if newer.version == last:
            last = _before(newer)
        else:
            target = _before(newer)
    return undone[::-1], returned[::-1]


def _last_batch(coordinator: Coordinator, history: _History, version: int) -> LastBatch | None:
    decided = history.get(version)
    while decided is not None and not isinstance(decided.origin, BatchOrigin):
        decided = history.get(_before(decided))
    if decided is None or not isinstance(decided.origin, BatchOrigin):
        return None
    (batch,) = _changes(coordinator, [decided])
    offsets = batch.source_offsets or source_offsets_of(coordinator.log, decided)  # long ones are only there
    return LastBatch(decided.origin, decided.version, decided.decided_at_us, offsets)


def _changes(coordinator: Coordinator, versions: Sequence[DecidedVersion]) -> list[Change]:
    """Read the counts and offsets of versions: from the catalog, of retired ones from the log."""
    if not versions:
        return []
    entries = coordinator.store.catalog(versions[0].version, versions[-1].version)
    catalog = {entry.version: entry for entry in entries}
    changes = []
    for decided in versions:
        counts, offsets = None, ""
        if (entry := catalog.get(decided.version)) is not None:
            counts, offsets = entry.changes, entry.source_offsets
        elif (manifest := manifest_if_kept(coordinator, decided)) is not None:
            counts, offsets = manifest.changes(), manifest.source_offsets
        changes.append(Change(decided.version, decided.origin, counts, offsets))
    return changes


def manifest_if_kept(coordinator: Coordinator, decided: DecidedVersion) -> Manifest | None:
    """Read a manifest; None: the log no longer has it."""
    try:
        return read_manifest(coordinator.log, decided)
    except WalGapError:
        return None


# -- the reach of the log -------------------------------------------------------------------------


def _source(
    coordinator: Coordinator, state: Folded, target: DecidedVersion, folder: Path | None, horizon: int
) -> tuple[int, Manifest, Base | None]:
    """Find the first version to read from the log, for a version that the store has retired."""
    log, manifest, base = coordinator.log, manifest_if_kept(coordinator, target), None
    if folder is None:
        first = oldest_whole(log, state, 1)
        reached = 0 < first <= target.version
    else:
        base = read_base(coordinator, target, folder)
        first = base.manifest.version + 1
        reached = first > target.version or oldest_whole(log, state, first) == first
    if manifest is None or not reached:
        too_old = "" if folder is None or base is None else _too_old(folder, base)
        raise _out_of_reach(coordinator, state, target.version, None, horizon, too_old)
    lost = tables_lost(manifest, first, present_before(coordinator.decisions, first))
    if base is not None:
        lost -= base.manifest.tables.keys()
        if lost:
            raise ConfigError(
                f"{folder} has no table {', '.join(sorted(lost))}, which version {target.version} has: give"
                " an export of all tables"
            )
    elif lost:
        raise _out_of_reach(coordinator, state, target.version, None, horizon)
    else:
        starts = [table_at.start for table_at in manifest.table_schemas.values()]
        first = max(first, min(starts, default=target.version))
    return first, manifest, base


def _too_old(folder: Path, base: Base) -> str:
    """Describe, for a message, why an export or a folder of backups was not enough, and the way out."""
    text = f" {base.folder} has version {base.manifest.version}, and the log lacks changes after it."
    if base.folder == folder:
        return text
    return text + (
        " This command uses full backups only. For a version of an increment run `tidegate restore-from"
        f" {shlex.quote(str(folder))} --to VERSION --namespace NEW_NAME`,"
        " `tidegate export DIR --namespace NEW_NAME`, and `tidegate import DIR` here."
    )


def _out_of_reach(
    coordinator: Coordinator,
    state: Folded,
    version: int | None,
    time: datetime.datetime | None,
    horizon: int,
    too_old: str = "",
) -> SnapshotExpiredError:
    """Build the error for a version, or a time, that neither the store nor the log holds any more.

    ``too_old`` describes the export that was given.
    """
    log, whole = coordinator.log, oldest_whole(coordinator.log, state, 1)
    oldest = _oldest_restorable(coordinator, state, whole, horizon)
    label = f"version {version}" if time is None else f"the version of {time.isoformat()}"
    reach = f"has the rows of versions {whole} to {state.last_version} only" if whole else "has no rows"
    nearest = (
        f"the oldest that can be restored is {oldest.version}, decided at {shown_time(oldest)}"
        if oldest is not None
        else f"the oldest that can be restored is {horizon}"
    )
    return SnapshotExpiredError(
        f"{label} of namespace {coordinator.endpoints.namespace} was retired, {nearest}. {log.where} {reach}:"
        " keep_versions and wal_retain_s at the writer set how far back both reach. Nothing was written."
        f"{too_old} With an export of version {max(whole - 1, 1)} or a later one, `tidegate restore --to"
        " VERSION --base DIR` reaches the versions from that one on; `tidegate import DIR` makes a version of"
        " an older export"
    )


def _oldest_restorable(
    coordinator: Coordinator, state: Folded, whole: int, horizon: int
) -> DecidedVersion | None:
    """Find the oldest version whose tables all have their rows in the log; else the oldest in the store."""
    if whole:
        present = present_before(coordinator.decisions, whole)
        for decided in decided_versions(coordinator.log, state, whole):
            if decided.version >= horizon:
                break
            manifest = manifest_if_kept(coordinator, decided)
            if manifest is not None and not tables_lost(manifest, whole, present):
                return decided
    return decided_version(coordinator.decisions, horizon)
