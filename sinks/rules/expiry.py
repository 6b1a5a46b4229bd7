"""The removal of expired rows: the rule, and an incremental sweep. Pure.

A row that had expired when the horizon's version was decided is shown at no version from the
horizon on, since the times of decisions only increase. So it is removed like a delete marker: together with
the older rows of its key, which it hides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.layout import payload
from tidegate.wal.value_flags import DELETES, EXPIRY_END, WITH_EXPIRY

HEAD_BYTES = EXPIRY_END
"""The first bytes of a stored value, which decide whether it is live."""
PAGE_ROWS = 500
GROUP_COSTS_ROWS = 20
"""The cost of checking a key group, in rows: one without rows costs a request, too."""


def is_hidden(head: bytes, at_us: int) -> bool:
    """Whether a stored value with this head is a delete marker, or has expired at this time."""
    if head[:1] in WITH_EXPIRY:
        return int.from_bytes(head[1:HEAD_BYTES], "big", signed=True) <= at_us
    return head[:1] in DELETES


def expiring_tables(entry: CatalogEntry) -> list[str]:
    """List the tables at a version whose rows may have an expiry."""
    return sorted(name for name, table_at in entry.tables.items() if table_at.expires)


class SweepPage(NamedTuple):
    """The result of a page of a sweep: the rows checked, the rows dropped, and the cursor.

    ``cursor`` is where the next page starts; None: this was the key group's last one.
    """

    rows: int
    gone: int
    cursor: Any


CheckPage = Callable[[str, int, Any, int], SweepPage]
"""``check_page(table, group, cursor, rows)`` checks about ``rows`` rows and drops the expired ones."""


class ExpirySweep:
    """An incremental sweep that cycles through the key groups of tables whose rows expire.

    Its cursor is in this process's memory only: the next process begins elsewhere.
    """

    def __init__(self) -> None:
        self._cursor: tuple[str, int, Any] | None = None

    def run(self, rows: int, entry: CatalogEntry, key_groups: int, check_page: CheckPage) -> int:
        """Check about ``rows`` rows, each key group once at most; return how many were dropped."""
        tables = expiring_tables(entry)
        if not tables:
            return 0
        index, cursor = self._from(tables, entry.version % key_groups)
        dropped, ended = 0, 0
        while rows > 0 and ended < len(tables) * key_groups:
            group, place = divmod(index, len(tables))
            page = check_page(tables[place], group, cursor, min(rows, PAGE_ROWS))
            rows, dropped = rows - max(page.rows, GROUP_COSTS_ROWS), dropped + page.gone
            cursor = page.cursor
            if cursor is None:
                index, ended = (index + 1) % (len(tables) * key_groups), ended + 1
        group, place = divmod(index, len(tables))
        self._cursor = tables[place], group, cursor
        return dropped

    def _from(self, tables: Collection[str], first_group: int) -> tuple[int, Any]:
        if self._cursor is None:
            return first_group * len(tables), None
        table, group, cursor = self._cursor
        names = list(tables)
        place = names.index(table) if table in names else 0
        return group * len(names) + place, cursor if table in names else None


# -- rows that no reader can reach any more: the rule of vacuum, where every version is kept ---------------


def collectable_versions(versions: Mapping[int, bytes], horizon: int, start: int, at_us: int) -> list[int]:
    """List the versions of one key's rows that no reader at or above the horizon can reach, ascending.

    ``start`` is the table's start at the horizon, ``at_us`` the time of its decision. A delete marker is one
    of them when nothing that it hides is left below it (T27), and so is a row that had expired then.
    """
    old = sorted(version for version in versions if version <= horizon)
    newest_hides = bool(old) and payload(versions[old[-1]], at_us) is None
    return old if old and (newest_hides or old[-1] < start) else old[:-1]
