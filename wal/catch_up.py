"""Reads of a log: the records since a reader's position, older decisions, the manifest of a decision."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.errors import CorruptError, WalGapError
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.log import Blobs, Log
from tidegate.wal.manifest import Manifest, decode_manifest
from tidegate.wal.record import MEND, DecidedVersion, Folded


def catch_up(view: View, log: Log) -> View:
    """Return the view after every record that the log has now, however old ``view`` is.

    Reading resumes where the view ended. When the records there have been trimmed, the log starts
    with a Summary of all of them, and is folded from that Summary from scratch. Void records that
    were trimmed are then no longer counted.

    Raises: WalGapError when the log ends before the view does, or is another log. Otherwise as
    ``Log.decisions`` and ``fold_all``.
    """
    try:
        return fold_all(view, log.decisions(view.position), log.where)
    except WalGapError:
        if view.state is None:
            raise
        fresh = fold_all(View(), log.decisions(), log.where)
        if fresh.state is None or not _goes_on(fresh, view):
            raise
        return fresh


def _goes_on(fresh: View, view: View) -> bool:
    """Return whether ``fresh`` is a later view of the same log: no field of a view ever decreases."""
    now, then = fresh.state, view.state
    return (
        now is not None
        and then is not None
        and now.namespace == then.namespace
        and now.epoch >= then.epoch
        and now.last_version >= then.last_version
        and fresh.position > view.position
        and recent_version(now, then.last_version) in (None, recent_version(then, then.last_version))
    )


def decided_versions(log: Log, state: Folded, version: int) -> Iterator[DecidedVersion]:
    """Yield ``version`` and all later decided versions up to ``state``'s last, oldest first.

    Those that ``state`` no longer keeps are read from the decision log, in one pass. Versions whose
    decision was trimmed there are left out.
    """
    version, last = max(version, 1), state.last_version
    if recent_version(state, version) is None and version <= last:
        kept_from = state.recent[0].version if state.recent else last + 1
        view, expected = View(), version
        for entry in log.decisions():
            view = fold_all(view, [entry], log.where)
            for decided in _newer(view, expected):
                if decided.version >= kept_from:
                    break
                yield decided
                expected = decided.version + 1
            if view.state is not None and view.state.last_version + 1 >= kept_from:
                break
        version = kept_from
    yield from (decided for decided in state.recent if decided.version >= version)


def _newer(view: View, version: int) -> list[DecidedVersion]:
    """List the decided versions that a view has from ``version`` on; after a Summary they are many."""
    recent = view.state.recent if view.state else ()
    if not recent or recent[-1].version < version:
        return []
    return list(recent[max(0, version - recent[0].version) :])


def read_manifest(log: Blobs, decided: DecidedVersion, *, rows: bool = True) -> Manifest:
    """Read the manifest of a decided version; with ``rows=False`` also one of a version from before the log.

    Raises: WalGapError: it was trimmed, or the log never had the version's rows. CorruptError: it is another
    version's or attempt's, or damaged.
    """
    for blob in log.read([decided.manifest_address]):
        where = f"{log.where}, manifest of version {decided.version} at {decided.manifest_address}"
        manifest = decode_manifest(blob.content, decided.manifest_digest, where)
        if (manifest.version, manifest.attempt) != (decided.version, decided.attempt):
            msg = f"{where}: it is of version {manifest.version}, attempt {manifest.attempt}; {MEND}"
            raise CorruptError(msg)
        if rows and not manifest.has_rows:
            reason = f"the log began from a backup, after version {decided.version}"
            raise WalGapError(
                f"{where}: {reason}, and never had its rows: if a restore-from was interrupted, run `tidegate"
                " restore-from FOLDER` again"
            )
        return manifest
    msg = f"{log.where}: the log returned nothing for {decided.manifest_address}"
    raise CorruptError(msg)


def source_offsets_of(log: Blobs, decided: DecidedVersion) -> str:
    """Return the source offsets of a decided version, '' if its manifest was trimmed."""
    try:
        return read_manifest(log, decided, rows=False).source_offsets
    except WalGapError:
        return ""
