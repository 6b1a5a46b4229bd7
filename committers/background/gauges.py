"""The gauges of a namespace in its stores and its log. Most are read only while an observer is registered."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from tidegate.base.clock import Clock
from tidegate.base.files import used_share
from tidegate.committers.background.follower import Standing
from tidegate.errors import TidegateError
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels
from tidegate.sinks.store import Store
from tidegate.wal.fold import recent_version
from tidegate.wal.log import Log
from tidegate.wal.record import Folded

logger = logging.getLogger("tidegate")

OF_THE_STORE = (
    Gauge.HORIZON,
    Gauge.LAYERS,
    Gauge.LEASES,
    Gauge.UNVERIFIED,
    Gauge.STORE_USED,
    Gauge.IMBALANCE,
    Gauge.MAY_EVICT,
)
"""The gauges that are not known while the store does not answer."""


class Gauges:
    """The gauges of one driver's log, primary and followers; for one thread.

    ``at`` is the namespace, and the primary's name. ``folded`` returns the log's state as far as it was
    folded, None before the namespace is open.
    """

    def __init__(
        self,
        at: Labels,
        log: Log,
        store: Store,
        folded: Callable[[], Folded | None],
        max_leases: int,
        clock: Clock,
    ) -> None:
        self._at, self._log, self._store, self._folded = at, log, store, folded
        self._max_leases, self._clock = max_leases, clock
        self._visible = 0
        self._times: dict[str, tuple[int, int]] = {}
        """By store the visible version, and its time: the decision's, or that of its first report if earlier.
        The time of a clock that was ahead would hide a query that makes no version.
        """
        self._evicts = ""

    def watch_eviction(self) -> None:
        """Ask whether the store may drop rows by itself; warn once until it may not. Also without observers.

        A store that does not answer is asked again; ``report`` has its state.
        """
        try:
            why = self._store.may_evict()
        except (TidegateError, OSError):
            return
        if why and not self._evicts:
            logger.warning("%s may lose rows that are visible: %s", self._store.where, why)
        self._evicts = why or ""
        events.level(Gauge.MAY_EVICT, self._at, math.nan if why is None else float(bool(why)))

    def report(self, standings: Sequence[Standing]) -> None:
        """Ask primary and log, and report all gauges. Errors of both are reported, not raised."""
        if not events.observed():
            return
        self._report_primary()
        state = self._folded()
        visible = {self._at.store: self._visible}
        for standing in standings:
            labels = Labels(self._at.namespace, standing.name)
            visible[standing.name] = standing.visible
            events.level(Gauge.VISIBLE, labels, standing.visible)
            events.level(Gauge.STORE_UP, labels, not standing.error)
            events.level(Gauge.BEHIND_S, labels, standing.behind_s)
        for name, version in visible.items():
            labels = Labels(self._at.namespace, name)
            events.level(Gauge.LAG, labels, _lag(state, version))
            events.level(Gauge.VERSION_AT, labels, self._version_at(name, state, version))
        events.level(Gauge.BEHIND_S, self._at, self._behind_s(state))
        self._report_log(state, visible)

    def _report_primary(self) -> None:
        try:
            pointer, leases = self._store.pointer(), len(self._store.leases())
            unverified, shares = self._store.unverified(), self._store.used_shares().values()
        except (TidegateError, OSError):
            events.level(Gauge.STORE_UP, self._at, 0)
            for gauge in OF_THE_STORE:
                events.level(gauge, self._at, math.nan)
            return
        self._visible = pointer.visible
        fullest = max(shares, default=math.nan)
        levels = {
            Gauge.STORE_UP: 1,
            Gauge.VISIBLE: pointer.visible,
            Gauge.HORIZON: pointer.horizon,
            Gauge.LAYERS: pointer.visible - pointer.horizon + 1 if pointer.horizon else pointer.visible,
            Gauge.LEASES: leases,
            Gauge.LEASES_MAX: self._max_leases,
            Gauge.UNVERIFIED: unverified,
            Gauge.STORE_USED: fullest,
            Gauge.IMBALANCE: fullest * len(shares) / sum(shares) if sum(shares) else math.nan,
        }
        for gauge, value in levels.items():
            events.level(gauge, self._at, value)

    def _version_at(self, store: str, state: Folded | None, version: int) -> float:
        decided_at_us = _decided_at_us(state, version)
        if decided_at_us is None:
            return math.nan
        if self._times.get(store, (0, 0))[0] != version:
            self._times[store] = version, min(decided_at_us, self._clock.now_us())
        return self._times[store][1] / 1e6

    def _behind_s(self, state: Folded | None) -> float:
        """Return the age of the oldest decided version that is not visible in the primary, 0 without one."""
        decided_at_us = _decided_at_us(state, self._visible + 1)
        return 0.0 if decided_at_us is None else max(0.0, (self._clock.now_us() - decided_at_us) / 1e6)

    def _report_log(self, state: Folded | None, visible: dict[str, int]) -> None:
        of_log, retention_s = Labels(self._at.namespace), None
        try:
            self._log.is_empty()
            if any(_lag(state, version) for version in visible.values()):
                retention_s = self._log.retention_s()
            used = math.nan if self._log.folder is None else used_share(self._log.folder)
        except (TidegateError, OSError):
            events.level(Gauge.LOG_UP, of_log, 0)
            events.level(Gauge.LOG_USED, of_log, math.nan)
            return  # the times until which the log keeps a version stay as they are
        events.level(Gauge.LOG_UP, of_log, 1)
        events.level(Gauge.LOG_USED, of_log, used)
        for name, version in visible.items():
            decided_at_us = _decided_at_us(state, version + 1)
            before = math.inf
            if decided_at_us is not None and retention_s is not None:
                before = decided_at_us / 1e6 + retention_s
            events.level(Gauge.APPLY_BEFORE, Labels(self._at.namespace, name), before)


def _lag(state: Folded | None, visible: int) -> int:
    return max(0, state.last_version - visible) if state else 0


def _decided_at_us(state: Folded | None, version: int) -> int | None:
    """Return when the version was decided, for an old one the oldest known time; None: it is not decided."""
    if state is None or not 0 < version <= state.last_version:
        return None
    return (recent_version(state, version) or state.recent[0]).decided_at_us
