"""Publish: the one write that makes a version visible, and reading back what became of it."""

from __future__ import annotations

from collections.abc import Callable

from tidegate import failpoints
from tidegate.committers.driver import Driver
from tidegate.committers.states import Action, Event, Machine, State, after_read_back
from tidegate.errors import (
    CorruptError,
    FencedError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.sinks.store import CatalogEntry, Pointer
from tidegate.wal.record import VersionFact


def publish(
    driver: Driver, machine: Machine, fact: VersionFact, entry: CatalogEntry, *, filled: bool = False
) -> None:
    """Flip the visible version, reading back whenever the outcome is not a plain yes.

    ``filled``: the store was filled at this version from another one, and it is the first there.

    A lost reply is never taken for a conflict, nor for a success that it cannot prove.
    StoreNotVerifiedError: a server restarted or was promoted after it sealed; nothing was flipped.
    """
    patience, pointer = driver.patience(driver.options.apply_deadline_s), Pointer()
    before = 0 if filled else fact.version - 1
    flip = driver.store.publish_filled if filled else driver.store.publish
    while machine.state is not State.VISIBLE:
        match machine.action:
            case Action.PUBLISH:
                failpoints.hit("publish.before")
                machine.on(Event.FLIPPED if _flip(flip, entry, driver.epoch) else Event.NOT_FLIPPED)
                failpoints.hit("publish.after")
            case Action.READ_POINTER:
                try:
                    pointer = driver.store.pointer()
                    if pointer.epoch <= driver.epoch and pointer.visible > driver.folded.last_version:
                        driver.fold_on()  # a repair beside us made visible what was decided since
                    event = after_read_back(pointer, fact, driver.epoch, driver.folded, before)
                except (StoreUnavailableError, WalUnavailableError) as error:
                    driver.met(error)
                    event = Event.STORE_SILENT
                if event in (Event.STORE_SILENT, Event.IS_NEXT):
                    event = Event.DEADLINE if patience.over else event
                    patience.pause()
                machine.on(event)
            case _:
                raise _unpublished(driver, machine, fact, pointer)


def _flip(flip: Callable[[CatalogEntry, int], bool], entry: CatalogEntry, epoch: int) -> bool:
    """The one write that makes a version visible. False: no, or no one knows yet."""
    try:
        return flip(entry, epoch)
    except StoreUnavailableError:
        return False


def _unpublished(driver: Driver, machine: Machine, fact: VersionFact, pointer: Pointer) -> TidegateError:
    match machine.action:
        case Action.RAISE_FENCED:
            return FencedError(
                f"driver {pointer.writer} claimed epoch {pointer.epoch} in {driver.store.where}, above this"
                f" driver's {driver.epoch}; version {fact.version} is decided and becomes visible by that"
                " driver; stop this one, or restart it if it is the one that should run"
            )
        case Action.RAISE_CORRUPT:
            return CorruptError(
                f"{driver.store.where} shows version {pointer.visible} with digest {pointer.digest}, the log"
                f" has version {fact.version} with digest {fact.digest}: store and log are of two histories;"
                " check that no other namespace uses this store, then restore it from a copy"
            )
        case _:
            return StoreUnavailableError(
                f"version {fact.version} is decided and applied, but its flip could not be confirmed in"
                f" {driver.store.where} (visible there: {pointer.visible}); it stays decided: restart the"
                " query or run `tidegate recover` when the store is back"
            )
