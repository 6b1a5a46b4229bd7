"""A store that the page keeps open from one poll to the next."""

from __future__ import annotations

import contextlib

from tidegate.errors import TidegateError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, Identity, Pointer
from tidegate.sinks.store import Store


class Opened:
    """A store that stays open from one call to the next. For one thread at a time."""

    def __init__(self, at: StoreRef, namespace: str) -> None:
        self.at, self._namespace = at, namespace
        self._store: Store | None = None
        self._uuid = ""
        self._entries: list[CatalogEntry] = []

    def entries(self, identity: Identity, pointer: Pointer, oldest: int) -> list[CatalogEntry]:
        """Return the catalog's entries from ``oldest`` on: those of new versions are read, no entry changes.

        The newest known one is read again: if it is another now, its version was decided again, or the
        namespace was made again.
        """
        known = self._entries if identity.uuid == self._uuid else []
        known = [entry for entry in known if oldest <= entry.version <= pointer.visible]
        if not pointer.visible:
            return []
        page = self.store().catalog(known[-1].version if known else oldest, pointer.visible)
        if known and (not page or page[0] != known[-1]):
            known, page = [], self.store().catalog(oldest, pointer.visible)
        self._uuid, self._entries = identity.uuid, [*known[:-1], *page]
        return self._entries

    def store(self) -> Store:
        if self._store is None:
            self._store = open_store(self.at.url, self._namespace, self.at.options)
        return self._store

    def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(TidegateError, OSError):
                store.close()
