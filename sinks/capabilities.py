"""The optional capabilities of a store, a class each."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidegate.sinks.records import CatalogEntry, Counts, Pointer, ReadAt, Reads, Stamp, Usage
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run


class SupportsReadWithPointer(Store):
    """A store that reads rows and the pointer in one round trip.

    A reader at the newest version reads the pointer, and then rows: two round trips. A version never changes,
    so the reader may request rows at the last version that it knows, together with the pointer. If the
    pointer still has that version, they are the newest rows at the moment it was read (docs/decisions/0042).
    The methods here take two round trips, for stores without the capability.
    """

    def pointer_with_entry(self, known: int) -> Pointer:
        """Read the pointer, with its ``entry`` if the store can return it and it is not of version ``known``.

        ``known`` is the version whose entry the caller has, or 0. Raises: as ``pointer``.
        """
        del known
        return self.pointer()

    def get_with_pointer(self, at: ReadAt, key: bytes) -> tuple[bytes | None, Pointer]:
        """Do ``get``, and ``pointer_with_entry`` of the version, within the same call.

        The value counts only if the pointer still shows that version. Raises: as both.
        """
        return self.get(at, key), self.pointer()

    def get_many_with_pointer(self, reads: Reads) -> tuple[list[Any] | None, Pointer]:
        """Do ``get_many`` of several tables, and ``pointer_with_entry`` of their version, within one call.

        It returns the values of each table, in the order of ``reads``; or None, if the version was retired.
        Raises: as both.
        """
        return [self.get_many(read_at, keys) for read_at, keys in reads], self.pointer()


class SupportsNamespaces(Store):
    """A store that can list the namespaces of its place."""

    @abc.abstractmethod
    def namespaces(self) -> list[str]:
        """List the names of the place's namespaces, without aliases. It writes nothing.

        One that is created or dropped meanwhile may be in it or not. Raises: StoreUnavailableError: no
        answer. ConfigError: this user may not list them.
        """


class SupportsApplyAndSeal(Store):
    """A store that takes rows and their seal in one round trip."""

    @abc.abstractmethod
    def apply_and_seal(
        self, stamp: Stamp, counts: Counts, *chunks: Chunk, sets: KeySets | None = None
    ) -> None:
        """``apply`` these chunks, the last of a work, then ``seal`` its key groups.

        ``sets``: the keys of all chunks of the work, these included, if they are known. Durable: on return,
        both, as after ``seal``. Repeatable. Raises: as both. IncompleteError: apply again, all chunks of the
        work.
        """


class Lost(msgspec.Struct, frozen=True):
    """The losses of one key group.

    ``since``: versions from this one on may be missing; 0: all of the key group; None: none are.
    ``layers``: by table the versions whose rows are lost. ``bases``: by table the newest version merged into
    lost rows. ``horizon``: the oldest version that readers may read.
    """

    group: int
    horizon: int
    since: int | None = None
    layers: Mapping[str, tuple[int, ...]] = {}
    bases: Mapping[str, int] = {}


class SupportsPutEntries(Store):
    """A store whose catalog can lose an entry alone, and takes it back."""

    @abc.abstractmethod
    def put_entries(self, entries: Iterable[CatalogEntry]) -> int:
        """Put back entries that the catalog lost; return how many.

        Entries of versions that cannot be read are left out, and existing entries stay.
        """


class SupportsRebuild(SupportsPutEntries):
    """A store that knows the losses of its servers, and can be repaired a key group at a time.

    Nothing is deleted before its replacement is complete. All methods but ``note_moved`` are called within
    ``Store.comparing``. ``committers/repair/lost_groups.py`` reads the log.
    """

    @abc.abstractmethod
    def has_headers(self, key_groups: int) -> bool:
        """Whether a key group is still here, also when the pointer is lost. It writes nothing."""

    @abc.abstractmethod
    def resume(self, entry: CatalogEntry, horizon: int, epoch: int, visible: int) -> bool:
        """Make this version visible again, with this horizon, after the pointer was lost or went back to
        ``visible``.

        Every server has to be compared before readers get a row. Key groups without any written row
        are marked as lost. False: no key group proves that the pointer went back, the pointer has
        another version, or a higher epoch is claimed. Raises: WalGapError: the store was being filled.
        """

    @abc.abstractmethod
    def note_moved(self) -> None:
        """Note the new servers of key groups that moved completely: they need no repair."""

    @abc.abstractmethod
    def lost(self) -> list[Lost]:
        """List the losses of key groups, as the store found them when the comparison began."""

    @abc.abstractmethod
    def begin_bases(self, bases: Iterable[tuple[int, str]]) -> None:
        """Begin to write merged rows of these key groups and tables, apart from the existing ones."""

    @abc.abstractmethod
    def add_to_bases(self, runs: Iterable[Run]) -> None:
        """Write rows of one version, or of a table at one version, over the earlier ones.

        A run of a key group and table that was not begun is an error.
        """

    @abc.abstractmethod
    def put_bases(self, group: int, tables: Mapping[str, int], floor: int = 0) -> bool:
        """Put the written rows in place; ``tables`` has the newest version in each table.

        With ``floor`` they are the whole key group at that version, and replace all rows at or below it.
        False: another repair has done so. Raises: StoreNotVerifiedError: the written rows are lost, repeat.
        """

    @abc.abstractmethod
    def keep_lost(self, group: int, since: int | None) -> None:
        """Leave the key group as it is: its readers are refused until another repair puts its rows back."""


class SupportsUsage(Store):
    """A store that lists the parts of the room that it takes."""

    @abc.abstractmethod
    def usage(self) -> Iterator[Usage]:
        """Yield the parts, by what the store lists: no scan of a server, and nothing is written."""

    @abc.abstractmethod
    def refused_writes(self) -> str:
        """Return the reason why the store takes no writes now, with the way out; empty: it takes them."""
