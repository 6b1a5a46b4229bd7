"""One unit of the buffer, claimed by a task: write, view, keep, move, drop."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pyarrow as pa
import xxhash

from tidegate.sinks.cache.buffer.allocator import FileName, Place, SpaceAllocator, aligned
from tidegate.sinks.cache.buffer.mapped_files import MappedFiles, warn_once
from tidegate.sinks.cache.buffer.note import EMPTY, Segment, Tier, UnitManifest, UnitStats, encode_note

if TYPE_CHECKING:
    from tidegate.sinks.cache.buffer.limits import BufferLimits
    from tidegate.sinks.cache.buffer.usage import Usage

logger = logging.getLogger("tidegate")

TIERS: tuple[Tier, ...] = ("memory", "disk")


class Home(Protocol):
    """The part of its buffer that a unit uses."""

    limits: BufferLimits
    usage: Usage
    home: MappedFiles

    def paths(self, tier: Tier) -> list[MappedFiles]: ...
    def limit(self, tier: Tier) -> int: ...
    def note(self, unit: str) -> UnitManifest: ...
    def view(self, unit: str, segment: Segment) -> pa.Buffer: ...


class ClaimedUnit:
    """One unit, claimed. Not for use after the ``with`` block of its claim, nor by two threads."""

    def __init__(self, buffer: Home, unit: str) -> None:
        """Raises: OSError: the note cannot be read, or the remains of a killed process cannot be removed."""
        self.unit = unit
        self._buffer = buffer
        self._note = buffer.note(unit)
        self._written: list[Segment] = []
        try:
            self._spaces = self._find_spaces()
        except ValueError as error:  # a file is missing or too short: the rest is useless
            logger.warning("unit %s of the buffer is damaged and was dropped: %s", unit, error)
            self._note = EMPTY
            self._spaces = self._find_spaces()
            self.drop()
        self._remove_empty_files()

    def _find_spaces(self) -> dict[Tier, SpaceAllocator]:
        """Return the unit's space as the note uses it. Raises: ValueError: a file lacks some of it."""
        spaces = {tier: SpaceAllocator(self._buffer.limits.file_bytes) for tier in TIERS}
        for tier in TIERS:
            for path, files in enumerate(self._buffer.paths(tier)):
                for name, length in files.lengths(self.unit).items():
                    spaces[tier].add(FileName(path, name), length)
        for segment in self._note.segments:
            spaces[segment.tier].occupy(FileName(segment.path, segment.file), segment.offset, segment.bytes)
        return spaces

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the last keep, in its order; empty for a unit that does not exist."""
        return self._note.segments

    @property
    def caller(self) -> bytes:
        """The caller's bytes of the last keep; empty for a unit that does not exist."""
        return self._note.caller

    @property
    def account(self) -> UnitStats:
        """The sizes of the last keep."""
        return self._note.account

    @property
    def tier(self) -> Tier:
        """The tier of most of its bytes; a new unit starts in memory."""
        return "disk" if self.account.disk_bytes > self.account.memory_bytes else "memory"

    # -- writing ----------------------------------------------------------------------------------

    def write(self, chunks: Sequence[Any], tier: Tier | None = None) -> Segment | None:
        """Write the chunks (anything with the buffer interface) as one segment, aligned to 64 bytes.

        By default it is written to the unit's tier, and to the other one if there is no room, the
        limit is reached, or the tier is absent; the segment names the tier. None: neither took it.
        The segment may be viewed at once; it is free space again unless a keep names it before the
        claim ends.
        """
        preferred = tier or self.tier
        return self._write(chunks, [preferred, *(other for other in TIERS if other != preferred)])

    def _write(
        self, chunks: Sequence[Any], tiers: Sequence[Tier], checksum: int | None = None
    ) -> Segment | None:
        """Write to the first of the tiers that has room; compute the checksum if it is not known."""
        views = [view.cast("B") for chunk in chunks if (view := memoryview(chunk)).nbytes]
        size = sum(view.nbytes for view in views)
        if size == 0:
            raise ValueError("a segment has at least one byte")
        if checksum is None:
            summed = xxhash.xxh3_64()
            for view in views:
                summed.update(view)
            checksum = summed.intdigest()
        views.append(memoryview(bytes(aligned(size) - size)))  # files end where their last place ends
        for tier in tiers:
            place = self._place(tier, size, views)
            if place is not None:
                path, name = place.file
                segment = Segment(tier, path, name, place.offset, size, checksum)
                self._written.append(segment)
                return segment
        return None

    def _place(self, tier: Tier, size: int, views: Sequence[memoryview]) -> Place | None:
        """Write to the first path of the tier that has room. None: none has, or the limit is reached."""
        paths = self._buffer.paths(tier)
        for _ in paths:  # a path that failed is not usable in the next round
            usable = [path for path, files in enumerate(paths) if _has_room(files, size)]
            with contextlib.ExitStack() as locks:
                place = self._take(tier, size, usable, locks) if usable else None
                if place is None:
                    return None
                files, name = paths[place.file.path], place.file.name
                try:
                    files.write(self.unit, name, place.offset, views)
                    return place
                except OSError as error:
                    files.local.failed(error)
                    self._undo(tier, place, size)
        return None

    def _take(self, tier: Tier, size: int, usable: list[int], locks: contextlib.ExitStack) -> Place | None:
        """Take and count space in a usable path; reused space is locked until ``locks`` ends."""
        paths, space = self._buffer.paths(tier), self._spaces[tier]

        def reusable(file: FileName) -> bool:
            try:
                return locks.enter_context(paths[file.path].for_reuse(self.unit, file.name))
            except OSError:
                return False

        place = space.take(size, lambda file: file.path in usable, reusable)
        if place is None:
            new_file = self._make_file(tier, usable)
            place = new_file and space.take(size, lambda file: file == new_file, lambda _: False)
        if place is not None:
            with warn_once(self._buffer.home.local):
                grow = partial(self._grow, tier, place.file, place.offset + aligned(size))
                if self._buffer.usage.reserve(tier, place.grows_by, self._buffer.limit(tier), grow):
                    return place
            space.undo(place, size)
            self._remove_empty_files()
        return None

    def _make_file(self, tier: Tier, usable: list[int]) -> FileName | None:
        """Create an empty file, in rotation over the paths; None: none could be created."""
        files = self._spaces[tier].files()
        number = 1 + max((int(file.name.split("-")[0]) for file in files), default=0)
        first = (xxhash.xxh32_intdigest(self.unit.encode()) + number) % len(usable)
        for path in usable[first:] + usable[:first]:
            new_file = FileName(path, f"{number:06}-{secrets.token_hex(4)}.{tier}")
            place = self._buffer.paths(tier)[path]
            with warn_once(place.local):
                place.make(self.unit, new_file.name)
                self._spaces[tier].add(new_file)
                return new_file
        return None

    def _grow(self, tier: Tier, file: FileName, length: int) -> None:
        """Extend the file. If that fails, the write to it will."""
        files = self._buffer.paths(tier)[file.path]
        with warn_once(files.local):
            files.grow(self.unit, file.name, length)

    def _undo(self, tier: Tier, place: Place, size: int) -> None:
        files, name = self._buffer.paths(tier)[place.file.path], place.file.name
        before = place.offset + aligned(size) - place.grows_by
        self._spaces[tier].undo(place, size)
        with warn_once(self._buffer.home.local):
            if place.grows_by:
                cut = partial(files.cut, self.unit, name, before)
                self._buffer.usage.give_back(tier, place.grows_by, cut)
        self._remove_empty_files()

    # -- reading ----------------------------------------------------------------------------------

    def view(self, segment: Segment) -> pa.Buffer:
        """Return the segment's bytes, without a copy, for as long as the result is referenced.

        The checksum is verified on a process's first view of a segment. Raises: CorruptError: the
        bytes as written are not available (damaged, missing, unreadable); drop the unit.
        """
        return self._buffer.view(self.unit, segment)

    # -- keeping ----------------------------------------------------------------------------------

    def keep(
        self,
        segments: Sequence[Segment],
        caller: bytes,
        *,
        groups: range | None = None,
    ) -> bool:
        """Make the unit exactly these segments: written by this claim, or kept before.

        Atomic: one rename, for a process killed at any point. ``groups`` are the key groups of its
        data, by default the previous ones. False: it could not be kept; the unit is then dropped, as
        by ``drop``.
        """
        between = (groups.start, groups.stop) if groups else self._note.groups
        return self._keep(UnitManifest(UnitStats(), tuple(segments), caller, between))

    def drop(self) -> None:
        """Drop the unit and free all its bytes. Repeatable."""
        with warn_once(self._buffer.home.local):
            (self._buffer.home.unit_folder(self.unit) / "note").unlink(missing_ok=True)
        self._replace(EMPTY)

    def move(self, tier: Tier) -> int:
        """Spill to "disk" or load to "memory": rewrite segments of the other tier; return the bytes moved.

        Contents, order and the caller's bytes are kept; each segment gets a new name. All or
        nothing (0: nothing to move, or no room there). Reads the bytes. Raises: CorruptError: as
        ``view``.
        """
        moved: list[Segment] = []
        total = 0
        for segment in self.segments:
            new: Segment | None = segment
            if segment.tier != tier:
                new = self._write([self.view(segment)], [tier], segment.checksum)
                total += segment.bytes
            if new is None:
                self._forget(moved)
                return 0
            moved.append(new)
        if total and not self._keep(msgspec.structs.replace(self._note, segments=tuple(moved))):
            return 0
        return total

    def _keep(self, note: UnitManifest) -> bool:
        known, segments = {*self.segments, *self._written}, note.segments
        if len(set(segments)) < len(segments) or not known.issuperset(segments):
            raise ValueError(
                "a kept segment was neither kept before nor written by this claim, or is given twice"
            )
        note = msgspec.structs.replace(note, account=UnitStats.of_segments(segments))
        folder = self._buffer.home.unit_folder(self.unit)
        try:
            (folder / "note.new").write_bytes(encode_note(note))
            (folder / "note.new").rename(folder / "note")
        except OSError as error:
            self._buffer.home.local.failed(error)
            self.drop()
            return False
        self._replace(note)
        return True

    def _replace(self, note: UnitManifest) -> None:
        """Put a note in force; space that it does not name is free."""
        before, self._note = self._note, note
        self._forget([*before.segments, *self._written])

    def _forget(self, segments: Sequence[Segment]) -> None:
        """Free the segments that are not kept."""
        retained = set(self._note.segments)
        for segment in {*segments} - retained:
            self._spaces[segment.tier].free(
                FileName(segment.path, segment.file), segment.offset, segment.bytes
            )
        freed = {*segments}
        self._written = [segment for segment in self._written if segment not in freed]
        self._remove_empty_files()

    def _remove_empty_files(self) -> None:
        for tier in TIERS:
            space = self._spaces[tier]
            for file in space.empty():
                files, length = self._buffer.paths(tier)[file.path], space.remove(file)
                with warn_once(files.local):
                    remove = partial(files.remove, self.unit, file.name)
                    self._buffer.usage.give_back(tier, length, remove)

    def end(self) -> None:
        """End the claim: free what was written and not kept, and remove all traces of an empty unit."""
        self._forget(self._written)
        if self._note == EMPTY:
            folder = self._buffer.home.unit_folder(self.unit)
            with warn_once(self._buffer.home.local):
                (folder / "note.new").unlink(missing_ok=True)
                # The lock last: from here on another process may create and claim the unit again.
                (folder / "lock").unlink(missing_ok=True)
            for tier in TIERS:
                for files in self._buffer.paths(tier):
                    files.remove_folder(self.unit)


def _has_room(files: MappedFiles, size: int) -> bool:
    """Return whether the path is usable and has ``size`` bytes left; warn when it is full."""
    if not files.usable():
        return False
    with warn_once(files.local):
        if files.has_room(size):
            return True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return False
