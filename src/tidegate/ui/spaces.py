"""The namespaces that the page can choose from: those of the command's store, as far as it lists them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidegate.errors import ConfigError
from tidegate.ui.facts import Facts

OPEN_MAX = 8
"""The number of namespaces that are kept open, besides the command's own."""
LIST_EVERY_S = 10.0


class Spaces:
    """The facts of the command's namespace, and of those that a browser chooses. Thread-safe.

    ``listed`` returns the names that may be chosen; ``opened`` makes the facts of one. A namespace is opened
    when it is first chosen. Above ``OPEN_MAX`` the one that was not asked for longest is closed.
    """

    def __init__(
        self,
        first: Facts,
        listed: Callable[[], list[str]] = list,
        opened: Callable[[str], Facts] | None = None,
    ) -> None:
        self._first, self._listed, self._opened = first, listed, opened
        self._others: dict[str, Facts] = {}
        self._lock = threading.Lock()
        self._names: tuple[float, list[str]] | None = None

    def names(self) -> list[str]:
        """Return the names to choose from, sorted, the command's own among them."""
        with self._lock:
            now = time.monotonic()
            if self._names is None or now - self._names[0] >= LIST_EVERY_S:
                self._names = now, sorted({self._first.namespace, *self._listed()})
            return self._names[1]

    def facts(self, name: str) -> Facts:
        """Return the facts of a namespace; '' is the command's own. Raises: ConfigError: it is not listed."""
        if name in {"", self._first.namespace}:
            return self._first
        if self._opened is None or name not in self.names():
            raise ConfigError(f"there is no namespace {name!r} to choose here")
        with self._lock:
            facts = self._others.pop(name, None) or self._opened(name)
            self._others[name] = facts  # the last one is the one that was asked for last
            unused = [self._others.pop(next(iter(self._others)))] if len(self._others) > OPEN_MAX else []
        for old in unused:
            old.close()
        return facts

    def close(self) -> None:
        """Release all namespaces."""
        with self._lock:
            others, self._others = list(self._others.values()), {}
        for facts in (self._first, *others):
            facts.close()
