"""The part of ``tidegate status`` about the log: its size, and until when it keeps what is needed (T18)."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from tidegate.base.text import shown_bytes, time_of
from tidegate.errors import TidegateError
from tidegate.keys.groups import EPOCH
from tidegate.wal.fold import recent_version
from tidegate.wal.log import Log, LogSize
from tidegate.wal.record import Folded

NEAR = 0.1
"""Warn when less than this share of the retention is left."""
ENDLESS_S = 1_000 * 365 * 86_400
"""A longer retention counts as none: its end cannot be a date."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogFacts:
    """A log's size and retention; the reason where it does not answer."""

    size: LogSize | None
    retention_s: float | None
    why_no_size: str = ""
    why_no_retention: str = ""

    def warnings(self) -> list[str]:
        """Return a warning for each missing fact."""
        reasons = (("size", self.why_no_size), ("retention", self.why_no_retention))
        return [f"the log's {what} is not known: {why}" for what, why in reasons if why]


def look_at(log: Log) -> LogFacts:
    """Read size and retention. A failure of either is reported, not raised."""
    size, retention_s, no_size, no_retention = None, None, "", ""
    try:
        size = log.size()
    except (TidegateError, OSError) as error:
        no_size = str(error)
    try:
        retention_s = log.retention_s()
    except (TidegateError, OSError) as error:
        no_retention = str(error)
    return LogFacts(size, retention_s, no_size, no_retention)


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """When the log may drop the oldest unapplied version, after which it is lost."""

    version: int
    at: datetime.datetime
    left_s: float
    near: bool

    @property
    def passed(self) -> bool:
        """Whether the log may have dropped it already."""
        return self.left_s <= 0

    def told(self) -> str:
        """Describe the deadline as a problem or a warning, with its remedy."""
        when = time_of(self.at)
        if self.passed:
            return (
                f"version {self.version} is decided and not visible, and the log may have forgotten it since"
                f" {when}: give the log a longer retention and bring the store back at once; without a"
                " running query also run `tidegate recover`"
            )
        return (
            f"version {self.version} is decided and not visible, and the log may forget it in"
            f" {span(self.left_s)}, at {when}: give the log a longer retention, then bring the store back;"
            " without a running query also run `tidegate recover`"
        )


def deadline_of(facts: LogFacts, state: Folded | None, visible: int, now_us: int) -> Deadline | None:
    """Return the deadline of the oldest decided version that is not visible; None: no such limit.

    If the fold has dropped the time of a version that old, the oldest known time is used: the
    deadline is no later than that.
    """
    if facts.retention_s is None or facts.retention_s > ENDLESS_S:
        return None
    if state is None or state.last_version <= visible:
        return None
    oldest = recent_version(state, visible + 1) or state.recent[0]
    end_us = oldest.decided_at_us + round(facts.retention_s * 1e6)
    left_s = (end_us - now_us) / 1e6
    end = EPOCH + datetime.timedelta(microseconds=end_us)
    return Deadline(visible + 1, end, left_s, left_s < NEAR * facts.retention_s)


def as_json(facts: LogFacts, deadline: Deadline | None) -> dict[str, Any]:
    """Return the facts under the names of ``tidegate status --json``."""
    return {
        "log_decisions_bytes": facts.size and facts.size.decisions_bytes,
        "log_changelog_bytes": facts.size and facts.size.changelog_bytes,
        "log_retention_s": facts.retention_s,
        "apply_before": deadline and deadline.at,
    }


def as_pairs(facts: LogFacts, deadline: Deadline | None) -> list[tuple[str, str]]:
    """Return the facts for people."""
    size = f"not known: {facts.why_no_size}"
    if facts.size is not None:
        decisions, staged = map(shown_bytes, facts.size)
        size = f"decision log {decisions}, change-log {staged}"
    retention = "nothing is lost by age"
    if facts.why_no_retention:
        retention = f"not known: {facts.why_no_retention}"
    elif facts.retention_s is not None:
        waits = deadline and f"version {deadline.version} must be applied before {time_of(deadline.at)}"
        retention = f"{span(facts.retention_s)}; {waits or 'nothing waits'}"
    return [("log size", size), ("log keeps", retention)]


def short_span(seconds: float) -> str:
    """Format a duration that may be below a second, for people; a negative one, of two clocks, as 0."""
    if seconds >= 10:
        return span(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(0.0, seconds) * 1000:.0f} ms"


def span(seconds: float) -> str:
    """Format a duration for people."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:,.0f} s"
