"""The embedded log: a folder on a local disk, for any number of processes of one machine.

::

    <root>/<namespace, escaped>/
        decisions.log             the decision log; appended and replaced only under the lock
        changelog/<segment>.seg   one file per segment, written once, never changed
        lock                      empty; its flock is the lock

Three rules carry the guarantees. Only the holder of the lock changes ``decisions.log``: it cuts a torn tail
before it appends, and a trim replaces the whole file. Nothing is acked before the file and its folder are
synced (I3). A reader syncs the file after it read a record and before it returns it, so nobody acts on a
record that a power cut could take back. ``wal/file/format.py`` defines the bytes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import NoReturn

from tidegate.base.clock import Clock
from tidegate.base.files import (
    PASSING,
    NotRegularError,
    Window,
    close,
    create,
    foreign_entry,
    make_folder,
    open_regular,
    read_at,
    refuse_foreign,
    refuse_nested,
    refuse_taken,
    refuse_unremovable,
    remove_folder,
    sync_above,
    sync_folder,
    write_all,
)
from tidegate.base.names import check_name, escape, saved_by_relog
from tidegate.errors import ConfigError, CorruptError, OutcomeUnknownError, WalGapError, WalUnavailableError
from tidegate.wal.file.format import (
    END,
    FRAME_EXTRA_BYTES,
    HEADER_BYTES,
    LENGTH_MAX,
    SEGMENT,
    SEGMENT_HEADER,
    Address,
    Damage,
    decisions_header,
    frame_content,
    frame_length,
    frame_prefix,
    parse_address,
    parse_decisions_header,
    scan,
)
from tidegate.wal.file.lock import FolderLock
from tidegate.wal.fold import Entry
from tidegate.wal.log import RECORD_BYTES_MAX, Appended, Blob, Log, LogSize, Trimmed

logger = logging.getLogger("tidegate")

LOCK_TIMEOUT_S = 10.0
COPY_BYTES = 1024 * 1024
MTIME_US = 2_000_000
"""File times may be this much too old: kernels use a coarse clock, some file systems whole seconds."""
DAMAGE_LOOKS_MAX = 3
DROPPED = ".dropped"
FROM_A_COPY = "put it back from a copy"
TORN = "%s: cut the last %d bytes, from position %d on: an append that did not finish and was never acked"
"""``DROPPED`` contains a dot, which no escaped name does: no namespace's folder has that ending."""
CHANGELOG = "changelog"
OWN = re.compile(r"decisions\.(log|new)|lock|changelog")
OWN_SEGMENTS = re.compile(SEGMENT.pattern + r"\.seg")
"""The names of the log's own files."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NEVER_MENDS_ITSELF = frozenset({errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a wrong path: a retry would only hide them."""


