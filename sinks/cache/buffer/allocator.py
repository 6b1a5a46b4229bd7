"""Allocation of space in a unit's files. This module does no I/O.

First fit: files in the order of their creation, free parts from the front. Freed neighbours become
one part. A file grows at its end up to ``file_bytes``; a larger segment has a file of its own.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import NamedTuple

ALIGNMENT = 64
"""Offsets are multiples of it: Arrow reads buffers without a copy only where they are aligned."""


class FileName(NamedTuple):
    """A file of a unit in one tier."""

    path: int
    name: str


class Place(NamedTuple):
    """Allocated space."""

    file: FileName
    offset: int
    grows_by: int
    """The number of its bytes after the file's previous end; 0: all of it was used before."""


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _File:
    """One file: its length, and its free parts as sorted starts and ends."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.starts: list[int] = [0] if length else []
        self.ends: list[int] = [length] if length else []
        self.taken = 0

    def free_parts(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.ends, strict=True)

    def take(self, offset: int, size: int) -> None:
        """Take [offset, offset + size), which must be free."""
        end = offset + size
        index = bisect.bisect_right(self.starts, offset) - 1
        if size <= 0 or index < 0 or self.ends[index] < end:
            raise ValueError(f"[{offset}, {end}) is not free")
        start, stop = self.starts.pop(index), self.ends.pop(index)
        for low, high in ((end, stop), (start, offset)):
            if low < high:
                self.starts.insert(index, low)
                self.ends.insert(index, high)
        self.taken += size

    def grow(self, by: int) -> None:
        """Extend the file by a free part."""
        self.taken += by  # as if it had been taken
        self.length += by
        self.give(self.length - by, by)

    def cut(self, by: int) -> None:
        """Shorten the file by a free part at its end."""
        self.take(self.length - by, by)
        self.length -= by
        self.taken -= by

    def give(self, offset: int, size: int) -> None:
        """Free [offset, offset + size), and join it with its free neighbours."""
        end = offset + size
        index = bisect.bisect_left(self.starts, offset)
        before, after = index - 1, index
        if (before >= 0 and self.ends[before] > offset) or (
            after < len(self.starts) and self.starts[after] < end
        ):
            raise ValueError(f"[{offset}, {end}) is free already")
        if after < len(self.starts) and self.starts[after] == end:
            end = self.ends[after]
            del self.starts[after], self.ends[after]
        if before >= 0 and self.ends[before] == offset:
            self.ends[before] = end
        else:
            self.starts.insert(index, offset)
            self.ends.insert(index, end)
        self.taken -= size


class SpaceAllocator:
    """The space of one unit in one tier, over files on several paths."""

    def __init__(self, file_bytes: int) -> None:
        self.file_bytes = file_bytes
        self._files: dict[FileName, _File] = {}

    def add(self, file: FileName, length: int = 0) -> None:
        """Add a file of that length, all of it free. The unaligned end left by a killed writer is
        not counted.
        """
        if file in self._files:
            raise ValueError(f"{file} is known already")
        self._files[file] = _File(length - length % ALIGNMENT)

    def remove(self, file: FileName) -> int:
        """Forget a file without taken parts; return its length."""
        if self._files[file].taken:
            raise ValueError(f"{file} is in use")
        return self._files.pop(file).length

    def files(self) -> list[FileName]:
        return list(self._files)

    def empty(self) -> list[FileName]:
        """Return the files without taken parts."""
        return [name for name, file in self._files.items() if not file.taken]

    def occupy(self, file: FileName, offset: int, size: int) -> None:
        """Take space known to be in use. Raises: ValueError: it is not free, or after the file's end."""
        known = self._files.get(file)
        if known is None or offset % ALIGNMENT:
            raise ValueError(f"[{offset}, {offset + size}) is not in {file}")
        known.take(offset, aligned(size))

    def take(
        self, size: int, usable: Callable[[FileName], bool], reusable: Callable[[FileName], bool]
    ) -> Place | None:
        """Take the first space that is large enough; None: a new file is needed.

        Only ``usable`` files are considered, and only ``reusable`` ones for space that was used
        before. Each is called at most once per file, ``reusable`` only where the file has such
        space.
        """
        size = aligned(size)
        for name, file in self._files.items():
            if not usable(name):
                continue
            start = next(
                (start for start, end in file.free_parts() if self._fits(file, start, end, size)), None
            )
            if start is None or not reusable(name):
                start = file.length
                if start and start + size > self.file_bytes:
                    continue
            grows_by = max(0, start + size - file.length)
            if grows_by:
                file.grow(grows_by)
            file.take(start, size)
            return Place(name, start, grows_by)
        return None

    def free(self, file: FileName, offset: int, size: int) -> None:
        """Free taken space. Raises: ValueError: some of it is free."""
        self._files[file].give(offset, aligned(size))

    def undo(self, place: Place, size: int) -> None:
        """Free space that was just taken, and cut off the growth of its file."""
        file = self._files[place.file]
        file.give(place.offset, aligned(size))
        if place.grows_by:
            file.cut(place.grows_by)

    def _fits(self, file: _File, start: int, end: int, size: int) -> bool:
        """Return whether a free part is large enough, or reaches the end of a file that may grow."""
        return end - start >= size or (end == file.length and start + size <= self.file_bytes)
