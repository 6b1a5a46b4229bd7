"""A list of records that moves to a temporary file when it grows."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.errors import WalUnavailableError
from tidegate.wal.fold import Entry

MEMORY_BYTES = 8 * 1024 * 1024
HEAD = struct.Struct("<QQI")
"""Position, next position, and length of a record."""


class Spool:
    """Records in order, iterated once: at most 8 MiB of them in memory, the rest in a temporary file.

    Raises: WalUnavailableError, the folder of temporary files takes no more.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by close

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Spool:
        """Return a spool of these records. An error of the iteration closes it."""
        with contextlib.ExitStack() as unless_complete:
            spool = cls()
            unless_complete.callback(spool.close)
            for entry in entries:
                spool.add(entry)
            unless_complete.pop_all()
        return spool

    def __del__(self) -> None:
        self.close()  # an iteration that never began

    def add(self, entry: Entry) -> None:
        try:
            self._file.write(HEAD.pack(entry.position, entry.next_position, len(entry.content)))
            self._file.write(entry.content)
        except OSError as error:
            raise _no_room(error) from error

    def close(self) -> None:
        """Remove the file. Repeatable."""
        with contextlib.suppress(OSError):  # bytes that find no room are not needed any more
            self._file.close()

    def __iter__(self) -> Iterator[Entry]:
        with contextlib.closing(self):
            try:
                self._file.seek(0)  # writes the last bytes
            except OSError as error:
                raise _no_room(error) from error
            # In memory it has no name, and nothing is shared.
            records = (
                self._file if self._file.name is None else io.BufferedReader(_ByOffset(self._file.fileno()))
            )
            while head := records.read(HEAD.size):
                position, next_position, length = HEAD.unpack(head)
                yield Entry(position, next_position, records.read(length))


class _ByOffset(io.RawIOBase):
    """A file that is read from its start without its own position.

    A forked process has the same position, and moves it when it ends.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._offset = descriptor, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        length = os.preadv(self._descriptor, [buffer], self._offset)
        self._offset += length
        return length


def _no_room(error: OSError) -> WalUnavailableError:
    try:
        folder = tempfile.gettempdir()
    except OSError:  # none takes a file: the error names those that were tried
        folder = "any folder of temporary files"
    return WalUnavailableError(
        f"the decision log has no room in {folder}, where it is kept while it is read:"
        f" {error.strerror or error}; make room there, or set TMPDIR to another folder"
    )
