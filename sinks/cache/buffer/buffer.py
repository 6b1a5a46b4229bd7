"""The spillable buffer: bytes in memory or on disk, shared by the processes of one host.

Spark runs Python in several short-lived processes for each executor, so "memory" does not belong to
one process: it is files on a memory file system (``/dev/shm``), and "disk" is files under the
``local_dir`` paths. Both are written once and read through memory maps, without a copy.

A **unit** is written, moved and dropped as a whole: the data of a key group, or of several. Its
name is the caller's choice. Usage::

    buffer = open_buffer("flights", uuid, options.local_dir)      # once in a process
    with buffer.claim("7") as held:
        if held is None:            # another run of this task has it, or there is no folder: continue without
            ...
        for segment in held.segments:
            table = pa.ipc.open_stream(held.view(segment)).read_all()
        new = held.write([chunk, chunk])          # None: there is no room anywhere
        if new is not None:
            held.keep([*held.segments, new], b"what it is valid for", groups=range(7, 8))
    seen = buffer.look("7")                       # without a claim: any number at the same time
    buffer.put("8", [chunk], groups=range(8, 9))  # a claim with one write and a keep
    buffer.rates.add(requests, 41, 0.3)           # of a task, by key group: what is hot stays in memory
    balance(buffer, batch=41)                     # balance.py: spill, or load back

- **One at a time.** Only the claim's holder changes a unit; a second claim gets None. A claim ends
  with its ``with`` block, or with the process.
- **keep is the commit.** Until then the unit is unchanged, whatever was written and whichever
  process was killed. From then on it is exactly the given segments, and all its other bytes are
  free space.
- **Views stay true.** A view shows the same bytes for as long as it is referenced, also after its
  segment was dropped or moved. mapped_files.py explains why.
- **Nothing is durable, nothing is needed.** No call syncs. Lost or damaged content is dropped; the
  caller reads the store. The next process that opens the buffer takes over the content of a dead
  owner (the executor's JVM, see owner.py); only the caller knows what that content is valid for.
- **No disk error escapes.** A path that is full, read-only or deleted is not used for a while,
  after one warning. Writes fall back to the next path, then to the other tier, then return None.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from tidegate.base.local_dir import MEMORY_PATH, LocalDir, LocalDirs, local_dirs
from tidegate.errors import ConfigError, CorruptError
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.mapped_files import (
    HEADROOM_BYTES,
    TRIES,
    BusyError,
    MappedFiles,
    make_folder,
    warn_once,
)
from tidegate.sinks.cache.buffer.note import EMPTY, Segment, Tier, UnitManifest, decode_note
from tidegate.sinks.cache.buffer.owner import Host, enter, host_at, owner_of_this_process
from tidegate.sinks.cache.buffer.rates import RatesFile
from tidegate.sinks.cache.buffer.unit import ClaimedUnit
from tidegate.sinks.cache.buffer.usage import Usage, Used

logger = logging.getLogger("tidegate")

UNIT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", re.ASCII)
FILE_NAME = re.compile(r"\d{6,12}-[0-9a-f]{8}\.(memory|disk)", re.ASCII)
VERIFIED_MAX = 100_000
LOOK_S = 2.0
"""A unit that keeps changing for this long during a read is read from the store."""
POLL_S = 0.002


class Looked(NamedTuple):
    """A unit as of one keep."""

    note: UnitManifest
    views: list[pa.Buffer]
    """The views of its segments, in their order."""


def open_buffer(
    namespace: str, uuid: str, local_dir: LocalDirs = None, limits: BufferLimits | None = None
) -> Buffer:
    """Open the namespace's buffer on this host: memory in /dev/shm if it exists, disks in ``local_dir``.

    Processes that share the first of these folders are one host, and share the buffer. Without
    memory in the limits all of it is in these folders. Raises: as ``check_local_dir`` and
    ``LocalDir``.
    """
    memory, limits, disks = None, limits or BufferLimits(), local_dirs(local_dir, namespace, uuid)
    if limits.memory_bytes_max and Path(MEMORY_PATH).is_dir():
        memory = local_dirs(MEMORY_PATH, namespace, uuid)[0]
    return Buffer(memory, disks, limits, host_at(disks[0].root))


class Buffer:
    """A buffer of one host. Keeps no file open between calls; there is nothing to close.

    The constructor registers this process's owner, takes over what dead owners kept of this buffer,
    and removes the remains of dead owners of other buffers. It never raises for the state of a
    path. ``memory`` None: there is only the disk, and its page cache. ``host`` distinguishes
    processes that share the memory and not the disk.
    """

    def __init__(
        self,
        memory: LocalDir | None,
        disks: Sequence[LocalDir],
        limits: BufferLimits,
        host: Host | None = None,
    ) -> None:
        self.limits = limits
        self._host = host
        of_host = "" if host is None else host.id
        self._tiers: dict[Tier, list[MappedFiles]] = {
            "memory": [MappedFiles(memory, "memory", of_host)] if memory else [],
            "disk": [MappedFiles(local, "disk") for local in disks],
        }
        if not (self._tiers["memory"] or self._tiers["disk"]):
            raise ConfigError("a buffer needs a folder in memory or on a disk; give local_dir")
        # Locks, notes and the count are here only: two copies could disagree.
        self.home = [*self._tiers["memory"], *self._tiers["disk"]][0]
        self.usage = Usage(self.home.folder / "usage")
        self.rates = RatesFile(self.home.folder / "rates")
        self._verified: dict[Segment, None] = {}  # segments whose checksums this process has compared
        self._enter()
        if self.home.usable():
            with warn_once(self.home.local):
                self._fit_memory(self.recount())

    def _enter(self) -> None:
        owner, units = owner_of_this_process(), set()
        for files in (*self._tiers["memory"], *self._tiers["disk"]):
            if files.usable():
                with warn_once(files.local):
                    if enter(files.folder, owner, self._host if files is self.home else None):
                        units.update(files.units())
        for unit in units:
            with self.claim(unit):  # frees what was written and not kept
                pass

    def _fit_memory(self, used: Used) -> None:
        """Lower the limit to a memory file system that is smaller (64 MB in a container)."""
        for files in self._tiers["memory"]:
            space = os.statvfs(files.folder)
            most = max(0, space.f_bavail * space.f_frsize + used.memory - 2 * HEADROOM_BYTES)
            if most < self.limits.memory_bytes_max:
                logger.warning(
                    "the buffer has %d MiB of memory, not %d: no more is left on %s; mount a larger one",
                    most >> 20, self.limits.memory_bytes_max >> 20, files.local.root,
                )  # fmt: skip
                self.limits = dataclasses.replace(self.limits, memory_bytes_max=most)

    def paths(self, tier: Tier) -> list[MappedFiles]:
        return self._tiers[tier]

    def limit(self, tier: Tier) -> int:
        return self.limits.memory_bytes_max if tier == "memory" else self.limits.disk_bytes_max

    @contextlib.contextmanager
    def claim(self, unit: str) -> Iterator[ClaimedUnit | None]:
        """Claim the unit until the block ends. None: another task has it, or there is no folder.

        Does not wait. Bytes that a killed process left half-written are free space from here on. A
        unit that did not exist is empty; one that is empty in the end does not exist afterwards.
        """
        if UNIT.fullmatch(unit) is None:
            raise ValueError(f"{unit!r} is no name of a unit")
        with contextlib.ExitStack() as stack:
            claimed = None
            with warn_once(self.home.local):
                if stack.enter_context(self._only_one(self.home.unit_folder(unit) / "lock")):
                    claimed = ClaimedUnit(self, unit)
                    stack.callback(claimed.end)
            yield claimed

    def put(
        self,
        unit: str,
        chunks: Sequence[Any],
        caller: bytes = b"",
        *,
        groups: range | None = None,
    ) -> bool:
        """Replace the unit by these bytes, as one segment. False: it is unchanged, or there is no
        room for it.

        Atomic, for a process killed at any point. Repeatable.
        """
        with self.claim(unit) as claimed:
            new = claimed and claimed.write(chunks)
            return bool(claimed and new and claimed.keep([new], caller, groups=groups))

    def drop(self, unit: str) -> bool:
        """Drop the unit and free its bytes; return whether it is gone. False: it is claimed elsewhere."""
        with self.claim(unit) as claimed:
            if claimed is not None:
                claimed.drop()
            return claimed is not None

    def units(self) -> list[str]:
        """Return the names of existing or claimed units."""
        with warn_once(self.home.local):
            return self.home.units()
        return []

    def only_one_balances(self) -> contextlib.AbstractContextManager[bool]:
        """Lock balancing until the block ends; yield whether this process got the lock."""
        return self._only_one(self.home.folder / "balance")

    @contextlib.contextmanager
    def _only_one(self, path: Path) -> Iterator[bool]:
        """Try the lock, held until the block ends; yield whether it was free."""
        fd = self._lock_file(path)
        if fd is None:
            yield False
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its previous holder may have removed the file: then the lock excludes no one.
                taken = os.path.samestat(os.fstat(fd), path.stat())
            except (BlockingIOError, FileNotFoundError):
                taken = False
            yield taken
        finally:
            os.close(fd)

    def _lock_file(self, path: Path) -> int | None:
        """Open the file, created when missing. None: there is no folder for it."""
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a dropped unit has no folder
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not self.home.usable():
                return None
            make_folder(path.parent)
        return None

    # -- reading ----------------------------------------------------------------------------------

    def look(self, unit: str) -> Looked | None:
        """Read the unit without a claim. None: there is nothing, or it keeps changing.

        The result is as of one keep, even if the unit is moved or dropped meanwhile. Raises: as
        ``view``.
        """
        deadline = time.monotonic() + LOOK_S
        while time.monotonic() < deadline:
            note = self.note(unit)
            if not note.segments:
                return None
            try:
                views = [self.view(unit, segment) for segment in note.segments]
            except BusyError:
                time.sleep(POLL_S)
                continue
            except CorruptError:
                if self.note(unit).segments == note.segments:
                    raise
                continue
            # Space is reused only after a keep that does not name it, and never while it is mapped. If
            # the note still names it now that it is mapped, its bytes are those that were written.
            if self.note(unit).segments == note.segments:
                return Looked(note, views)
        return None

    def view(self, unit: str, segment: Segment) -> pa.Buffer:
        """Return a segment's bytes; for the holder of the unit. Others use ``look``: the space may be reused.

        Raises: CorruptError: the bytes as written are not available (damaged, missing, unreadable).
        """
        paths, verified = self.paths(segment.tier), self._verified
        where = f"segment {segment.file} of unit {unit}"
        if segment.path >= len(paths) or FILE_NAME.fullmatch(segment.file) is None:
            raise CorruptError(f"{where}: there is no such file")
        files, place = paths[segment.path], (unit, segment.file, segment.offset, segment.bytes)
        try:
            # On a disk it is read first: a read error there is an exception, and in a map a signal.
            checksum = files.checksum(*place) if segment.tier == "disk" and segment not in verified else None
            view = files.view(*place)
        except (OSError, EOFError, ValueError) as error:
            raise CorruptError(f"{where} in {files.folder}: {error}") from error
        if segment not in verified:
            checksum = xxhash.xxh3_64_intdigest(view) if checksum is None else checksum
            if checksum != segment.checksum:
                raise CorruptError(f"{where} in {files.folder}: its bytes do not fit its checksum")
            if len(verified) >= VERIFIED_MAX:
                verified.clear()
            verified[segment] = None
        return view

    def note(self, unit: str) -> UnitManifest:
        """Return the unit's note; the empty note if there is none, or a damaged one (a warning)."""
        content = None
        with warn_once(self.home.local), contextlib.suppress(FileNotFoundError):
            content = (self.home.unit_folder(unit) / "note").read_bytes()
        if content is None:
            return EMPTY
        note = decode_note(content)
        if note is None:
            logger.warning("the note of unit %s of the buffer is damaged: the unit counts as empty", unit)
        return note or EMPTY

    def notes(self) -> dict[str, UnitManifest]:
        """Return the note of every unit on this host, claimed or not; reads one file for each."""
        by_unit = {}
        with warn_once(self.home.local):
            for unit in self.home.units():
                if (note := self.note(unit)) != EMPTY:
                    by_unit[unit] = note
        return by_unit

    def used_bytes(self, tier: Tier) -> int:
        """Return the bytes of all files of the tier, of all processes, which the limits count."""
        with warn_once(self.home.local):
            return self.usage.read().of(tier)
        return 0

    def recount(self) -> Used:
        """Measure the files' size, and count on from it. Raises: OSError: the folder cannot be used."""
        return self.usage.recount(
            lambda: Used(
                sum(files.used_bytes() for files in self._tiers["memory"]),
                sum(files.used_bytes() for files in self._tiers["disk"]),
            )
        )
