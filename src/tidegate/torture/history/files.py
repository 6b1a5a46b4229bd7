"""Histories in files: one file per process, one JSON line per event, readable after any kill.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> with Recorder(folder, "reader-1", role="reader") as recorder:
...     recorder.note(events.Connected(client=1, namespace="flights"))
...     began = recorder.now()
...     recorder.note(events.Looked(client=1, version=3, began=began))
>>> [type(line.event).__name__ for line in read_history(folder)]
['Started', 'Connected', 'Looked', 'Ended']
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import xxhash

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError, CorruptError
from tidegate.torture.history import events

if TYPE_CHECKING:
    from typing_extensions import Self

SUFFIX = ".jsonl"
FORMAT = 1
MAX_LINE = 16 << 20
"""Longest line in bytes. A larger batch is offered by its recipe, a larger scan by its digest."""

HASHES = 2**128
"""The modulus of sums of row hashes."""

_decoder: msgspec.json.Decoder[events.AnyEvent] = json_decoder(events.AnyEvent)


def as_json(value: bytes | str) -> str:
    r"""Return the text that represents bytes in a history: UTF-8, or a NUL and base64.

    >>> as_json(b"N1"), as_json(b"\xff")
    ('N1', '\x00/w==')
    """
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "\0" + base64.b64encode(value).decode()


def canonical(value: Any) -> bytes:
    """Return the form in which values are compared: JSON with sorted keys."""
    return msgspec.json.encode(value, order="deterministic")


class RowDigest:
    """A digest of rows in any order. It is the sum of their hashes, so rows can be added and removed.

    >>> scan = RowDigest()
    >>> scan.add("N2", {"flights": 1}); scan.add("N1", 7)
    >>> other = RowDigest()
    >>> other.add("N1", 7); other.add("N3", 0); other.add("N2", {"flights": 1}); other.remove("N3", 0)
    >>> scan.text() == other.text(), scan.rows
    (True, 2)
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, key: str, value: Any) -> None:
        self.rows += 1
        self._sum = (self._sum + row_hash(key, canonical(value))) % HASHES

    def remove(self, key: str, value: Any) -> None:
        self.rows -= 1
        self._sum = (self._sum - row_hash(key, canonical(value))) % HASHES

    def text(self) -> str:
        """Return 32 hex digits."""
        return digest_text(self._sum)


def row_hash(key: str, value: bytes) -> int:
    """Return one row's part of a digest, of a value in its canonical form."""
    return xxhash.xxh3_128_intdigest(canonical(key) + value)


def digest_text(total: int) -> str:
    """Return a sum of row hashes as text, as histories hold it."""
    return f"{total:032x}"


def digest_of(rows: Iterable[tuple[str, Any]]) -> RowDigest:
    """Compute the digest of a stream of rows, without keeping any."""
    digest = RowDigest()
    for key, value in rows:
        digest.add(key, value)
    return digest


class Recorder:
    """The history file of one process. Threads may share it; a forked child needs one of its own.

    A line is handed to the kernel in one write before ``note`` returns, so a SIGKILL loses at most the line
    that was just being written. Nothing is kept in memory. A context manager.
    """

    def __init__(self, folder: Path, name: str, role: str) -> None:
        """Create the file.

        ConfigError: the folder has one of that name; a restarted process needs a new name.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{name}{SUFFIX}"
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError as error:
            raise ConfigError(f"{self.path} exists already: give each process a name of its own") from error
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._numbers = itertools.count(1)
        started = events.Started(
            name=name,
            role=role,
            pid=self._pid,
            format=FORMAT,
            boot=boot_id(),
            wall_us=time.time_ns() // 1_000,
        )
        self.note(started)

    @staticmethod
    def now() -> int:
        """Read the clock of all events; for ``began``, before the read starts."""
        return time.monotonic_ns()

    def number(self) -> int:
        """Return a fresh number within this file, for a call, a client or a snapshot."""
        return next(self._numbers)

    def note(self, event: events.Event) -> None:
        """Write one event with the current time; after the return a SIGKILL cannot lose it.

        ValueError: it is longer than a line may be, or is from a forked child. OSError: the disk refused it.
        Nothing was written then.
        """
        if os.getpid() != self._pid:
            raise ValueError(f"process {os.getpid()} writes into the history of {self._pid}, {self.path}")
        with self._lock:
            event.at = self.now()
            line = msgspec.json.encode(event) + b"\n"
            if len(line) > MAX_LINE:
                raise ValueError(
                    f"an event has {len(line)} bytes; the limit is {MAX_LINE}: use a recipe or a digest"
                )
            written = os.write(self._fd, line)
            if written != len(line):  # truncated again, because the next line would be read as its end
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                problem = f"{written} of {len(line)} bytes of an event could be written"
                raise OSError(errno.ENOSPC, problem, str(self.path))

    def close(self, code: int = 0) -> None:
        """Note that the process ends by itself. A second call does nothing."""
        if self._fd >= 0:
            self.note(events.Ended(code=code))
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(0 if error is None else 1)


def boot_id() -> str:
    """Return the id of the clock's origin: equal in all processes of a host until the next boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


