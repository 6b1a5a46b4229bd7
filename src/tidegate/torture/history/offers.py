"""Offers of batches: the identity of a batch, how each offer ended, and what that proves."""

from __future__ import annotations

import dataclasses

REFUSED = frozenset({"ConflictError", "BadRecordError", "LineageError", "FunctionError", "ConfigError"})
"""Errors that prove that this offer is not decided and never will be (errors.py)."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The identity of a version: a batch of a lineage at its offsets, or a load's token."""

    lineage: str
    batch: int
    fingerprint: str
    token: str

    def __str__(self) -> str:
        if self.token:
            return f"load {self.token!r}"
        lineage = f" of {self.lineage}" if self.lineage else ""
        return f"batch {self.batch}{lineage}"


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a line of the history, by which it can be read again."""

    file: str
    number: int
    offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclasses.dataclass(slots=True, eq=False)
class Offer:
    """One call that offered a batch."""

    origin: Origin
    place: Place
    at: int
    driver: str
    content: bytes
    """Equal for offers of the same changes."""
    fenced: str = ""
    """The reason why its driver could no longer have an effect when it called; empty when it could."""
    version: int = 0
    own: bool | None = None
    error: str = ""
    ended: str = ""
    """The line that reports how it ended; empty when none does."""

    def impossible(self) -> str:
        """Return the reason why this offer cannot be the decided one; empty when it can be."""
        if self.fenced:
            return f"its driver {self.driver} was fenced before ({self.fenced})"
        if self.error in REFUSED:
            return f"{self.error} proved that it is not decided ({self.ended})"
        if self.own is False:
            return f"its call returned that another attempt was decided ({self.ended})"
        return ""
