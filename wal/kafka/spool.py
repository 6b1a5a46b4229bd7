"""A list of records that moves to a temporary file when it grows."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Iterator

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

    def add(self, entry: Entry) -> None:
        try:
            self._file.write(HEAD.pack(entry.position, entry.next_position, len(entry.content)))
            self._file.write(entry.content)
        except OSError as error:
            self.close()
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
            while head := self._file.read(HEAD.size):
                position, next_position, length = HEAD.unpack(head)
                yield Entry(position, next_position, self._file.read(length))


def _no_room(error: OSError) -> WalUnavailableError:
    try:
        folder = tempfile.gettempdir()
    except OSError:  # none takes a file: the error names those that were tried
        folder = "any folder of temporary files"
    return WalUnavailableError(
        f"the decision log has no room in {folder}, where it is kept while it is read:"
        f" {error.strerror or error}; make room there, or set TMPDIR to another folder"
    )
