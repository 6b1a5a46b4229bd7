"""An optional power of a store: it knows what its servers lost, and takes it back a key group at a time.

All from ``lost`` on are called while ``Store.comparing`` lasts. ``committers/rebuild.py`` reads the log.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping

import msgspec

from tidegate.sinks.store import CatalogEntry, Store
from tidegate.wal.frame import Run


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


class RebuildableStore(Store):
    """A store with that power. Nothing is deleted before what replaces it is whole."""

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
