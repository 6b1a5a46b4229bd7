"""Aliases in this process's memory: the reference."""

from __future__ import annotations

import threading
from collections import defaultdict

from tidegate.base.names import check_name
from tidegate.sinks.aliases import Aliases, Target

_places: dict[str, dict[str, Target]] = defaultdict(dict)
_lock = threading.Lock()


def forget(place: str) -> None:
    """Drop every alias of ``memory://place``; for tests that make many."""
    with _lock:
        _places.pop(place, None)


class MemoryAliases(Aliases):
    """The aliases of ``memory://place``, shared by all instances of the same name."""

    def __init__(self, place: str) -> None:
        self.where = f"store memory://{place}"
        self._place = place

    def get(self, alias: str) -> Target | None:
        with _lock:
            return _places[self._place].get(alias)

    def all(self) -> dict[str, Target]:
        with _lock:
            return dict(_places[self._place])

    def set(self, alias: str, target: Target) -> None:
        check_name("alias", alias)
        with _lock:
            _places[self._place][alias] = target

    def drop(self, alias: str) -> bool:
        with _lock:
            return _places[self._place].pop(alias, None) is not None
