"""Right of way: a version that is applied goes before the retirement of older ones, until those pile up.

Both ask the same store, and often the same processors. Somebody waits for the version; nobody waits for the
merging or deleting of what it replaced. But each version that is not retired yet takes room and makes
reads look through one layer more, so their number has a bound.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

GIVES_WAY = 2
"""Retirement gives way until so many versions were published since it began."""
GIVES_WAY_S = 1.0
"""At a time: whatever is applied without an end, retirement goes on step by step."""


class RightOfWay:
    """Between the threads of one driver that apply, decide and retire. May be used by all of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applying = 0
        self._retiring = False
        self._published = self._retired = 0

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """A version is applied within."""
        with self._changed:
            self._applying += 1
        try:
            yield
        finally:
            with self._changed:
                self._applying -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def retiring(self) -> Iterator[None]:
        """Older versions are retired within, in steps, ``give_way`` between any two of them."""
        with self._changed:
            self._retiring, self._published, self._retired = True, 0, 0
        try:
            yield
        finally:
            with self._changed:
                self._retiring = False
                self._changed.notify_all()

    def published(self) -> None:
        """A version became visible: one more to be retired later."""
        with self._changed:
            self._published += 1
            self._changed.notify_all()

    def retired(self) -> None:
        """A version was retired: one less."""
        with self._changed:
            self._retired += 1
            self._changed.notify_all()

    def give_way(self) -> None:
        """Let a version that is applied go first, for a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._applying or self._published >= GIVES_WAY, GIVES_WAY_S)

    @property
    def behind(self) -> int:
        """How many versions were published since the retirement began that is under way; 0: none is."""
        return self._published if self._retiring else 0

    def wait_for_room(self, most: int, timeout_s: float) -> bool:
        """Wait until they are fewer, or half of those that this retirement has dropped: then there are ever
        fewer in the store, however long it still goes on. False: neither was so within this time.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self.behind < max(most, self._retired // 2), timeout_s)
