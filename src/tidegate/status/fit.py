"""Whether a log and a store fit, in words, for `status`, `doctor` and the page; see `sinks/rules/fit.py`."""

from __future__ import annotations

from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.rules import removal
from tidegate.sinks.rules.fit import Fit, Held, described, fit_of
from tidegate.sinks.store import Store
from tidegate.wal.record import Folded

PASSING = (Fit.REBUILDING, Fit.NOT_COMPARED)
"""The misfits that a running query mends by itself: warnings."""


def misfit(
    state: Folded | None, identity: Identity | None, pointer: Pointer, span: Held | None = None
) -> str | None:
    """Describe a mismatch, and its remedy; None when log and store match, or will by themselves.

    ``state`` is None for a log that has nothing of the namespace, ``identity`` for such a store.
    """
    if identity is not None and pointer.is_removed:
        removed = removal.described("this store", pointer)
        return f"{removed}; take it up again with `tidegate store add NAME=URL`, or leave it out"
    fit = fit_of(state, identity, pointer, span)
    return None if fit is Fit.FITS or fit in PASSING else described(fit, state, identity, pointer, span)


def passing_misfit(
    state: Folded | None, store: Store, identity: Identity | None, pointer: Pointer
) -> str | None:
    """Describe a store that shows nothing, or is not read, until a rebuild or a comparison is complete."""
    unverified = identity is not None and store.unverified()
    return passing_described(state, identity, pointer, written_in(store, pointer), unverified=unverified)


def passing_described(
    state: Folded | None, identity: Identity | None, pointer: Pointer, written: int, *, unverified: bool
) -> str | None:
    """Describe such a store by what was read from it before."""
    fit = fit_of(state, identity, pointer, unverified=unverified)
    return described(fit, state, identity, pointer, written=written) if fit in PASSING else None


def written_in(store: Store, pointer: Pointer) -> int:
    """Return the last version that a rebuild of the store has begun to write; 0: none, or no rebuild."""
    return max((stamp.version for stamp in store.begun()), default=0) if pointer.filling_at else 0
