"""The permanent removal of a namespace: its stores first, then its log."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tidegate.base.files import refuse_foreign
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.steps.epoch import take_epoch
from tidegate.errors import ConfigError, TidegateError

logger = logging.getLogger("tidegate")


class Dropped(NamedTuple):
    """Whether each store, in the order given, and the log had contents."""

    stores: tuple[bool, ...]
    log: bool


def drop_namespace(coordinator: Coordinator, *, log_too: bool = True, thorough: bool = False) -> Dropped:
    """Remove everything of the namespace from the driver's stores and, last, the log.

    Readers are refused from the first step on. Repeatable: a crash in between leaves a log without a store,
    which looks like a lost store. Until the log is dropped too, a driver that opens it writes the complete
    store again, or is refused because the log was trimmed. The other order would leave a store that readers
    trust and no driver can continue.

    A place with files of others is refused before anything is removed, and so is a log that this user may
    not remove.

    An Open comes first, so that a driver that misses its store sees in the log that it was replaced, and does
    not rebuild the store. A log that does not answer gets none.
    """
    for store in coordinator.stores:
        refuse_foreign(store.where, store.foreign_entry())
    if log_too:
        refuse_foreign(coordinator.log.where, coordinator.log.foreign_entry())
        _refuse_without_rights(coordinator)
        try:
            state = coordinator.decisions.catch_up()
            if state is not None:
                take_epoch(coordinator.decisions, state.lineage)
        except TidegateError as error:
            logger.warning(
                "the log got no note of this drop, and a query that still runs may rebuild the store: stop"
                " the query (%s)",
                error,
            )
    existed = tuple(store.drop(thorough=thorough) for store in coordinator.stores)
    return Dropped(existed, log_too and coordinator.log.drop())


def _refuse_without_rights(coordinator: Coordinator) -> None:
    """Refuse a log that this user may not write and remove. Raises: ConfigError."""
    log = coordinator.log
    try:
        lacks = [check.found for check in log.checks() if check.check == "rights" and check.outcome != "pass"]
    except TidegateError:
        return  # it does not answer
    if lacks:
        raise ConfigError(f"{log.where}: {lacks[0]}; nothing was removed. See also --only-stores")
