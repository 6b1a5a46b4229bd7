"""Spill and load: one call after each batch measures, chooses and moves."""

from __future__ import annotations

import dataclasses

from tidegate.errors import CorruptError
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.mapped_files import warn_once
from tidegate.sinks.cache.buffer.note import Tier, UnitStats
from tidegate.sinks.cache.buffer.policy import advise, to_drop, to_load, to_spill

Accounts = dict[str, UnitStats]


@dataclasses.dataclass
class Balanced:
    """The result of one call, in bytes."""

    spilled: int = 0
    loaded: int = 0
    dropped: int = 0
    """Units given up: damaged, or without room on any disk."""


def balance(buffer: Buffer, *, batch: int) -> Balanced:
    """Bring the buffer within its limits by moving whole units; in at most one process at a time.

    Called at a task's end, with no claim held. Units claimed elsewhere are left out. Never raises
    for the state of a disk or a file.
    """
    done = Balanced()
    with warn_once(buffer.home.local), buffer.only_one_balances() as mine:
        if mine:
            used = buffer.recount()
            advice = advise(used.memory, buffer.limits.memory_bytes_max)
            if advice.spill_bytes:
                _spill(buffer, advice.spill_bytes, batch, done)
            elif advice.load_bytes and used.disk:
                _load(buffer, advice.load_bytes, batch, done)
    return done


def _accounts(buffer: Buffer) -> Accounts:
    return {unit: note.account for unit, note in buffer.notes().items()}


def _spill(buffer: Buffer, target: int, batch: int, done: Balanced) -> None:
    """Spill large and cold units until ``target`` bytes are out of memory; claimed units are left out."""
    accounts = _accounts(buffer)
    _make_room_on_disk(buffer, target, accounts, batch, done)
    while target > 0 and (chosen := to_spill(accounts, target, batch)):
        for unit in chosen:
            account = accounts.pop(unit)
            if (gone := _move(buffer, unit, "disk", done)) is not None:
                done.spilled += gone
                target -= account.memory_bytes


def _load(buffer: Buffer, room: int, batch: int, done: Balanced) -> None:
    """Load hot and small units, as many as fit into ``room``."""
    for unit in to_load(_accounts(buffer), room, batch):
        done.loaded += _move(buffer, unit, "memory", done) or 0


def _make_room_on_disk(buffer: Buffer, target: int, accounts: Accounts, batch: int, done: Balanced) -> None:
    """Drop the coldest units on disk where the limit would not admit the spill."""
    missing = buffer.used_bytes("disk") + target - buffer.limit("disk")
    for unit in to_drop(accounts, missing, batch) if missing > 0 else ():
        with buffer.claim(unit) as held:
            if held is not None:
                held.drop()
                accounts.pop(unit)
                done.dropped += 1


def _move(buffer: Buffer, unit: str, tier: Tier, done: Balanced) -> int | None:
    """Move a unit; return the bytes moved, or None if it is claimed elsewhere.

    A damaged unit is dropped. So is one that must leave memory and has no room on a disk: it is a
    cache.
    """
    with buffer.claim(unit) as held:
        if held is None:
            return None
        try:
            moved = held.move(tier)
        except CorruptError:
            moved = 0
            held.drop()
        if not moved and tier == "disk":
            held.drop()
        if not held.segments:
            done.dropped += 1
        return moved
