"""Powers that a store may have, each a class: read with the pointer, apply and seal at once, be rebuilt."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.sinks.records import CatalogEntry, Counts, Pointer, Stamp
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run


class SupportsReadWithPointer(Store):
    """A store that reads rows and the pointer in one round trip.

    A reader at the newest version asks which one that is, and then for rows: two round trips. A version never
    changes, so rows may be asked for at the version that was newest at the last look, together with the
    pointer. Where the pointer still shows that version, they are the newest rows at the moment it was read
    (docs/decisions/0042). As written here it takes two round trips: for stores that lack the power.
    """

    def get_with_pointer(
        self, table: str, key: bytes, version: int, start: int = 0, at_us: int | None = None
    ) -> tuple[bytes | None, Pointer]:
        """What ``get`` gives, and what ``pointer`` gives, which was read within the same call. Errors as for
        both.
        """
        return self.get(table, key, version, start, at_us), self.pointer()

    def get_many_with_pointer(
        self, table: str, keys: Sequence[bytes], version: int, start: int = 0, at_us: int | None = None
    ) -> tuple[Any, Pointer]:
        """What ``get_many`` gives, and what ``pointer`` gives, as ``get_with_pointer``."""
        return self.get_many(table, keys, version, start, at_us), self.pointer()


class SupportsApplyAndSeal(Store):
    """A store that takes rows and their seal in one flight."""

    @abc.abstractmethod
    def apply_and_seal(
        self, stamp: Stamp, counts: Counts, *chunks: Chunk, sets: KeySets | None = None
    ) -> None:
        """``apply`` these chunks, the last of a work, then ``seal`` its key groups. On return both are
        durable, as behind ``seal``; may be repeated. ``sets``: the keys of all chunks of the work, these
        too, where they are known. Errors as for both; IncompleteError: apply again, all chunks of the work.
        """


class Lost(msgspec.Struct, frozen=True):
    """What one key group lost.

    ``since``: versions from this one on may be missing; 0: all of the key group; None: no such thing.
    ``layers``: by table the versions whose rows are gone. ``bases``: by table the newest version merged into
    rows that are gone. ``horizon``: the oldest version that readers may ask for.
    """

    group: int
    horizon: int
    since: int | None = None
    layers: Mapping[str, tuple[int, ...]] = {}
    bases: Mapping[str, int] = {}


class SupportsRebuild(Store):
    """A store that knows what its servers lost, and takes it back a key group at a time.

    Nothing is deleted before its replacement is whole. All but ``note_moved`` are called while
    ``Store.comparing`` lasts. ``committers/repair/rebuild.py`` reads the log.
    """

    @abc.abstractmethod
    def put_entries(self, entries: Iterable[CatalogEntry]) -> int:
        """Put entries back that the catalog lost; how many. Of versions that can be read, all others are left
        out; entries that are there stay.
        """

    @abc.abstractmethod
    def resume(self, entry: CatalogEntry, horizon: int, epoch: int, visible: int) -> bool:
        """Show this version again, with this horizon, after the pointer was lost or went back to ``visible``.

        Every server has to be compared before readers get a row. Key groups of which nothing was ever written
        here are marked as lost. False: no key group shows that the pointer went back, the pointer shows
        another version, or a higher epoch is claimed.
        WalGapError: the store was being filled.
        """

    @abc.abstractmethod
    def note_moved(self) -> None:
        """Note where key groups are now that moved and came whole: no repair is needed for them."""

    @abc.abstractmethod
    def lost(self) -> list[Lost]:
        """What key groups lost, as the store found it when the comparison began."""

    @abc.abstractmethod
    def begin_bases(self, wanted: Iterable[tuple[int, str]]) -> None:
        """Begin to write merged rows of these key groups and tables, beside those that are there."""

    @abc.abstractmethod
    def add_to_bases(self, runs: Iterable[Run]) -> None:
        """Write rows of one version, or of a table at one version, over what was written before. A run of a
        key group and table that was not begun is an error.
        """

    @abc.abstractmethod
    def put_bases(self, group: int, tables: Mapping[str, int], floor: int = 0) -> bool:
        """Put what was written in place, by table with the newest version in it.

        With ``floor`` it is all of the key group at that version, and replaces all that lies at or below it.
        False: another repair has done so. StoreNotVerifiedError: what was written is lost, repeat.
        """

    @abc.abstractmethod
    def keep_lost(self, group: int, since: int | None) -> None:
        """Leave the key group as it is: its readers are refused until another repair puts its rows back."""