# -- reading -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Line:
    """An event and its place in the history."""

    event: events.AnyEvent
    file: str
    number: int
    offset: int

    @property
    def where(self) -> str:
        """The place as findings name it: file:line."""
        return f"{self.file}:{self.number}"


def read_file(path: Path) -> Generator[Line, None, None]:
    """Yield the events of one file, in order. A last line without its end was torn by a kill and is left out.

    CorruptError: a line is no event, or its time is before the last one's.
    """
    offset, before = 0, -1
    with path.open("rb") as file:
        for number in itertools.count(1):
            content = file.readline(MAX_LINE + 1)
            if not content.endswith(b"\n") and len(content) <= MAX_LINE:
                return
            event = decode(content, f"{path}:{number}")
            if (number == 1) != isinstance(event, events.Started):
                raise CorruptError(
                    f"{path}:{number}: the first line of a history, and no other, is 'started'"
                )
            if isinstance(event, events.Started) and event.format != FORMAT:
                raise CorruptError(f"{path} is of format {event.format}, this is a reader of format {FORMAT}")
            if event.at < before:
                raise CorruptError(f"{path}:{number} goes back in time: the lines were mixed or edited")
            yield Line(event, path.name, number, offset)
            offset, before = offset + len(content), event.at


def decode(content: bytes, where: str) -> events.AnyEvent:
    """Decode one line. CorruptError: it is no event, or longer than a line may be."""
    if len(content) > MAX_LINE:
        raise CorruptError(f"{where}: the line is longer than {MAX_LINE} bytes")
    try:
        return _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{where}: no event of a history: {error}") from error


def read_history(folder: Path) -> Iterator[Line]:
    """Yield the events of all files of a folder by time, in memory that does not grow with them.

    Events of equal times are ordered by the names of their files. CorruptError: see ``read_file``.
    ConfigError: there is no history in the folder, or its files are of several boots or hosts.
    """
    paths = folder.glob(f"*{SUFFIX}")
    firsts = [(first, path) for path in paths if (first := _first(path)) is not None]
    if not firsts:
        raise ConfigError(f"there is no history (*{SUFFIX}) in {folder}")
    if len({first.boot for first, _ in firsts}) > 1:
        raise ConfigError(f"the files in {folder} are of several hosts or boots: their clocks do not compare")
    yield from _merged(deque(sorted((first.at, path) for first, path in firsts)))


def _merged(waiting: deque[tuple[int, Path]]) -> Iterator[Line]:
    """Merge the lines of files by time.

    A file is open from its first event to its last, so few are open at once.
    """
    heads: list[tuple[int, str, Line, Iterator[Line]]] = []
    while waiting or heads:
        while waiting and (not heads or waiting[0][0] <= heads[0][0]):
            _push(heads, read_file(waiting.popleft()[1]))
        _, _, line, rest = heapq.heappop(heads)
        yield line
        _push(heads, rest)


def _push(heads: list[tuple[int, str, Line, Iterator[Line]]], lines: Iterator[Line]) -> None:
    line = next(lines, None)
    if line is not None:
        heapq.heappush(heads, (line.event.at, line.file, line, lines))


def _first(path: Path) -> events.Started | None:
    """Read a file's first event; None when the process was killed before its first line was whole."""
    with contextlib.closing(read_file(path)) as lines:
        first = next(lines, None)
    if first is None:
        return None
    assert isinstance(first.event, events.Started)
    return first.event


def read_at(file: BinaryIO, offset: int, where: str) -> events.AnyEvent:
    """Read the event at an offset that ``read_file`` gave."""
    file.seek(offset)
    return decode(file.readline(MAX_LINE + 1), where)
