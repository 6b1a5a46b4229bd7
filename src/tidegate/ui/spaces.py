"""The namespaces that the page can choose from: those of the command's store, as far as it lists them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidegate.errors import ConfigError, TidegateError
from tidegate.ui.facts import Facts

logger = logging.getLogger("tidegate")

OPEN_MAX = 8
"""The number of namespaces that are kept open, besides the command's own."""
LIST_EVERY_S = 10.0
"""The least pause between two lists."""
LIST_PART = 0.01
"""The part of the time that lists may take: on Redis one scans the names of all keys."""
FIRST_LIST_S = 2.0
"""A request waits this long for the first list."""


class Spaces:
    """The facts of the command's namespace, and of those that a browser chooses. Thread-safe.

    ``listed`` returns the names that may be chosen, in a thread of its own; ``opened`` makes the facts of
    one. A namespace is opened when it is first chosen. Above ``OPEN_MAX`` the one that was not asked for
    longest is closed.
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
        self._names = [first.namespace]
        self._first_list = threading.Event()
        self._list: threading.Thread | None = None
        self._next_list_s = 0.0  # of time.monotonic

    def names(self) -> list[str]:
        """Return the names to choose from, sorted, the command's own among them: those of the last list.

        Without one it waits for the first, at most ``FIRST_LIST_S``.
        """
        with self._lock:
            is_running = self._list is not None and self._list.is_alive()
            if not is_running and time.monotonic() >= self._next_list_s:
                self._list = threading.Thread(target=self._look, name="tidegate-ui-namespaces", daemon=True)
                self._list.start()
        self._first_list.wait(FIRST_LIST_S)
        return self._names

    def _look(self) -> None:
        began = time.monotonic()
        try:
            self._names = sorted({self._first.namespace, *self._listed()})
        except TidegateError as error:
            logger.debug("the namespaces are not listed: %s", error)
        finally:
            took_s = time.monotonic() - began
            self._next_list_s = time.monotonic() + max(LIST_EVERY_S, took_s / LIST_PART)
            self._first_list.set()

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
        """Release all namespaces. A list that takes longer than ``FIRST_LIST_S`` is left to its own end."""
        with self._lock:
            others, self._others = list(self._others.values()), {}
        for facts in (self._first, *others):
            facts.close()
        if self._list is not None:
            self._list.join(FIRST_LIST_S)
