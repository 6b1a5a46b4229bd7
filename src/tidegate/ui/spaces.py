"""The namespaces that the page can choose from: those of the command's store, as far as it lists them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidegate.errors import ConfigError, TidegateError
from tidegate.ui.facts import LOOK_S, Facts

logger = logging.getLogger("tidegate")

OPEN_MAX = 8
"""The number of namespaces that are kept open, besides the command's own."""
LIST_EVERY_S = 10.0
"""The least pause between two lists."""
LIST_PART = 0.01
"""The part of the time that lists may take: on Redis one scans the names of all keys."""
FAILED_PART = 0.1
"""The same after a list that failed, which mostly was no more than a wait for a server."""
FIRST_LIST_S = 2.0
"""Requests wait for the first list until this time after its start."""


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
        self._first_wait_ends_s = 0.0  # likewise
        self._failure = ""

    def names(self) -> list[str]:
        """Return the names to choose from, sorted, the command's own among them: those of the last list.

        Without one it waits for the first, at most until ``FIRST_LIST_S`` after its start.
        """
        with self._lock:
            if self._list is None:
                self._first_wait_ends_s = time.monotonic() + FIRST_LIST_S
            is_running = self._list is not None and self._list.is_alive()
            if not is_running and time.monotonic() >= self._next_list_s:
                self._list = threading.Thread(target=self._look, name="tidegate-ui-namespaces", daemon=True)
                self._list.start()
        self._first_list.wait(max(0.0, self._first_wait_ends_s - time.monotonic()))
        return self._names

    def _look(self) -> None:
        began, part = time.monotonic(), FAILED_PART
        try:
            self._names, self._failure = sorted({self._first.namespace, *self._listed()}), ""
            part = LIST_PART
        except TidegateError as error:
            logger.debug("the namespaces are not listed: %s", error)
            self._failure = f": the namespaces cannot be listed: {error}"
        finally:
            took_s = time.monotonic() - began
            self._next_list_s = time.monotonic() + max(LIST_EVERY_S, took_s / part)
            self._first_list.set()

    def facts(self, name: str) -> Facts:
        """Return the facts of a namespace; '' is the command's own.

        Raises: ConfigError: it is not listed. TidegateError: there is no list yet.
        """
        if name in {"", self._first.namespace}:
            return self._first
        if self._opened is None or name not in self.names():
            if self._opened is not None and not self._first_list.is_set():
                raise TidegateError("the namespaces are still being listed: this page asks again by itself")
            raise ConfigError(f"there is no namespace {name!r} to choose here{self._failure}")
        with self._lock:
            facts = self._others.pop(name, None) or self._opened(name)
            self._others[name] = facts  # the last one is the one that was asked for last
            unused = [self._others.pop(next(iter(self._others)))] if len(self._others) > OPEN_MAX else []
        for old in unused:
            old.close()
        return facts

    def close(self) -> None:
        """Release all namespaces, within ``FIRST_LIST_S`` and the time of ``Facts.close``.

        A list that takes longer is left to its own end.
        """
        with self._lock:
            others, self._others = list(self._others.values()), {}
        end = time.monotonic() + LOOK_S
        for facts in (self._first, *others):
            facts.close(end)
        if self._list is not None:
            self._list.join(FIRST_LIST_S)
