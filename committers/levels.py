"""How a namespace stands in its stores, for whoever observes it: asked for only while somebody does."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate import observing
from tidegate.committers.follower import Standing
from tidegate.observing import At, Level
from tidegate.sinks.store import Store


def look_around(at: At, store: Store, standings: Sequence[Standing], decided: int) -> None:
    """Ask the primary, ``at.store``, and say how it and the followers stand. Two requests, at each heartbeat.

    ``decided`` is the log's last version as far as it was folded. Errors of the primary pass through.
    """
    if not observing.observed():
        return
    pointer = store.pointer()
    leases = len(store.leases())
    layers = pointer.visible - pointer.horizon + 1 if pointer.horizon else pointer.visible
    known = {
        Level.VISIBLE: pointer.visible,
        Level.HORIZON: pointer.horizon,
        Level.LAYERS: layers,
        Level.LEASES: leases,
        Level.LAG: max(0, decided - pointer.visible),
    }
    for level, value in known.items():
        observing.level(level, at, value)
    for one in standings:
        there = At(at.namespace, one.name)
        observing.level(Level.VISIBLE, there, one.visible)
        observing.level(Level.LAG, there, max(0, decided - one.visible))
        observing.level(Level.BEHIND_S, there, one.behind_s)
