"""The priority of applying versions over retiring older ones, at one store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

YIELD_VERSIONS = 2
"""Retirement yields to versions being applied until this number was published since it began."""
YIELD_S = 1.0
"""The longest that one step of retirement yields, so that retirement proceeds under a steady load."""


class ApplyPriority:
    """The priority of applying over retiring, shared by one driver's threads that apply, decide and retire.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applying = 0
        self._retiring = False
        self._published = self._retired = 0

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """Mark the block as applying a version."""
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
        """Mark the block as retiring older versions, in steps with ``yield_to_apply`` between them."""
        with self._changed:
            self._retiring, self._published, self._retired = True, 0, 0
        try:
            yield
        finally:
            with self._changed:
                self._retiring = False
                self._changed.notify_all()

    def published(self) -> None:
        """Count a version that became visible: one more to be retired later."""
        with self._changed:
            self._published += 1
            self._changed.notify_all()

    def retired(self) -> None:
        """Count a version that was retired: one less."""
        with self._changed:
            self._retired += 1
            self._changed.notify_all()

    def yield_to_apply(self) -> None:
        """Wait while a version is applied, at most ``YIELD_S`` or until ``YIELD_VERSIONS`` are published."""
        with self._changed:
            self._changed.wait_for(lambda: not self._applying or self._published >= YIELD_VERSIONS, YIELD_S)

    @property
    def behind(self) -> int:
        """The versions published since the running retirement began; 0: none is running."""
        return self._published if self._retiring else 0

    def wait_for_backlog(self, most: int, timeout_s: float) -> bool:
        """Wait until ``behind`` is below ``most``, or below half of what this retirement has dropped.

        In the second case the number of versions in the store falls, however long the retirement still
        takes. False: neither was true within ``timeout_s``.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self.behind < max(most, self._retired // 2), timeout_s)
