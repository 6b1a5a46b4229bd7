"""The publish: the one write that makes a version visible, and the read that proves its outcome."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.base import failpoints
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.states import Action, Event, Machine, State, after_read_back
from tidegate.errors import (
    CorruptError,
    FencedError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.wal.record import DecidedVersion


def publish(
    coordinator: Coordinator,
    machine: Machine,
    decided: DecidedVersion,
    entry: CatalogEntry,
    *,
    first_of: Sequence[CatalogEntry] = (),
) -> None:
    """Flip the visible version, and read the pointer back unless the flip is confirmed.

    ``first_of``: nothing is visible in the store yet, which was filled at the first of these versions. All
    of them become readable, and this one, the last of them, is the visible one.

    A lost reply is never treated as a conflict, nor as an unproven success. Durable: on return the version
    is visible. Raises: StoreNotVerifiedError: a server restarted or was promoted after it sealed; nothing
    was flipped. FencedError: a newer driver publishes it. CorruptError: store and log have two histories.
    StoreUnavailableError: the outcome is unproven at the deadline, or the store went back; the version stays
    decided.
    """
    backoff, pointer = coordinator.backoff(), Pointer()
    before = 0 if first_of else decided.version - 1
    while machine.state is not State.VISIBLE:
        match machine.action:
            case Action.PUBLISH:
                failpoints.hit("publish.before")
                machine.on(Event.FLIPPED if _flip(coordinator, entry, first_of) else Event.NOT_FLIPPED)
                failpoints.hit("publish.after")
            case Action.READ_POINTER:
                try:
                    pointer = coordinator.store.pointer()
                    if (
                        pointer.epoch <= coordinator.epoch
                        and pointer.visible > coordinator.folded.last_version
                    ):
                        coordinator.decisions.catch_up()  # a repair published a version decided since
                    event = after_read_back(pointer, decided, coordinator.epoch, coordinator.folded, before)
                except (StoreUnavailableError, WalUnavailableError) as error:
                    coordinator.retried(error)
                    event = Event.STORE_SILENT
                if event in (Event.STORE_SILENT, Event.IS_NEXT):
                    event = Event.DEADLINE if backoff.expired else event
                    backoff.wait()
                machine.on(event)
            case _:
                raise _unpublished(coordinator, machine, decided, pointer)


def _flip(coordinator: Coordinator, entry: CatalogEntry, first_of: Sequence[CatalogEntry]) -> bool:
    """Send the one write that makes a version visible. False: it did not, or the outcome is unknown."""
    try:
        if first_of:
            return coordinator.store.publish_filled(first_of[0], coordinator.epoch, first_of[1:])
        return coordinator.store.publish(entry, coordinator.epoch)
    except StoreUnavailableError:
        return False


def _unpublished(
    coordinator: Coordinator, machine: Machine, decided: DecidedVersion, pointer: Pointer
) -> TidegateError:
    match machine.action:
        case Action.RAISE_FENCED:
            return FencedError(
                f"driver {pointer.writer} claimed epoch {pointer.epoch} in {coordinator.store.where}, above"
                f" this driver's {coordinator.epoch}; version {decided.version} is decided, and that driver"
                " makes it visible; stop this one, or restart it if it is the one that should run"
            )
        case Action.RAISE_CORRUPT:
            return CorruptError(
                f"{coordinator.store.where} shows version {pointer.visible} with digest {pointer.digest}, the"
                f" log has version {decided.version} with digest {decided.digest}: store and log are of two"
                " histories; check that no other namespace uses this store, then restore it from a copy"
            )
        case _:
            return StoreUnavailableError(
                f"version {decided.version} is decided and applied, but its flip could not be confirmed in"
                f" {coordinator.store.where} (visible there: {pointer.visible}); it stays decided: restart"
                " the query or run `tidegate recover` when the store is back"
            )
