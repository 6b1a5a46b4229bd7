"""Rows that have expired: which may go, and where the search for them stands. Pure.

A row that has expired when the horizon's version was decided is shown at no version from the
horizon on, since times of decisions only go up. So it is, for who drops rows, what a delete marker
is: it goes together with the older rows of its key, which it hides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tidegate.sinks.layout import EXPIRY_END
from tidegate.sinks.store import CatalogEntry

HEAD_BYTES = EXPIRY_END
"""So much of a stored value says whether it is live."""
PAGE_ROWS = 500
LOOK_COSTS = 20
"""A key group without rows costs a question too: as much as so many rows."""


def is_hidden(head: bytes, at_us: int) -> bool:
    """Whether a stored value that starts like this is a delete marker, or has expired at this time."""
    if head[:1] in (b"e", b"x"):
        return int.from_bytes(head[1:HEAD_BYTES], "big", signed=True) <= at_us
    return head[:1] in (b"-", b"d")


def expiring_tables(entry: CatalogEntry) -> list[str]:
    """The tables at a version whose rows may have an expiry."""
    return sorted(name for name, at in entry.tables.items() if at.expires)


class Looked(NamedTuple):
    """What a look at some rows of a key group found: how many there were, how many went, and where to
    go on; None: that was the last of them.
    """

    rows: int
    gone: int
    following: Any


Look = Callable[[str, int, Any, int], Looked]
"""``look(table, group, following, rows)`` looks at about so many rows and drops what may go."""


class Sweep:
    """Goes round through the key groups of tables whose rows expire, a little at each call.

    Where it stands is kept in this process only: whoever comes next begins elsewhere.
    """

    def __init__(self) -> None:
        self._at: tuple[str, int, Any] | None = None

    def run(self, rows: int, entry: CatalogEntry, key_groups: int, look: Look) -> int:
        """Look at about so many rows, at each key group once at most; how many went."""
        tables = expiring_tables(entry)
        if not tables:
            return 0
        index, following = self._from(tables, entry.version % key_groups)
        gone, ended = 0, 0
        while rows > 0 and ended < len(tables) * key_groups:
            group, place = divmod(index, len(tables))
            looked = look(tables[place], group, following, min(rows, PAGE_ROWS))
            rows, gone = rows - max(looked.rows, LOOK_COSTS), gone + looked.gone
            following = looked.following
            if following is None:
                index, ended = (index + 1) % (len(tables) * key_groups), ended + 1
        group, place = divmod(index, len(tables))
        self._at = tables[place], group, following
        return gone

    def _from(self, tables: Collection[str], first_group: int) -> tuple[int, Any]:
        if self._at is None:
            return first_group * len(tables), None
        table, group, following = self._at
        names = list(tables)
        place = names.index(table) if table in names else 0
        return group * len(names) + place, following if table in names else None
