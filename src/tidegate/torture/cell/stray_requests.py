"""Stray requests: requests that no correct driver sends, each sent once when a cell has ended.

A store enforces some rules itself: it is asked to break each, and has to refuse. These are the last lines of
defence, without which readers would see the effects of a wrong driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tidegate.errors import IncompleteError, TidegateError
from tidegate.sinks.records import CatalogEntry, Pointer, Stamp
from tidegate.sinks.store import Store
from tidegate.torture.driver.timeouts import NO_ANSWER
from tidegate.torture.outcome import Finding


class Stray(NamedTuple):
    """One request: its promise, its description, and a function that sends it.

    ``granted`` returns whether the store did what was requested.
    """

    invariant: str
    asks: str
    granted: Callable[[Store, Pointer, CatalogEntry], bool]


def _flip(store: Store, entry: CatalogEntry, version: int, epoch: int) -> bool:
    return store.publish(msgspec.structs.replace(entry, version=version, digest="stray"), epoch)


def _seal(store: Store, now: Pointer, newest: CatalogEntry) -> bool:
    """Seal one row that was never written, in an existing key group and table."""
    stamp = Stamp(now.visible + 1, newest.decided_at_us + 1)
    try:
        store.seal(stamp, {0: {min(newest.tables): 1}})
    except IncompleteError:
        return False
    return True


STRAYS = (
    Stray("I6", "a flip under an epoch below the claimed one", lambda store, now, newest: (
        _flip(store, newest, now.visible + 1, now.epoch - 1))),
    Stray("I7", "a flip to the version after the next", lambda store, now, newest: (
        _flip(store, newest, now.visible + 2, now.epoch))),
    Stray("I7", "a flip to the version that is visible", lambda store, now, newest: (
        _flip(store, newest, now.visible, now.epoch))),
    Stray("I6", "a claim of an epoch below the claimed one", lambda store, now, _: (
        store.claim(now.epoch - 1, "stray") < now.epoch)),
    Stray("I1", "a seal of rows that are not there", _seal),
)  # fmt: skip
"""In this order: the flips first, before any other request."""


def send(store: Store) -> tuple[list[Finding], int]:
    """Send each request; return findings for those that were not refused, and the number sent.

    None is sent where nothing is visible. Errors of the store pass through if they leave the outcome open:
    the request may be done later.
    """
    now, findings = store.pointer(), list[Finding]()
    newest = store.catalog(now.visible, now.visible) if now.visible else []
    if not newest:
        return [], 0
    for stray in STRAYS:
        silent: TidegateError | None = None
        try:
            granted = stray.granted(store, now, newest[0])
        except TidegateError as error:
            granted, refusal = False, f"{type(error).__name__}: {error}"
            silent = error if isinstance(error, NO_ANSWER) else None
        else:
            refusal = "granted" if granted else "refused"
        after = store.pointer()
        if granted or (after.visible, after.epoch) != (now.visible, now.epoch):
            findings.append(
                Finding(
                    rule="stray",
                    invariant=stray.invariant,
                    what=f"the store did what it has to refuse: {stray.asks}",
                    expected=f"version {now.visible} visible, epoch {now.epoch}, refused",
                    seen=f"version {after.visible} visible, epoch {after.epoch}, {refusal}",
                )
            )
            break  # the store is no longer as before
        if silent is not None:
            raise silent
    return findings, len(STRAYS)
