"""Catch-up with a decision log, including one that was trimmed past the reader's position."""

from __future__ import annotations

from tidegate.errors import WalGapError
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.log import Log


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
