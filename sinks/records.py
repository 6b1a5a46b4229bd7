"""What a store keeps and answers, as records: identity, pointer, catalog entry, stamp, findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tidegate.wal.record import Count, KeyGroups, Origin, TableAt


class Identity(msgspec.Struct, frozen=True):
    """Which namespace a store holds. ``uuid`` is the log's; the same in every store."""

    uuid: str
    name: str
    key_groups: KeyGroups
    format: int = 1


class Pointer(msgspec.Struct, frozen=True):
    """The one small record that readers look at first.

    ``visible`` is the visible version (0: none yet) and ``digest`` that version's digest;
    ``epoch`` the highest claimed; ``horizon`` the oldest version readers may ask for;
    ``heartbeat_age_s`` seconds since the writer's last sign of life by the store's clock, None
    when there was none.
    """

    visible: int = 0
    digest: str = ""
    epoch: int = 0
    writer: str = ""
    horizon: int = 0
    heartbeat_age_s: float | None = None

    @property
    def filling_at(self) -> int:
        """The version that the store is being filled at, from another store; 0: it is not."""
        return 0 if self.visible else self.horizon


class CatalogEntry(msgspec.Struct, frozen=True):
    """What a store tells readers of one visible version (readers have no log).

    ``tables`` holds every table that exists at this version; ``changes`` counts this
    version's upserts and deletes per table. ``published_at_us`` is set by the store's clock.
    ``source_offsets`` are a batch's, as Spark prints them; '' where it has none, or they are long. Those of a
    restored version are those of the last batch that it holds.
    """

    version: Count
    digest: str
    attempt: str
    origin: Origin
    decided_at_us: Count
    tables: dict[str, TableAt]
    changes: dict[str, int]
    parallelism: dict[str, dict[str, int]] = {}
    published_at_us: Count = 0
    source_offsets: str = ""


class Stamp(msgspec.Struct, frozen=True):
    """The version being applied; its write timestamp, the decision's (never the clock's); the attempt that
    was decided ('': not told, not checked).
    """

    version: int
    decided_at_us: int
    attempt: str = ""


class Vacuumed(msgspec.Struct, frozen=True):
    """What a vacuum found that no reader can reach: rows of tables, delete markers among them;
    the writer's notes of what was applied and sealed; leases that ran out; catalog entries.
    """

    rows: int = 0
    notes: int = 0
    leases: int = 0
    entries: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One thing ``verify`` found wrong: where, what was expected, what is there."""

    where: str
    expected: str
    found: str


ABOVE_ALL = 2**52  # a version above any that there will be
Counts = Mapping[int, Mapping[str, int]]
"""Changes per key group and table."""

Stopped = Callable[[], bool]
"""Asked between two steps of long work: True, and it ends there."""


def never() -> bool:  # go on to the end
    return False
