"""The pieces of a host's cache of state, in a spillable buffer: in memory while there is room, else on disks.

A piece is a unit of the buffer with one segment: an Arrow IPC file with one record batch. It is
written once, mapped into memory when it is read, spilled and loaded by the buffer's rules, and
dropped when no index names it. All processes of the host share the pieces; the death of a process
loses none.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from tidegate.base import forks
from tidegate.base.local_dir import check_local_dir
from tidegate.errors import CorruptError
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.cache.buffer.balance import balance
from tidegate.sinks.cache.buffer.buffer import Buffer, open_buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.mapped_files import warn_once
from tidegate.sinks.cache.buffer.note import Segment
from tidegate.sinks.cache.buffer.owner import host_at
from tidegate.sinks.cache.buffer.policy import Reason, Sample, advise
from tidegate.sinks.cache.buffer.pressure import KERNEL, Meter, Signals
from tidegate.sinks.cache.buffer.rates import Requests
from tidegate.sinks.cache.runs import ROWS, PieceRef, group_at, places_in

DISK_SHARE = 4
"""Disks may hold this multiple of the cache's bytes: two versions' pieces, and those of attempts
without a decision.
"""
VERIFIED_MAX = 4_096

Stamp = tuple[int, int, int] | None


class Pieces:
    """The pieces of one namespace on this host. For one thread at a time.

    The buffer is opened on first use: without a cache there is none.
    """

    def __init__(self, opened: Callable[[], Buffer], signals: Signals = KERNEL) -> None:
        self._opened, self._container = opened, signals.container
        self.meter = signals.meter
        self._verified: dict[Segment, Stamp] = {}

    @cached_property
    def _buffer(self) -> Buffer:
        return self._opened()

    def write(self, name: str, rows: Any) -> PieceRef:
        """Write sorted rows as a new piece; the result has its checksum.

        Raises: OSError: neither memory nor a disk has room for it; nothing was written.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, ROWS) as writer:
            writer.write_batch(rows)
        content = sink.getvalue()
        places = places_in(rows)
        first, last = int(places[0]), int(places[-1])
        if not self._buffer.put(name, [content], groups=range(group_at(first), group_at(last) + 1)):
            raise OSError(errno.ENOSPC, "no space in memory or on a disk for a piece of the cache of state")
        return PieceRef(name, first, last, content.size, xxhash.xxh3_64_hexdigest(content))

    def open(self, ref: PieceRef) -> Any:
        """Return the rows of a piece, mapped into memory, after a check of their checksum.

        It is checked once per process while the file's size and change time stay the same;
        otherwise the cost would grow with the cache. Raises: FileNotFoundError: the piece is gone.
        CorruptError: it is not the one that was written.
        """
        seen = self._buffer.look(ref.name)
        if seen is None or len(seen.views) != 1:
            raise FileNotFoundError(errno.ENOENT, "it is gone", f"piece {ref.name}")
        (view,), (segment,) = seen.views, seen.note.segments
        if view.size != ref.bytes:
            raise CorruptError(f"piece {ref.name}: {view.size} bytes, {ref.bytes} were written")
        stamp = self._stamp(ref.name, segment)
        if stamp is None or self._verified.get(segment) != stamp:
            if xxhash.xxh3_64_hexdigest(view) != ref.checksum:
                raise CorruptError(f"piece {ref.name}: the checksum does not fit")
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[segment] = stamp
        return pa.ipc.open_file(view).get_batch(0)

    def _stamp(self, name: str, segment: Segment) -> Stamp:
        """Return a stamp that detects an overwritten file; None: it is being spilled or loaded at
        this moment.
        """
        files = self._buffer.paths(segment.tier)[segment.path]
        try:
            status = files.path(name, segment.file).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_ctime_ns  # ctime cannot be set back

    def drop(self, name: str) -> None:
        """Drop a piece. One that is being spilled or loaded at this moment stays, for the next sweep."""
        self._buffer.drop(name)

    def names(self) -> list[str]:
        return self._buffer.units()

    def disk_bytes(self) -> int:
        """Return the bytes on disks, of all processes of the host."""
        return self._buffer.used_bytes("disk")

    def balance(self, requests: Requests, version: int, wait: Meter) -> dict[Reason, int]:
        """Record a finished task's requests by key group, and spill or load if needed.

        ``wait`` is a ``meter()`` from when the task began. Returns the bytes that were moved, by
        reason. While all pieces are in memory and no signal asks for a spill, no choice is needed, and
        nothing is recorded.
        """
        memory, disk = self._buffer.used_bytes("memory"), self._buffer.used_bytes("disk")
        budget, bands = self._buffer.limit("memory"), self._buffer.limits.bands
        container, share = self._container(), wait.share(bands.fault_s)
        sample = Sample(memory, budget, container, share)
        if not disk and memory <= bands.load_below * budget and not advise(sample, bands).spill_bytes:
            return {}
        with warn_once(self._buffer.home.local):
            self._buffer.rates.add(requests, version, bands.new_share)
        done = balance(self._buffer, batch=version, container=container, wait_share=share)
        moved = done.spilled + done.loaded
        return {done.reason: moved} if moved else {}


# -- one per process ------------------------------------------------------------------------------

_pieces: dict[tuple[Any, ...], Pieces] = {}
_pieces_lock = forks.Lock()


def host_pieces(
    local_dir: tuple[str, ...] | None,
    namespace: str,
    uuid: str,
    memory_bytes: int,
    cache_bytes: int,
    bands: StateSpill | None = None,
) -> Pieces:
    """Return this process's handle on a namespace's pieces on this host; the same object each time.

    ``memory_bytes`` of them may be in memory, the others are on the disks of ``local_dir``. If that
    was deleted and created again it counts as another one: its earlier content is not shared.
    """
    host = host_at(Path(check_local_dir(local_dir)[0]))
    named = local_dir, host, uuid, memory_bytes, cache_bytes, bands
    with _pieces_lock:
        if named not in _pieces:
            limits = BufferLimits(memory_bytes, DISK_SHARE * cache_bytes, bands=bands or StateSpill())
            _pieces[named] = Pieces(partial(open_buffer, namespace, uuid, local_dir, limits))
        return _pieces[named]