class FileLog(Log):
    """A log in ``<root>/<escaped namespace>``. Keeps no descriptor open between calls.

    ``lock_timeout_s`` bounds the wait of an append for other appends on this machine.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        namespace: str,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self.folder: Path = Path(root) / escape(check_name("namespace", namespace))
        self.where, self._saving = str(self.folder), saved_by_relog(namespace)
        self._decisions = self.folder / "decisions.log"
        self._changelog = self.folder / CHANGELOG
        self._lock = FolderLock(self.folder / "lock", lock_timeout_s, clock or Clock())
        self._checked_to = 0
        """Every byte before this position was read and found whole by this instance."""
        self._named_base = 0
        """The base of the file whose name this instance knows to be durable."""

    # -- creation ----------------------------------------------------------------------------------

    def create(self) -> None:
        refuse_nested(self.folder, self._decisions.name)
        refuse_taken(self.where, _foreign_entry(self.folder))
        try:
            make_folder(self._changelog)
            with self._lock.locked(make=True):
                if not self._decisions.exists():
                    self._put_in_place(base=0)
                # Also when it existed: its creator may have died before this.
                for folder in (self._changelog, self.folder, self.folder.parent):
                    sync_folder(folder)
                sync_above(self.folder.parent)
            with self._opened() as (fd, _):
                os.fsync(fd)
        except OSError as error:
            if error.errno in PASSING:
                raise WalUnavailableError(
                    f"{self.where}: the log's folder {self.folder} does not answer: {error.strerror or error}"
                ) from error
            mend = "make room on this disk" if error.errno in DISK_FULL else "make it writable for this user"
            msg = (
                f"the log's folder {self.folder} cannot be made or written: {error.strerror or error};"
                f" {mend}, or give another folder in the URL file:///path"
            )
            raise ConfigError(msg) from error

    def _put_in_place(self, base: int, pieces: Iterable[bytes] = ()) -> None:
        """Replace the decision log by one with this base and content, in one step. Requires the lock.

        The new file is written under another name and renamed. Readers of the old file continue with it.
        """
        fresh = self._decisions.with_suffix(".new")
        fresh.unlink(missing_ok=True)  # left by a process that died here
        fd = create(fresh, os.O_WRONLY)
        try:
            for piece in chain([decisions_header(base)], pieces):
                write_all(fd, piece)
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        finally:
            close(fd)
        fresh.rename(self._decisions)

    def _sync_name(self, base: int) -> None:
        """Make durable the name of the file that a trim put in place.

        The process that trimmed may have died between rename and sync. Then a power cut could bring back
        the old file, without later appends. So each instance syncs the folder before it first acts.
        """
        if base != self._named_base:
            sync_folder(self.folder)
            self._named_base = base

    # -- the decision log ----------------------------------------------------------------------------

    def append_decision(self, content: bytes) -> Appended:
        if len(content) > RECORD_BYTES_MAX:
            msg = f"{self.where}: a record of {len(content)} bytes is too long"
            raise ConfigError(msg)
        try:
            with self._lock.locked(make=True), self._opened(os.O_RDWR) as (fd, base):
                self._sync_name(base)
                end = self._end_of_whole(fd, base)
                frame = frame_prefix(content) + content + END
                self._append(fd, end, frame)
                self._checked_to = base + end + len(frame)
                return Appended(base + end, self._checked_to)
        except OSError as error:  # _append raises what its own errors prove: nothing was written here
            self._unavailable(error)

    def _end_of_whole(self, fd: int, base: int) -> int:
        """Return where the next frame starts, after cutting a torn tail. Requires the lock."""
        size = os.fstat(fd).st_size
        start = max(self._checked_to - base, HEADER_BYTES)
        if start > size:
            self._went_back(base + size, self._checked_to)
        frames = scan(Window(fd).read, start, size)
        while True:
            try:
                next(frames)
            except StopIteration as stop:
                end = int(stop.value)
                break
            except Damage as damage:
                msg = f"{self._decisions} {damage}; {FROM_A_COPY}"
                raise CorruptError(msg) from damage
        if end < size:
            logger.warning(TORN, self._decisions, size - end, base + end)
            os.ftruncate(fd, end)
            os.fsync(fd)  # else a power cut could bring the old bytes back after the new record
        return end

    def _append(self, fd: int, end: int, frame: bytes) -> None:
        try:
            write_all(fd, frame, end)
        except OSError as error:
            if error.errno in DISK_FULL:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, end)
                    self._unavailable(error)
            msg = f"{self._decisions}: the record may or may not have been written: {error}"
            raise OutcomeUnknownError(msg) from error
        try:
            os.fsync(fd)
        except OSError as error:
            # After a failed sync the kernel may report these pages as clean. Writing them again makes
            # them dirty: a reader that syncs before it acts on the record then brings it to the disk,
            # or learns of the error.
            with contextlib.suppress(OSError):
                write_all(fd, frame, end)
            msg = f"{self._decisions}: the record was written, but may not last: fsync: {error}"
            raise OutcomeUnknownError(msg) from error

    def decisions(self, position: int = 0) -> Iterator[Entry]:
        with contextlib.ExitStack() as stack:
            try:
                fd, base = stack.enter_context(self._opened())
                size = os.fstat(fd).st_size
                self._sync_name(base)
            except FileNotFoundError:
                if position:
                    self._went_back(0, position)
                return
            except OSError as error:
                self._unavailable(error)
            offset = position - base if position else HEADER_BYTES
            if offset < HEADER_BYTES:
                msg = f"{self._decisions}: the records before position {base + HEADER_BYTES} were trimmed"
                raise WalGapError(msg)
            if offset > size:
                self._went_back(base + size, position)
            for _ in range(DAMAGE_LOOKS_MAX):
                try:
                    for start, following, content in scan(Window(fd, sync=True).read, offset, size):
                        yield Entry(base + start, base + following, content)
                        offset = following
                except OSError as error:
                    self._unavailable(error)
                except Damage as damage:
                    if self._is_damaged(fd, offset):
                        msg = f"{self._decisions} {damage}; {FROM_A_COPY}"
                        raise CorruptError(msg) from damage
                    size = os.fstat(fd).st_size
                else:
                    return
            msg = f"{self._decisions} at byte {offset}: the bytes change each time they are read; try again"
            raise WalUnavailableError(msg)

    def _is_damaged(self, fd: int, at: int) -> bool:
        """Return whether damage seen at ``at`` is still there while nobody is writing.

        A reader has no lock, so it may have read a torn tail while it was being replaced.
        """
        try:
            with self._lock.locked():
                for _ in scan(Window(fd).read, at, os.fstat(fd).st_size):
                    pass
        except (Damage, OSError):  # OSError: there is no lock, so nobody writes here
            return True
        return False

    def trim_decisions(self, position: int) -> None:
        try:
            with self._lock.locked(), self._opened(os.O_RDWR) as (fd, base):
                offset = position - base
                if offset <= HEADER_BYTES:
                    return  # already cut there or further
                end = self._end_of_whole(fd, base)
                if offset >= end:
                    self._went_back(base + end, position + 1)
                try:
                    next(scan(Window(fd).read, offset, end), None)
                except Damage as damage:
                    msg = f"{self._decisions} {damage}; it was not cut there"
                    raise CorruptError(msg) from damage
                starts = range(offset, end, COPY_BYTES)
                self._put_in_place(
                    position - HEADER_BYTES, (read_at(fd, one, min(COPY_BYTES, end - one)) for one in starts)
                )
                sync_folder(self.folder)  # still under the lock: nothing is appended to a file without a name
        except OSError as error:
            self._unavailable(error)

    # -- the change-log --------------------------------------------------------------------------------

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        if SEGMENT.fullmatch(segment) is None:
            msg = f"segment name {segment!r} is not allowed: use 1 to 200 of the characters a-z 0-9 -"
            raise ConfigError(msg)
        path = self._changelog / f"{segment}.seg"
        addresses: list[str] = []
        fd, offset = -1, len(SEGMENT_HEADER)
        try:
            for blob in blobs:
                if fd < 0:
                    fd = self._new_segment(path)
                self._write(fd, path, blob)
                addresses.append(str(Address(segment, offset, len(blob))))
                offset += FRAME_EXTRA_BYTES + len(blob)
            if fd >= 0:
                self._sync(fd, path)
        except BaseException:
            if fd >= 0:  # it would be an orphan, which is harmless; removing it saves space
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        finally:
            if fd >= 0:
                close(fd)
        return addresses

    def _new_segment(self, path: Path) -> int:
        try:
            fd = create(path, os.O_WRONLY)
        except FileExistsError as error:
            msg = f"{path} exists already; each segment name is staged once"
            raise ConfigError(msg) from error
        except OSError as error:
            self._unavailable(error)
        return fd

    def _write(self, fd: int, path: Path, blob: bytes) -> None:
        if len(blob) > LENGTH_MAX:
            msg = f"{path}: a blob of {len(blob)} bytes is too long"
            raise ConfigError(msg)
        try:
            if os.lseek(fd, 0, os.SEEK_CUR) == 0:
                write_all(fd, SEGMENT_HEADER)
            for part in (frame_prefix(blob), blob, END):
                write_all(fd, part)
        except OSError as error:
            self._unavailable(error)

    def _sync(self, fd: int, path: Path) -> None:
        try:
            os.fsync(fd)
            sync_folder(path.parent)
            unlinked = os.fstat(fd).st_nlink == 0
        except OSError as error:
            self._unavailable(error)
        if unlinked:
            msg = f"{path} was trimmed while it was being staged: it took longer than the log is kept"
            raise WalUnavailableError(msg)

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        places = sorted({parse_address(address, self.where) for address in addresses})
        for segment, inside in groupby(places, key=lambda place: place.segment):
            path = self._changelog / f"{segment}.seg"
            try:
                fd = open_regular(path)
            except FileNotFoundError as error:
                msg = f"{path} is missing: it was trimmed, lost, or never staged"
                raise WalGapError(msg) from error
            except OSError as error:
                self._unavailable(error)
            try:
                for place in inside:
                    yield Blob(str(place), self._blob(fd, path, place))
            finally:
                close(fd)

    def _blob(self, fd: int, path: Path, place: Address) -> bytes:
        count = FRAME_EXTRA_BYTES + place.length
        try:
            # Before anything of the claimed size is allocated (T49).
            if place.offset + count > os.fstat(fd).st_size:
                msg = f"{path} ends before {place}: it was cut short, or this was never staged"
                raise WalGapError(msg)
            head = read_at(fd, 0, len(SEGMENT_HEADER))
            frame = read_at(fd, place.offset, count)
        except OSError as error:
            self._unavailable(error)
        content = frame_content(frame)
        if head != SEGMENT_HEADER or frame_length(frame) != place.length or content is None:
            what = f"the blob of {place.length} bytes does not fit its checksum"
            msg = f"{path} at byte {place.offset}: {what}; {FROM_A_COPY}"
            raise CorruptError(msg)
        return content

    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        needed_names = {f"{parse_address(address, self.where).segment}.seg" for address in needed}
        dropped_bytes = 0
        try:
            for name, status in self._segments():
                if name not in needed_names and status.st_mtime_ns // 1000 < before_us - MTIME_US:
                    with contextlib.suppress(FileNotFoundError):  # removed by a concurrent trim
                        (self._changelog / name).unlink()
                        dropped_bytes += status.st_size
        except OSError as error:
            self._unavailable(error)
        return Trimmed(dropped_bytes)

    def size(self) -> LogSize:
        try:
            decisions_bytes = self._decisions.stat().st_size
            changelog_bytes = sum(status.st_size for _, status in self._segments())
        except FileNotFoundError:
            return LogSize(0, 0)
        except OSError as error:
            self._unavailable(error)
        return LogSize(decisions_bytes, changelog_bytes)

    def _segments(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the existing segments, in any order. One that vanishes meanwhile is left out."""
        with os.scandir(self._changelog) as entries:
            for entry in entries:
                if entry.name.endswith(".seg"):
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False)

    def foreign_entry(self) -> str:
        refuse_unremovable(self.where, self.folder.parent, self.folder, self.folder / CHANGELOG)
        return _foreign_entry(self.folder)

    def drop(self) -> bool:
        aside = self.folder.with_name(self.folder.name + DROPPED)
        try:
            refuse_foreign(self.where, _foreign_entry(aside))
            existed = remove_folder(aside)  # left by an earlier drop
            with contextlib.suppress(FileNotFoundError), self._lock.locked(make=True):
                refuse_foreign(self.where, self.foreign_entry())
                # One step, while nobody appends: afterwards no name leads to the log.
                self.folder.rename(aside)
                sync_folder(self.folder.parent)
            existed = remove_folder(aside, follows=True) or existed
        except OSError as error:
            self._unavailable(error)
        self._checked_to = 0
        return existed

    def close(self) -> None:
        """Release nothing: every call closes what it opens."""

    # -- helpers -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, flags: int = os.O_RDONLY) -> Generator[tuple[int, int], None, None]:
        """Open the decision log: its descriptor and base position."""
        fd = open_regular(self._decisions, flags)
        try:
            yield fd, parse_decisions_header(read_at(fd, 0, HEADER_BYTES), str(self._decisions))
        finally:
            close(fd)

    def _unavailable(self, error: OSError) -> NoReturn:
        hint = ""
        if isinstance(error, (NotRegularError, IsADirectoryError)):
            msg = f"{error.filename} is no regular file; {FROM_A_COPY}"
            raise CorruptError(msg) from error
        if error.errno in DISK_FULL:
            hint = "; make room on the disk of the log"
        elif error.errno == errno.ENOENT:
            hint = f"; is its disk mounted? Or the log was removed, or was never made here; {self._saving}"
        elif error.errno in NEVER_MENDS_ITSELF:
            msg = f"{self.where}: {error}; give a folder in file:///path that this user can read and write"
            raise ConfigError(msg) from error
        msg = f"{self.where}: {error}{hint}"
        raise WalUnavailableError(msg) from error

    def _went_back(self, end: int, position: int) -> NoReturn:
        msg = (
            f"{self._decisions} ends at {end}, before position {position} that was acked: an older copy was"
            " restored, or the file was cut; restore the newest copy"
        )
        raise WalGapError(msg)


def _foreign_entry(folder: Path) -> str:
    return foreign_entry(folder, OWN) or foreign_entry(folder / CHANGELOG, OWN_SEGMENTS)
