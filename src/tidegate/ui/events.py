"""The records of the decision log that are no versions, as the page shows them. Pure.

A record other than Decided has no time of its own. Its place in the log gives one: it follows the version
decided before it, and precedes the next one.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tidegate.wal.record import Adopted, Decided, Folded, Genesis, Open, Rewound, StoreAdded, StoreRemoved

EVENTS_MAX = 50
"""The number of events that are kept, of starts and of all others."""


class Events:
    """The newest events of a decision log, collected record by record. For one thread.

    An event has a ``kind``: ``start`` (a driver opened the namespace), ``takeover`` (it did, and the driver
    before it still wrote afterwards), ``change`` (an operator's) or ``fault`` (a void record).
    ``after_version`` and ``after_at`` are the version decided before it and its time, in seconds since 1970;
    ``before_at`` is the time of the next decision, None until there is one.
    """

    def __init__(self) -> None:
        self._starts: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._others: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._undated: list[dict[str, Any]] = []
        self._created_at: float | None = None

    def add(self, position: int, record: Any, reason: str | None, state: Folded | None) -> None:
        """Take the next record; ``reason`` is why it is void, and ``state`` the fold before it."""
        if reason is None and isinstance(record, Genesis):
            self._created_at = record.created_at_us / 1e6
        if reason is None and isinstance(record, Decided):
            for event in self._undated:
                event["before_at"] = record.decided_at_us / 1e6
            self._undated.clear()
        described = _described(record, reason)
        if described is None:
            return
        kind, what = described
        if kind == "fault" and state is not None and record.epoch < state.epoch:
            self._mark_takeover(state.epoch, record.writer)
        last = state.recent[-1] if state is not None and state.recent else None
        event = {
            "position": position,
            "kind": kind,
            "what": what,
            "epoch": record.epoch,
            "after_version": last.version if last else None,
            "after_at": last.decided_at_us / 1e6 if last else self._created_at,
            "before_at": None,
        }
        (self._starts if kind == "start" else self._others).append(event)
        if len(self._undated) < 2 * EVENTS_MAX:
            self._undated.append(event)

    def newest_first(self) -> list[dict[str, Any]]:
        """Return copies of the events, the newest first."""
        events = sorted([*self._starts, *self._others], key=lambda event: -int(event["position"]))
        return [event.copy() for event in events]

    def _mark_takeover(self, epoch: int, older: str) -> None:
        """Turn the start of this epoch into a takeover: a record of an older driver followed it."""
        for event in self._starts:
            if event["epoch"] == epoch and event["kind"] == "start":
                event["kind"] = "takeover"
                event["what"] += f"; driver {older} still wrote afterwards, without effect"


def _described(record: Any, reason: str | None) -> tuple[str, str] | None:
    """Return the kind of a record that is no version, and its description; None for any other record."""
    if reason is not None:
        return "fault", f"void {type(record).__name__} of driver {record.writer}: {reason}"
    match record:
        case Open(epoch=epoch, writer=writer):
            return "start", f"driver {writer} opened, epoch {epoch}"
        case Adopted(lineage=lineage):
            return "change", f"checkpoint {lineage} was adopted"
        case Rewound(generation=generation):
            return "change", f"batches were rewound, generation {generation}"
        case StoreAdded(store=name):
            return "change", f"store {name} was added"
        case StoreRemoved(store=name):
            return "change", f"store {name} was removed"
    return None
