"""The largest value that a store's servers take, by the limits that their settings set. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidegate.base.checks import Check

APPLIED = "decided versions can be applied (I4)"
LEAST_BYTES = 128 * 1024
"""Requests and pages of tidegate itself, and rows of the quarantine, have up to this size."""


class Limit(NamedTuple):
    """A limit of a server, in bytes. A value takes ``times`` its size of it, and ``beside`` is taken besides.

    ``at``: the server. ``settable``: a person can raise it, so that an error advises that.
    """

    setting: str
    at: str
    bytes_max: int
    times: int
    beside: int
    settable: bool = True

    @property
    def value_bytes(self) -> int:
        """The largest value that the limit admits."""
        return max(0, (self.bytes_max - self.beside) // self.times)

    @property
    def shown(self) -> str:
        return f"{self.setting} is {self.bytes_max:,} bytes at {self.at}"

    def needed(self, value_bytes: int) -> int:
        """Return what the limit has to be for values of this size."""
        return value_bytes * self.times + self.beside


class ValueLimit(NamedTuple):
    """The largest value that a store takes, what sets it and the way to raise it, and the check of both."""

    value_bytes: int
    why: str
    check: Check


def value_limit(limits: Iterable[Limit], value_bytes: int, known: str = "") -> ValueLimit:
    """Return the smallest limit. ``value_bytes``: the largest value that the options allow, in bytes.

    ``known``: what is not known, in words; it makes a check that passes a warning.
    """
    least = min(limits, key=lambda limit: limit.value_bytes, default=None)
    if least is None or least.value_bytes >= value_bytes:
        detail = f"values of {value_bytes:,} bytes fit"
        outcome = "warn" if known else "pass"
        return ValueLimit(value_bytes, "", Check("value size", outcome, known or detail, APPLIED))  # type: ignore[arg-type]
    fits, needed = least.value_bytes, least.needed(value_bytes)
    way = f"raise it to {needed:,}" if least.settable else "make the values smaller"
    why = f"{least.shown}, so that a value may take {fits:,}; {way}, and restart the query"
    if fits < LEAST_BYTES:
        small = f"{least.shown}, which is less than tidegate's own requests take: {way}"
        return ValueLimit(fits, why, Check("value size", "fail", small, APPLIED))
    lower = f"{least.shown}: a larger value than {fits:,} bytes is refused before it is decided"
    return ValueLimit(
        fits, why, Check("value size", "warn", f"{lower}; {way}, or set value_bytes_max to {fits:,}", APPLIED)
    )
