"""An optional power of a store: rows and the pointer in one round trip.

A reader at the newest version asks which one that is, and then for rows: two round trips. A version never
changes, though, so rows may be asked for at the version that was newest at the last look, together with
the pointer. Where the pointer still shows that version, they are the newest rows at the moment it was read
(docs/decisions/0056).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.sinks.store import Pointer, Store


class LookingStore(Store):
    """A store with that power. As written here it takes two round trips: for stores that have none."""

    def get_and_look(
        self, table: str, key: bytes, version: int, start: int = 0, at_us: int | None = None
    ) -> tuple[bytes | None, Pointer]:
        """What ``get`` gives, and what ``pointer`` gives, which was read within the same call. Errors as for
        both.
        """
        return self.get(table, key, version, start, at_us), self.pointer()

    def get_many_and_look(
        self, table: str, keys: Sequence[bytes], version: int, start: int = 0, at_us: int | None = None
    ) -> tuple[Any, Pointer]:
        """What ``get_many`` gives, and what ``pointer`` gives, as ``get_and_look``."""
        return self.get_many(table, keys, version, start, at_us), self.pointer()
