"""The ways in which a log and a store of one namespace do not fit, each with its words and its way out.

This is the one place that decides it. A writer that opens, ``status``, ``doctor`` and the page all ask here.
A reader has no log: the errors of ``reads.py`` are all that it can know.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tidegate.base.names import saved_by_relog
from tidegate.sinks.records import Identity, Pointer
from tidegate.wal.fold import recent_version
from tidegate.wal.record import Folded

FROM_ELSEWHERE = (
    "from another store (on Redis `tidegate repair --from URL`, elsewhere `tidegate store add NAME=URL`"
    " beside a store that is whole) or from an export (on Redis `tidegate repair --from FOLDER`, else"
    " `tidegate import FOLDER --namespace NEW_NAME`, into a new namespace)"
)
"""The ways to fill a store that the log cannot rebuild."""


class Fit(enum.Enum):
    """The state of a log and a store, together."""

    FITS = "log and store fit, or neither has the namespace"
    LOG_GONE = "the store has the namespace, the log has nothing"
    OTHER_NAMESPACE = "the log and the store are of two namespaces"
    LOG_BEHIND = "the store shows a version that the log does not have"
    OTHER_HISTORY = "the store shows another decision of a version than the log has"
    EMPTY = "the store has nothing, and the log has every version"
    EMPTY_CUT = "the store has nothing, and the log lacks its first versions"
    REBUILDING = "the store is being rebuilt or filled, and shows nothing until then"
    BEHIND_CUT = "the store lacks versions that the log no longer has"
    CHANGES_GONE = "the store has every version, and the log lost their change-log"
    NOT_COMPARED = "servers of the store lost something, or were not compared with the log"


class Held(NamedTuple):
    """The part of the log that a store needs: versions from ``needed`` on.

    The log has the rows of those from ``first`` on; 0: of none. ``needed`` is the visible version for a store
    that lacks none.
    """

    needed: int
    first: int


def fit_of(
    state: Folded | None,
    identity: Identity | None,
    pointer: Pointer,
    span: Held | None = None,
    *,
    unverified: bool = False,
) -> Fit:
    """Decide what log and store show together.

    ``state`` is None for a log that has nothing of the namespace, ``identity`` for such a store. ``span``
    None: the log has what the store needs, or that was not looked at.
    """
    cut = span is not None and span.first != span.needed
    if state is None:
        return Fit.FITS if identity is None else Fit.LOG_GONE
    if identity is None:
        return Fit.EMPTY_CUT if cut else Fit.EMPTY
    if identity.uuid != state.namespace:
        return Fit.OTHER_NAMESPACE
    if pointer.visible > state.last_version:
        return Fit.LOG_BEHIND
    decided = recent_version(state, pointer.visible)
    if decided is not None and decided.digest != pointer.digest:
        return Fit.OTHER_HISTORY
    if cut and span is not None and 0 < span.needed <= pointer.visible:
        return Fit.CHANGES_GONE
    if cut:
        return Fit.BEHIND_CUT if pointer.visible else Fit.EMPTY_CUT
    if pointer.filling_at:
        return Fit.REBUILDING
    return Fit.NOT_COMPARED if unverified else Fit.FITS


def described(
    fit: Fit,
    state: Folded | None,
    identity: Identity | None,
    pointer: Pointer,
    span: Held | None = None,
    *,
    written: int = 0,
) -> str:
    """Describe a misfit, and its way out. ``written``: the last version that a rebuild has begun to write."""
    last = state.last_version if state else 0
    saving = saved_by_relog(identity.name, pointer.visible) if identity else ""
    range_held = f"versions {span.first} to {last}" if span and span.first else "the rows of no version"
    match fit:
        case Fit.LOG_GONE:
            return (
                "the log is gone: it is empty, and the store is not; it may be elsewhere: check --wal, and"
                f" whether the disk of a log in files is mounted; {saving}"
            )
        case Fit.OTHER_NAMESPACE:
            return (
                f"the log is of namespace {state and state.namespace}, the store of"
                f" {identity and identity.uuid}: check the URLs"
            )
        case Fit.LOG_BEHIND:
            return (
                f"the log is behind the store: it ends at version {last}, version {pointer.visible} is"
                f" visible; {saving}"
            )
        case Fit.OTHER_HISTORY:
            return f"version {pointer.visible} of the store is not that of the log; {saving}"
        case Fit.CHANGES_GONE:
            return (
                f"the log has the decision of version {pointer.visible}, which is visible, and lost its"
                f" change-log; {saving}"
            )
        case Fit.EMPTY if not last:
            return (
                "the store has nothing of this namespace, and the log no version yet: check --store; a query"
                " or `tidegate init` makes it"
            )
        case Fit.EMPTY:
            return (
                f"the store has nothing of this namespace, and the log has all {last} versions: check"
                " --store; if the store lost them, `tidegate recover` rebuilds it from the log"
            )
        case Fit.EMPTY_CUT:
            return (
                f"the store has nothing of this namespace, and it cannot be rebuilt: the log has {range_held}"
                f" of {last} only. If there is a backup: `tidegate restore-from FOLDER`. Else put a copy of"
                f" the store back, or fill it {FROM_ELSEWHERE}; or rebuild it from the input"
                " (docs/operations.md)"
            )
        case Fit.BEHIND_CUT:
            return (
                f"the log is cut below what is needed: version {pointer.visible} is visible of {last}, and"
                f" the rest cannot be applied, since the log has {range_held} only; {saving}. A newer copy"
                " of the store, or another store that is filled into this one (`tidegate store add"
                " NAME=URL`), saves more"
            )
        case Fit.REBUILDING:
            step = f"version {written}" if written > pointer.filling_at else "the state at its first version"
            return (
                f"the store is being rebuilt or filled, at version {pointer.filling_at} of {last}, and shows"
                f" nothing until it is complete; {step} is being written: wait; if no writer runs,"
                " `tidegate recover` completes it"
            )
        case Fit.NOT_COMPARED:
            return (
                "servers of the store lost something, or were not compared with the log since they restarted:"
                " readers are refused there; a running query compares them, `tidegate recover` does so now"
            )
        case _:
            return ""
