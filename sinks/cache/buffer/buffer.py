"""The spillable buffer: bytes in memory or on disk, shared by the processes of one host.

Spark runs Python in several processes for each executor, and they come and go, so "memory" is not a
process's own: it is files on a memory file system (``/dev/shm``), and "disk" is files under the
``local_dir`` paths. Both are written once and read through memory maps, without a copy.

A **unit** is what is written, moved and dropped as one: the data of a key group, or of several. Its name
is the caller's choice. How to use it::

    buffer = open_buffer("flights", uuid, options.local_dir)      # once in a process
    with buffer.claim("7") as held:
        if held is None:            # a twin of this task has it, or there is no folder: go on without
            ...
        for segment in held.segments:
            table = pa.ipc.open_stream(held.view(segment)).read_all()
        new = held.write([chunk, chunk])          # None: there is no room anywhere
        if new is not None:
            held.keep([*held.segments, new], b"what it is valid for", batch=41, requests=9000)
    seen = buffer.look("7")                       # without a claim: any number at the same time
    buffer.put("8", [chunk], batch=41)            # a claim with one write and a keep
    balance(buffer, batch=41)                     # buffer_balance.py: spill, or load back

- **One at a time.** A unit is changed by whoever claimed it; a second claim gets None. A claim ends
  with its ``with`` block, or with the process.
- **keep is the commit.** Until then the unit is as it was, whatever was written and whoever was
  killed; from then on it is exactly the segments given, and all its other bytes are free space.
- **Views stay true.** A view shows the same bytes for as long as it is referenced, also after its
  segment was given up or moved. See mapped_files.py for why.
- **Nothing is durable, nothing is needed.** No call syncs. What is lost or damaged is dropped; the caller
  reads the store. What an owner (the executor's JVM, see buffer_owner.py) leaves when it dies is taken
  over by who opens the buffer again; what it is valid for is the caller's to say.
- **No error of a disk gets out.** A path that is full, read-only or deleted is left alone for a
  while, with one warning; writing falls to the next path, then to the other tier, then gives None.
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
from tidegate.sinks.cache.buffer.mapped_files import HEADROOM_BYTES, BusyError, MappedFiles, told
from tidegate.sinks.cache.buffer.note import EMPTY, Segment, Tier, UnitManifest, decode_note
from tidegate.sinks.cache.buffer.owner import Host, enter, host_at, owner_of_this_process
from tidegate.sinks.cache.buffer.unit import ClaimedUnit
from tidegate.sinks.cache.buffer.usage import Usage, Used

logger = logging.getLogger("tidegate")

UNIT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", re.ASCII)
FILE_NAME = re.compile(r"\d{6,12}-[0-9a-f]{8}\.(memory|disk)", re.ASCII)
VERIFIED_MAX = 100_000
TRIES = 5
LOOK_S = 2.0
"""A unit that changes under whoever looks at it, for so long, is looked for in the store."""
POLL_S = 0.002


class Looked(NamedTuple):
    """A unit as of one keep."""

    note: UnitManifest
    views: list[pa.Buffer]
    """Of its segments, in their order."""


def open_buffer(
    namespace: str, uuid: str, local_dir: LocalDirs = None, limits: BufferLimits | None = None
) -> Buffer:
    """The namespace's buffer on this host: memory in /dev/shm where there is one, disks in ``local_dir``.

    Who shares the first of these folders is one host, and has the buffer in common. Without any memory in
    the limits all of it is in these folders. Errors as ``check_local_dir`` and ``LocalDir``.
    """
    memory, limits, disks = None, limits or BufferLimits(), local_dirs(local_dir, namespace, uuid)
    if limits.memory_bytes_max and Path(MEMORY_PATH).is_dir():
        memory = local_dirs(MEMORY_PATH, namespace, uuid)[0]
    return Buffer(memory, disks, limits, host_at(disks[0].root))


class Buffer:
    """A buffer of one host. Holds no file open between calls; there is nothing to close.

    Making one registers this process's owner, takes over what dead owners kept of this buffer, and removes
    what they left of others'. It raises nothing for what a path is like. ``memory`` None: there is only
    the disk, and its page cache. ``host`` tells apart those who share the memory and not the disk.
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
            "disk": [MappedFiles(one, "disk") for one in disks],
        }
        if not (self._tiers["memory"] or self._tiers["disk"]):
            raise ConfigError("a buffer needs a folder in memory or on a disk; give local_dir")
        # Locks, notes and the count lie here, and nowhere else: two places could disagree.
        self.home = [*self._tiers["memory"], *self._tiers["disk"]][0]
        self.usage = Usage(self.home.folder / "usage")
        self._verified: dict[Segment, None] = {}  # whose checksums this process has compared
        self._enter()
        if self.home.usable():
            with told(self.home.local):
                self._fit_memory(self.recount())

    def _enter(self) -> None:
        owner, units = owner_of_this_process(), set()
        for files in (*self._tiers["memory"], *self._tiers["disk"]):
            if files.usable():
                with told(files.local):
                    if enter(files.folder, owner, self._host if files is self.home else None):
                        units.update(files.units())
        for unit in units:
            with self.claim(unit):  # frees what was written and not kept
                pass

    def _fit_memory(self, used: Used) -> None:
        """A memory file system may be smaller than the limit (64 MB in a container): then it is the limit."""
        for files in self._tiers["memory"]:
            found = os.statvfs(files.folder)
            most = max(0, found.f_bavail * found.f_frsize + used.memory - 2 * HEADROOM_BYTES)
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
        """Hold the unit until the block ends. None: another task holds it, or there is no folder.

        Does not wait. Bytes that a killed process left half-written are free space from here on. A unit
        that was not there is an empty one; one that is empty in the end is not there afterwards.
        """
        if UNIT.fullmatch(unit) is None:
            raise ValueError(f"{unit!r} is no name of a unit")
        with contextlib.ExitStack() as stack:
            held = None
            with told(self.home.local):
                if stack.enter_context(self._only_one(self.home.unit_folder(unit) / "lock")):
                    held = ClaimedUnit(self, unit)
                    stack.callback(held.end)
            yield held

    def put(
        self,
        unit: str,
        chunks: Sequence[Any],
        caller: bytes = b"",
        *,
        batch: int,
        groups: range | None = None,
    ) -> bool:
        """Make the unit these bytes, as one segment, whatever it was. False: as it was, or it has no room.

        All or nothing, for a process killed at any point. May be repeated.
        """
        with self.claim(unit) as held:
            new = held and held.write(chunks)
            return bool(held and new and held.keep([new], caller, batch=batch, requests=0, groups=groups))

    def touch(self, unit: str, *, batch: int, requests: int) -> None:
        """Account for requests to a unit that is there; not for one that is claimed elsewhere."""
        with self.claim(unit) as held:
            if held is not None and held.segments:
                held.touch(batch=batch, requests=requests)

    def drop(self, unit: str) -> bool:
        """Forget the unit and free its bytes; whether it is gone. False: it is claimed elsewhere."""
        with self.claim(unit) as held:
            if held is not None:
                held.drop()
            return held is not None

    def units(self) -> list[str]:
        """Names of the units that are there, or claimed."""
        with told(self.home.local):
            return self.home.units()
        return []

    def only_one_balances(self) -> contextlib.AbstractContextManager[bool]:
        """Whether this process is the one that spills and loads until the block ends."""
        return self._only_one(self.home.folder / "balance")

    @contextlib.contextmanager
    def _only_one(self, path: Path) -> Iterator[bool]:
        """Whether the lock was free; held until the block ends."""
        fd = self._lock_file(path)
        if fd is None:
            yield False
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it before may have removed the file: then it locks nobody out.
                taken = os.path.samestat(os.fstat(fd), path.stat())
            except (BlockingIOError, FileNotFoundError):
                taken = False
            yield taken
        finally:
            os.close(fd)

    def _lock_file(self, path: Path) -> int | None:
        """A descriptor of the file, made when missing. None: there is no folder for it."""
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a dropped unit has no folder
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not self.home.usable():
                return None
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return None

    # -- reading ----------------------------------------------------------------------------------

    def look(self, unit: str) -> Looked | None:
        """What is kept of the unit, without a claim. None: nothing, or it changes all the time.

        All of it as of one keep, whoever moves or drops it meanwhile. CorruptError as for ``view``.
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
            # Space is used again only after a keep that does not name it, and not while it is mapped: if
            # it is named still, now that it is mapped, then the bytes are those that were written.
            if self.note(unit).segments == note.segments:
                return Looked(note, views)
        return None

    def view(self, unit: str, segment: Segment) -> pa.Buffer:
        """A segment's bytes; for who holds the unit. Else ``look``: the space may be another's by now.

        CorruptError: the bytes cannot be had as they were written (damaged, missing, unreadable).
        """
        paths, verified = self.paths(segment.tier), self._verified
        where = f"segment {segment.file} of unit {unit}"
        if segment.path >= len(paths) or FILE_NAME.fullmatch(segment.file) is None:
            raise CorruptError(f"{where}: there is no such file")
        files, place = paths[segment.path], (unit, segment.file, segment.offset, segment.bytes)
        try:
            # From a disk it is read first: what cannot be read is an error then, and a signal in a map.
            found = files.checksum(*place) if segment.tier == "disk" and segment not in verified else None
            view = files.view(*place)
        except (OSError, EOFError, ValueError) as error:
            raise CorruptError(f"{where} in {files.folder}: {error}") from error
        if segment not in verified:
            found = xxhash.xxh3_64_intdigest(view) if found is None else found
            if found != segment.checksum:
                raise CorruptError(f"{where} in {files.folder}: its bytes do not fit its checksum")
            if len(verified) >= VERIFIED_MAX:
                verified.clear()
            verified[segment] = None
        return view

    def note(self, unit: str) -> UnitManifest:
        """What is kept of the unit; the empty note when there is none, or a damaged one (a warning)."""
        content = None
        with told(self.home.local), contextlib.suppress(FileNotFoundError):
            content = (self.home.unit_folder(unit) / "note").read_bytes()
        if content is None:
            return EMPTY
        note = decode_note(content)
        if note is None:
            logger.warning("the note of unit %s of the buffer is damaged: the unit counts as empty", unit)
        return note or EMPTY

    def notes(self) -> dict[str, UnitManifest]:
        """What is kept of every unit on this host, also of those that others hold; reads a file for each."""
        found = {}
        with told(self.home.local):
            for unit in self.home.units():
                if (note := self.note(unit)) != EMPTY:
                    found[unit] = note
        return found

    def used_bytes(self, tier: Tier) -> int:
        """Bytes of all files of the tier, of all processes; what the limits count."""
        with told(self.home.local):
            return self.usage.read().of(tier)
        return 0

    def recount(self) -> Used:
        """Measure what the files take up, and count on from there. OSError: the folder cannot be used."""
        return self.usage.recount(
            lambda: Used(
                sum(files.used_bytes() for files in self._tiers["memory"]),
                sum(files.used_bytes() for files in self._tiers["disk"]),
            )
        )
