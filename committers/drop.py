"""Drop: a namespace goes, for ever: the store first, then the log."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.committers.driver import Driver


class Dropped(NamedTuple):
    """Where there was something."""

    store: bool
    log: bool


def drop_namespace(driver: Driver) -> Dropped:
    """Remove everything of the namespace from store and log; where there was anything.

    Readers are refused from the first step on. May be repeated: a crash between the two
    leaves a log without its store, which is what a lost store looks like. Until it is dropped
    too, a driver that opens it writes the store anew, whole, or is refused because the log was
    trimmed. The other order would leave a store that readers trust and no driver can go on with.
    """
    return Dropped(driver.store.drop(), driver.log.drop())
