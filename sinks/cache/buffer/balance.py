"""Spill and load: one call after each task measures, chooses and moves."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import struct
from pathlib import Path
from typing import NamedTuple

from tidegate.errors import CorruptError
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.mapped_files import warn_once
from tidegate.sinks.cache.buffer.note import Tier
from tidegate.sinks.cache.buffer.policy import (
    Candidate,
    Candidates,
    ContainerMemory,
    Reason,
    Sample,
    advise,
    to_drop,
    to_load,
    to_spill,
)

logger = logging.getLogger("tidegate")


@dataclasses.dataclass
class Balanced:
    """The result of one call, in bytes."""

    spilled: int = 0
    loaded: int = 0
    dropped: int = 0
    """Units given up: damaged, or without room on any disk."""
    reason: Reason = ""
    """The signal that started it; empty: nothing was moved or given up."""


def balance(
    buffer: Buffer, *, batch: int, container: ContainerMemory | None = None, wait_share: float = 0.0
) -> Balanced:
    """Bring the buffer within its bands by moving whole units; in at most one process at a time.

    Called at a task's end, with no claim held. Units claimed elsewhere are left out. All calls of a
    batch together move ``batch_bytes_max`` at most, and spill once for a wait. Never raises for the
    state of a disk or a file.
    """
    done = Balanced()
    with warn_once(buffer.home.local), buffer.only_one_balances() as mine:
        if mine:
            _Balance(buffer, batch, done).run(container, wait_share)
    return done


class _Moved(NamedTuple):
    """The moves of a batch so far, of all tasks of the host, in one file."""

    batch: int = 0
    bytes: int = 0
    waited: bool = False

    @classmethod
    def read(cls, path: Path, batch: int) -> _Moved:
        with contextlib.suppress(FileNotFoundError, struct.error):
            moved = cls(*_MOVED.unpack(path.read_bytes()))
            if moved.batch >= batch:
                return moved
        return cls(batch)


_MOVED = struct.Struct("<qq?")


class _Balance:
    """One call, under the lock of the only one that balances."""

    def __init__(self, buffer: Buffer, batch: int, done: Balanced) -> None:
        self._buffer, self._done, self._bands = buffer, done, buffer.limits.bands
        self._batch = batch
        self._path = buffer.home.folder / "moved"
        self._before = _Moved.read(self._path, batch)

    def run(self, container: ContainerMemory | None, wait_share: float) -> None:
        buffer, done = self._buffer, self._done
        used = buffer.recount()
        # It has spilled for this batch's wait already: the wait only keeps it from loading.
        counted = min(wait_share, self._bands.wait_spill_above) if self._before.waited else wait_share
        sample = Sample(used.memory, buffer.limits.memory_bytes_max, container, counted)
        advice = advise(sample, self._bands)
        if advice.spill_bytes:
            self._spill(advice.spill_bytes)
        elif advice.load_bytes and used.disk:
            self._load(advice.load_bytes)
        if done.spilled or done.loaded or done.dropped:
            done.reason = advice.reason
            waited = self._before.waited or advice.reason == "wait"
            moved = self._before.bytes + done.spilled + done.loaded
            self._path.write_bytes(_MOVED.pack(self._before.batch, moved, waited))
            limited = f"{container.used} of {container.limit}" if container else "without a limit"
            logger.debug(
                "the cache of state spilled %d bytes, loaded %d, gave up %d parts (reason: %s): memory %d of"
                " %d bytes, container %s, waiting %.3f of the time",
                done.spilled, done.loaded, done.dropped, done.reason, used.memory, sample.budget_bytes,
                limited, wait_share,
            )  # fmt: skip

    def _candidates(self, tier: Tier) -> dict[str, Candidate]:
        rates = self._buffer.rates.read().at(self._batch, self._bands.new_share)
        return {
            unit: Candidate(note.account.of(tier), note.groups[1] - note.groups[0], rates.mean(*note.groups))
            for unit, note in self._buffer.notes().items()
            if note.account.of(tier)
        }

    def _admits(self, size: int) -> bool:
        """Return whether a move of this size is within the limit of the batch; a large unit moves alone."""
        moved = self._before.bytes + self._done.spilled + self._done.loaded
        most = self._bands.batch_bytes_max
        return moved + size <= most or (moved == 0 and most > 0)

    def _spill(self, target: int) -> None:
        """Spill large and cold units until ``target`` bytes are out of memory; claimed units are left out."""
        self._make_room_on_disk(min(target, self._bands.batch_bytes_max))
        units = self._candidates("memory")
        while target > 0 and (chosen := to_spill(units, target, self._bands)):
            for unit in chosen:
                size = units.pop(unit).bytes
                if self._admits(size) and (moved := self._move(unit, "disk")) is not None:
                    self._done.spilled += moved
                    target -= size

    def _load(self, room: int) -> None:
        """Load hot and small units, as many as fit into ``room``."""
        units = self._candidates("disk")
        for unit in to_load(units, room, self._bands):
            if self._admits(units[unit].bytes):
                self._done.loaded += self._move(unit, "memory") or 0

    def _make_room_on_disk(self, target: int) -> None:
        """Drop the coldest units on disk where the limit would not admit the spill."""
        missing = self._buffer.used_bytes("disk") + target - self._buffer.limit("disk")
        on_disk: Candidates = self._candidates("disk") if missing > 0 else {}
        for unit in to_drop(on_disk, missing):
            with self._buffer.claim(unit) as claimed:
                if claimed is not None:
                    claimed.drop()
                    self._done.dropped += 1

    def _move(self, unit: str, tier: Tier) -> int | None:
        """Move a unit; return the bytes moved, or None if it is claimed elsewhere.

        A damaged unit is dropped. So is one that must leave memory and has no room on a disk: it is a
        cache.
        """
        with self._buffer.claim(unit) as claimed:
            if claimed is None:
                return None
            try:
                moved = claimed.move(tier)
            except CorruptError:
                moved = 0
                claimed.drop()
            if not moved and tier == "disk":
                claimed.drop()
            if not claimed.segments:
                self._done.dropped += 1
            return moved
