"""The reference log: one process, bytes in memory. Start reading here.

Everything ``wal/log.py`` promises, in the least code: the decision log is a list, the
change-log a dict of lists, one lock makes both atomic. A position is an index of the list;
an address is ``<segment>:<index>``. "Durable" means: for as long as the process lives.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence

from tidegate.errors import ConfigError, CorruptError, WalGapError, WalUnavailableError
from tidegate.names import check_name
from tidegate.wal.fold import Entry
from tidegate.wal.log import Appended, Blob, Log

ADDRESS = re.compile(r"([a-z0-9-]+):(\d{1,18})", re.ASCII)
SEGMENT = re.compile(r"[a-z0-9-]+")


class _Content:
    """What one log holds; every instance of the same name shares it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.created = False
        self.records: list[bytes] = []
        self.segments: dict[str, list[bytes]] = {}


_contents: dict[tuple[str, str], _Content] = {}


class MemoryLog(Log):
    """A log that all instances of the same name and namespace in this process share."""

    def __init__(self, name: str, namespace: str) -> None:
        check_name("namespace", namespace)
        self.where = f"memory://{name} ({namespace})"
        self._content = _contents.setdefault((name, namespace), _Content())

    def create(self) -> None:
        self._content.created = True

    def append_decision(self, content: bytes) -> Appended:
        self._check_created()
        with self._content.lock:
            position = len(self._content.records)
            self._content.records.append(bytes(content))
        return Appended(position, position + 1)

    def decisions(self, position: int = 0) -> Iterator[Entry]:
        records = self._content.records
        end = len(records)  # the end as it was found; the list only ever grows
        if not 0 <= position <= end:
            msg = f"{self.where}: the decision log ends at {end}, before position {position}"
            raise WalGapError(msg)
        return (Entry(at, at + 1, records[at]) for at in range(position, end))

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        self._check_created()
        if SEGMENT.fullmatch(segment) is None:
            msg = f"segment name {segment!r} is not allowed: use a-z 0-9 -"
            raise ConfigError(msg)
        staged = [bytes(blob) for blob in blobs]
        with self._content.lock:
            if segment in self._content.segments:
                msg = f"{self.where}: segment {segment} was staged before; each name is used once"
                raise ConfigError(msg)
            if staged:
                self._content.segments[segment] = staged
        return [f"{segment}:{index}" for index in range(len(staged))]

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        for address in dict.fromkeys(addresses):
            match = ADDRESS.fullmatch(address)
            if match is None:
                msg = f"{self.where}: {address!r} is not an address of this log"
                raise CorruptError(msg)
            blobs = self._content.segments.get(match[1], [])
            index = int(match[2])
            if index >= len(blobs):
                msg = f"{self.where}: nothing is staged at {address}"
                raise WalGapError(msg)
            yield Blob(address, blobs[index])

    def close(self) -> None:
        """Nothing to release: the content belongs to the process."""

    def _check_created(self) -> None:
        if not self._content.created:
            msg = f"{self.where}: the log was not created; run `tidegate init`, or start the query"
            raise WalUnavailableError(msg)


def forget(name: str) -> None:
    """Drop every log of this name; instances that are still held keep what they see."""
    for key in [key for key in list(_contents) if key[0] == name]:
        _contents.pop(key, None)
