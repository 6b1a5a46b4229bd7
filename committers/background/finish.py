"""The recovery without a query: an earlier driver's decided versions become visible, and no more is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate.committers.background.follower import Follower, Standing
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.lost_attempts import lost_of
from tidegate.committers.opening.open import (
    ensure_made,
    open_namespace,
    refuse_if_writer_alive,
    refuse_without_log,
)
from tidegate.committers.opening.store_list import refuse_other_stores
from tidegate.errors import TidegateError
from tidegate.wal.fold import recent_version


class Finished(NamedTuple):
    """The versions made visible in the primary, its visible version now, and the other stores' standings."""

    recovered: list[int]
    visible: int
    standings: list[Standing]


def finish_decided(
    coordinator: Coordinator,
    others: Sequence[Follower],
    command: str,
    *,
    force: bool = False,
    starting: Callable[[], None] = lambda: None,
) -> Finished:
    """Make every decided version visible, in every store. The driver is not open yet.

    It writes nothing when all is visible already, or the namespace does not exist. ``starting`` is called
    before anything is written. An error of another store is in its standing. Repeatable. Raises:
    ConfigError: another writer's heartbeat is younger than 30 s, and ``force`` is not set; or the log has
    other stores. Otherwise as ``open_namespace``.
    """
    if coordinator.decisions.catch_up() is None:
        refuse_without_log(coordinator)
        return Finished([], 0, [])
    refuse_other_stores(coordinator, coordinator.folded)
    refuse_if_writer_alive(coordinator, command, force=force)
    recovered = []
    if any([is_behind(coordinator), *map(_seems_behind, others)]):  # each is read, for its standing
        starting()
        recovered = open_namespace(coordinator, None, command="recover")
    visible = coordinator.store.pointer().visible
    standings = [other.catch_up() if coordinator.epoch else other.standing for other in others]
    return Finished(recovered, visible, standings)


def is_behind(coordinator: Coordinator) -> bool:
    """Whether the store is not at the log's end. The check appends nothing."""
    if coordinator.store.identity() is None:
        return True
    ensure_made(coordinator)  # writes nothing, since both exist; checks that they are one namespace
    pointer, stamps = coordinator.store.pointer(), coordinator.store.begun()
    coordinator.decisions.catch_up()
    decided = recent_version(coordinator.folded, pointer.visible)
    digest = "" if decided is None else decided.digest
    if lost_of(coordinator.decisions, stamps):
        return True  # opening refuses it with details, or discards it
    if coordinator.store.unverified():
        return True  # an interrupted rebuild, or servers that were not compared with the log
    return (pointer.visible, pointer.digest) != (coordinator.folded.last_version, digest)


def _seems_behind(other: Follower) -> bool:
    """Whether a store is known not to be at the log's end. The check writes nothing.

    For one that does not answer this is unknown: its error is in its ``standing``.
    """
    try:
        return other.look()
    except TidegateError as error:
        other.retried(error)
        return False
