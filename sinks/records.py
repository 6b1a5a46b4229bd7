"""The records of a store: identity, pointer, catalog entry, stamp, findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from tidegate.wal.record import COMPONENT, Count, Dropped, KeyGroups, Origin, TableAt

REMOVAL_BEGINS = "{"
"""The first character of a pointer's ``writer`` that is the note of a removed store."""


class Identity(msgspec.Struct, frozen=True):
    """The namespace of a store. ``uuid`` is the log's; the same in every store."""

    uuid: str
    name: str
    key_groups: KeyGroups
    format: int = 1


def heartbeat_ages(noted_us: int | None, now_us: int) -> tuple[float | None, float | None]:
    """Return the pointer's ``heartbeat_age_s`` and ``closed_age_s``, from the time that a store has noted.

    A positive time is that of the last heartbeat, a negative one is minus the time at which the writer was
    closed. A time in the future is of a clock that went back since: it counts as old as it is far ahead, so
    its writer does not count as running until then.

    >>> heartbeat_ages(5_000_000, 7_000_000), heartbeat_ages(-5_000_000, 7_000_000)
    ((2.0, None), (None, 2.0))
    """
    if noted_us is None:
        return None, None
    age_s = abs(now_us - abs(noted_us)) / 1e6
    return (None, age_s) if noted_us < 0 else (age_s, None)


class Pointer(msgspec.Struct, frozen=True):
    """The one small record that readers read first.

    ``visible`` is the visible version (0: none yet) and ``digest`` that version's digest;
    ``epoch`` the highest claimed, and ``writer`` its driver; ``horizon`` the oldest version that readers may
    read; ``heartbeat_age_s`` the seconds since the writer's last heartbeat by the store's clock, None when
    there was none, or that writer is closed; ``closed_age_s`` the seconds since it was closed, None when it
    was not, or the store does not note the time. ``lost``: the store, or its pointer, was lost, and
    is not compared with the log yet (Redis). ``entry``: an entry that the store returned with the pointer. It
    counts only if it is of the visible version: a writer of an older release does not renew it.
    """

    visible: int = 0
    digest: str = ""
    epoch: int = 0
    writer: str = ""
    horizon: int = 0
    heartbeat_age_s: float | None = None
    closed_age_s: float | None = None
    lost: bool = False
    entry: CatalogEntry | None = None

    @property
    def is_removed(self) -> bool:
        """Whether the newest claim is no driver's, but the note of a removed store (``rules/removal.py``)."""
        return self.writer[:1] == REMOVAL_BEGINS

    @property
    def driver(self) -> str:
        """The driver that owns the store; '' if there was none yet, or the store was removed."""
        return "" if self.is_removed else self.writer

    @property
    def waiting_after(self) -> int:
        """The version after which versions wait to become visible; for a removed store none wait."""
        return ABOVE_ALL if self.is_removed else self.visible

    @property
    def filling_at(self) -> int:
        """The version that the store is being filled at, from another store; 0: it is not."""
        return 0 if self.visible else self.horizon


class ReadAt(NamedTuple):
    """A table at a version, for reads of rows: the table's ``start`` and ``stride`` there (``TableAt``).

    ``at_us`` is the time at which rows live or have expired, the version's ``decided_at_us``; None: not
    known, so that a value which expires cannot be read, but as it is stored.
    """

    table: str
    version: int
    start: int = 0
    stride: int = 1
    at_us: int | None = None


Reads: TypeAlias = Sequence[tuple[ReadAt, Sequence[bytes]]]
"""Keys of several tables at one version."""


class CatalogEntry(msgspec.Struct, frozen=True):
    """The description of one visible version for readers, which have no log.

    ``tables`` contains every table that exists at this version; ``changes`` counts this
    version's upserts and deletes per table. ``published_at_us`` is set by the store's clock.
    ``source_offsets`` are those of the last batch that the version contains, as Spark prints them; '' if
    there is none, or they are long. ``dropped``: the tables that this version dropped.
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
    dropped: Dropped = msgspec.UNSET

    def read_at(self, table: str) -> ReadAt:
        """Return where the rows of one of the tables are read at this version."""
        table_at = self.tables[table]
        return ReadAt(table, self.version, table_at.start, table_at.apart, self.decided_at_us)

    @property
    def tasks(self) -> int | None:
        """The number of tasks that staged the version; None when the store does not have it."""
        return max(
            (parts[COMPONENT] for parts in self.parallelism.values() if COMPONENT in parts), default=None
        )

    @property
    def starts(self) -> dict[str, int]:
        """The start of each table: older rows do not count. Of a table that it dropped, this version."""
        starts = {table: table_at.start for table, table_at in self.tables.items()}
        return starts | dict.fromkeys(self.dropped or (), self.version)


class Stamp(msgspec.Struct, frozen=True):
    """The identity of applied rows: the version, its write timestamp, and the attempt that was decided.

    The timestamp is the decision's, never the clock's. Attempt '': unknown, not checked.
    """

    version: int
    decided_at_us: int
    attempt: str = ""


class Vacuumed(msgspec.Struct, frozen=True):
    """The numbers of things that a vacuum found unreachable.

    They are rows of tables, including delete markers; the writer's notes of applied and sealed versions;
    expired leases; catalog entries.
    """

    rows: int = 0
    notes: int = 0
    leases: int = 0
    entries: int = 0


class Usage(msgspec.Struct, frozen=True):
    """A part of the room of a store: its contents, and the way to free it. None: the number is not known."""

    contents: str
    rows: int | None = None
    bytes: int | None = None
    way: str = ""


class Finding(msgspec.Struct, frozen=True):
    """A fault that ``verify`` found: its place, the expected contents, the actual contents."""

    where: str
    expected: str
    found: str


class RowCount(msgspec.Struct, frozen=True):
    """The number of rows of one version in one key group of a table, as they are stored.

    ``where`` names the part of the store. ``group`` and ``version`` are whole numbers unless somebody changed
    the store.
    """

    where: str
    table: str
    group: int
    version: int
    rows: int


ABOVE_ALL = 2**52  # above any possible version
Counts = Mapping[int, Mapping[str, int]]
"""Changes per key group and table."""

Stopped = Callable[[], bool]
"""A function that is called between two steps of long work: with True the work ends there."""


def never() -> bool:  # continue to the end
    return False
