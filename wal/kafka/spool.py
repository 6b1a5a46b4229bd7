"""A list of records that moves to a temporary file when it grows."""

from __future__ import annotations

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
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by __iter__

    def add(self, entry: Entry) -> None:
        try:
            self._file.write(HEAD.pack(entry.position, entry.next_position, len(entry.content)))
            self._file.write(entry.content)
        except OSError as error:
            msg = (
                f"the decision log has no room in {tempfile.gettempdir()}, where it is kept while it is read:"
                f" {error.strerror or error}; make room there, or set TMPDIR to another folder"
            )
            raise WalUnavailableError(msg) from error

    def __iter__(self) -> Iterator[Entry]:
        with self._file:
            self._file.seek(0)
            while head := self._file.read(HEAD.size):
                position, next_position, length = HEAD.unpack(head)
                yield Entry(position, next_position, self._file.read(length))
