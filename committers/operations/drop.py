"""Drop: a namespace goes, for ever: the stores first, then the log."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.committers.coordinator import Coordinator


class Dropped(NamedTuple):
    """Where there was something: in each store, in the order given, and in the log."""

    stores: tuple[bool, ...]
    log: bool


def drop_namespace(coordinator: Coordinator, *, log_too: bool = True) -> Dropped:
    """Remove everything of the namespace from the driver's stores and, last, the log.

    Readers are refused from the first step on. May be repeated: a crash in between
    leaves a log without a store, which is what a lost store looks like. Until it is dropped
    too, a driver that opens it writes the store anew, whole, or is refused because the log was
    trimmed. The other order would leave a store that readers trust and no driver can go on with.
    """
    return Dropped(tuple(store.drop() for store in coordinator.stores), log_too and coordinator.log.drop())
