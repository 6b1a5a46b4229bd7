"""Rows that have expired: which may go, and where the search for them stands. Pure.

A row that has expired when the horizon's version was decided is shown at no version from the
horizon on, since times of decisions only go up. So it is, for who drops rows, what a delete marker
is: it goes together with the older rows of its key, which it hides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.layout import payload
from tidegate.wal.value_flags import DELETES, EXPIRY_END, WITH_EXPIRY

HEAD_BYTES = EXPIRY_END
"""So much of a stored value says whether it is live."""
PAGE_ROWS = 500
LOOK_COSTS = 20
"""A key group without rows costs a question too: as much as so many rows."""


def is_hidden(head: bytes, at_us: int) -> bool:
    """Whether a stored value that starts like this is a delete marker, or has expired at this time."""
    if head[:1] in WITH_EXPIRY:
        return int.from_bytes(head[1:HEAD_BYTES], "big", signed=True) <= at_us
    return head[:1] in DELETES


def expiring_tables(entry: CatalogEntry) -> list[str]:
    """The tables at a version whose rows may have an expiry."""
    return sorted(name for name, at in entry.tables.items() if at.expires)


class SweepPage(NamedTuple):
    """What a look at some rows of a key group found: how many there were, how many went, and where to
    go on; None: that was the last of them.
    """

    rows: int
    gone: int
    following: Any


Look = Callable[[str, int, Any, int], SweepPage]
"""``look(table, group, following, rows)`` looks at about so many rows and drops what may go."""


class ExpirySweep:
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


# -- rows that no reader can reach any more: the rule of vacuum, where every version is kept ---------------


def unreachable(versions: Mapping[int, bytes], horizon: int, start: int, at_us: int) -> list[int]:
    """Versions of one key's rows that no reader at or above the horizon can reach, ascending.

    ``start`` is the table's start at the horizon, ``at_us`` when that was decided. A delete marker goes
    when nothing that it hides is left below it (T27), and so does a row that has expired then.
    """
    old = sorted(version for version in versions if version <= horizon)
    newest_hides = bool(old) and payload(versions[old[-1]], at_us) is None
    return old if old and (newest_hides or old[-1] < start) else old[:-1]
