"""The gauges of a namespace in its stores. They are read only while an observer is registered."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.committers.background.follower import Standing
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels
from tidegate.sinks.store import Store


def report_gauges(at: Labels, store: Store, standings: Sequence[Standing], decided: int) -> None:
    """Read the primary, ``at.store``, and report its gauges and the followers'; at each heartbeat.

    It takes two requests. ``decided`` is the log's last version as far as it was folded. Raises: the errors
    of the primary.
    """
    if not events.observed():
        return
    pointer = store.pointer()
    leases = len(store.leases())
    layers = pointer.visible - pointer.horizon + 1 if pointer.horizon else pointer.visible
    known = {
        Gauge.VISIBLE: pointer.visible,
        Gauge.HORIZON: pointer.horizon,
        Gauge.LAYERS: layers,
        Gauge.LEASES: leases,
        Gauge.LAG: max(0, decided - pointer.visible),
    }
    for level, value in known.items():
        events.level(level, at, value)
    for one in standings:
        there = Labels(at.namespace, one.name)
        events.level(Gauge.VISIBLE, there, one.visible)
        events.level(Gauge.LAG, there, max(0, decided - one.visible))
        events.level(Gauge.BEHIND_S, there, one.behind_s)
