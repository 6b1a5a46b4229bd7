"""Catching up with a decision log, also when it was cut behind the place where the reader stood."""

from __future__ import annotations

from tidegate.errors import WalGapError
from tidegate.wal.fold import View, fact_of, fold_all
from tidegate.wal.log import Log


def catch_up(view: View, log: Log) -> View:
    """The view after every record that is there by now, however long the reader slept.

    It reads on where the view ended. When the records there were trimmed meanwhile, the log
    starts with a Summary of all of them and is folded anew from it; void records that were
    trimmed are then no longer counted.

    WalGapError: the log ends before the view does, or is another one. Otherwise as
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
    """Whether ``fresh`` is a later view of the same log: nothing in it ever goes back."""
    now, then = fresh.state, view.state
    return (
        now is not None
        and then is not None
        and now.namespace == then.namespace
        and now.epoch >= then.epoch
        and now.last_version >= then.last_version
        and fresh.position > view.position
        and fact_of(now, then.last_version) in (None, fact_of(then, then.last_version))
    )
