"""The noted attempts of the reference store: plain dictionaries, used under the store's lock."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.sinks.records import Pointer, Stamp
from tidegate.sinks.rules.attempts import DISCARDED, DISCARDED_MAX, fenced, other_attempt


class NotedAttempts:
    """The begun attempts, by version, and the discarded ones, by attempt."""

    def __init__(self) -> None:
        self._begun: dict[int, Stamp] = {}
        self._discarded: dict[str, Stamp] = {}

    def begin(self, where: str, stamp: Stamp, pointer: Pointer, epoch: int) -> bool:
        """Do ``Attempts.begin``, without the schemas."""
        if pointer.epoch > epoch:
            raise fenced(where, stamp, pointer.epoch, epoch, pointer.writer)
        if stamp.version <= pointer.visible:
            return False
        self.refuse_other(where, stamp)
        self._begun = {v: earlier for v, earlier in self._begun.items() if v > pointer.visible}
        self._begun[stamp.version] = stamp
        return True

    def refuse_other(self, where: str, stamp: Stamp) -> None:
        """Refuse an attempt after another one of its version, or a discarded one. Raises: WalGapError."""
        noted = self._begun.get(stamp.version, stamp)
        if stamp.attempt and noted.attempt != stamp.attempt:
            raise other_attempt(where, stamp, noted.attempt)
        if stamp.attempt in self._discarded:
            raise other_attempt(where, stamp)

    def above(self, visible: int) -> list[Stamp]:
        """Do ``Attempts.begun``."""
        marked = [Stamp(stamp.version, stamp.decided_at_us, DISCARDED) for stamp in self._discarded.values()]
        noted = [stamp for stamp in (*marked, *self._begun.values()) if stamp.version > visible]
        return sorted(noted, key=lambda stamp: (stamp.version, stamp.decided_at_us))

    def discard(self, lost: Sequence[Stamp]) -> None:
        """Forget every version from the lowest of these on, and remember these as discarded."""
        lowest = min(stamp.version for stamp in lost)
        self._begun = {v: stamp for v, stamp in self._begun.items() if v < lowest}
        self._discarded |= {stamp.attempt: stamp for stamp in lost}
        self._discarded = dict(list(self._discarded.items())[-DISCARDED_MAX:])
