"""The reference log: one process, bytes in memory. Start reading here.

It implements the whole of ``wal/log.py`` in the least code. The decision log is a list, the
change-log a dict of lists, and one lock makes both atomic. A position counts records from the first
one ever; an address is ``<segment>:<index>``. "Durable" means: as long as the process lives.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence

from tidegate.base.clock import Clock
from tidegate.base.names import check_name
from tidegate.base.urls import redact
from tidegate.errors import ConfigError, CorruptError, WalGapError, WalUnavailableError
from tidegate.wal.fold import Entry
from tidegate.wal.log import Appended, Blob, Log, LogSize, Trimmed

ADDRESS = re.compile(r"([a-z0-9-]+):(\d{1,18})", re.ASCII)
SEGMENT = re.compile(r"[a-z0-9-]+")


class _Content:
    """The content of one log, shared by every instance of the same name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.created = False
        self.first = 0
        """The position of ``records[0]``, which is the number of trimmed records."""
        self.records: list[bytes] = []
        self.segments: dict[str, list[bytes]] = {}
        self.staged_at_us: dict[str, int] = {}


_contents: dict[tuple[str, str], _Content] = {}


class MemoryLog(Log):
    """A log that all instances of the same name and namespace in this process share."""

    def __init__(self, name: str, namespace: str, *, clock: Clock | None = None) -> None:
        check_name("namespace", namespace)
        self._clock = clock or Clock()
        self.where = f"{redact(f'memory://{name}')} ({namespace})"
        self._content = _contents.setdefault((name, namespace), _Content())

    def create(self) -> None:
        self._content.created = True

    def append_decision(self, content: bytes) -> Appended:
        self._check_created()
        with self._content.lock:
            position = self._content.first + len(self._content.records)
            self._content.records.append(bytes(content))
        return Appended(position, position + 1)

    def decisions(self, position: int = 0) -> Iterator[Entry]:
        with self._content.lock:
            first, records = self._content.first, self._content.records
            end = first + len(records)  # the end at the time of the call; this list only ever grows
        if not position:
            position = first
        if not first <= position <= end:
            msg = f"{self.where}: the decision log holds positions {first} to {end}, not {position}"
            raise WalGapError(msg)
        return (Entry(index, index + 1, records[index - first]) for index in range(position, end))

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
                self._content.staged_at_us[segment] = self._clock.now_us()
        return [f"{segment}:{index}" for index in range(len(staged))]

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        for address in dict.fromkeys(addresses):
            segment, index = self._parse(address)
            blobs = self._content.segments.get(segment, [])
            if index >= len(blobs):
                msg = f"{self.where}: nothing is staged at {address}"
                raise WalGapError(msg)
            yield Blob(address, blobs[index])

    def trim_decisions(self, position: int) -> None:
        self._check_created()
        with self._content.lock:
            count = position - self._content.first
            if count >= len(self._content.records):
                msg = f"{self.where}: there is no record at position {position} to cut in front of"
                raise WalGapError(msg)
            if count > 0:
                # A new list: an iteration of the old one continues with the log as it was.
                self._content.records = self._content.records[count:]
                self._content.first = position

    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        self._check_created()
        segments = {self._parse(address)[0] for address in needed}
        with self._content.lock:
            staged_at = self._content.staged_at_us
            old = [name for name, at_us in staged_at.items() if at_us < before_us and name not in segments]
            for name in old:
                del staged_at[name]
            dropped = [self._content.segments.pop(name, []) for name in old]
        return Trimmed(sum(len(blob) for blobs in dropped for blob in blobs))

    def size(self) -> LogSize:
        with self._content.lock:
            decisions = sum(map(len, self._content.records))
            staged = sum(len(blob) for blobs in self._content.segments.values() for blob in blobs)
        return LogSize(decisions, staged)

    def drop(self) -> bool:
        with self._content.lock:
            existed = self._content.created
            # New lists: an iteration of the old ones continues with the log as it was.
            self._content.created, self._content.first = False, 0
            self._content.records, self._content.segments, self._content.staged_at_us = [], {}, {}
        return existed

    def close(self) -> None:
        """Release nothing: the content belongs to the process."""

    def _parse(self, address: str) -> tuple[str, int]:
        match = ADDRESS.fullmatch(address)
        if match is None:
            msg = f"{self.where}: {address!r} is not an address of this log"
            raise CorruptError(msg)
        return match[1], int(match[2])

    def _check_created(self) -> None:
        if not self._content.created:
            msg = f"{self.where}: the log was removed, or was never made; start a query on a new namespace"
            raise WalUnavailableError(msg)


def forget(name: str) -> None:
    """Drop every log of this name; existing instances keep their content."""
    for key in [key for key in list(_contents) if key[0] == name]:
        _contents.pop(key, None)
