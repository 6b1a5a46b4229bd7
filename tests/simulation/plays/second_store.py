"""A second store in some of a simulation's schedules: its follower as an actor, and its invariants."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from simulation.invariants import History, Violation, require, rows_in, value_at
from simulation.plays.world import Actor
from support.faulty import FaultyStore
from tidegate.base.clock import Clock
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import (
    FencedError,
    IncompleteError,
    SnapshotExpiredError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.wal.frame import Chunk

FIRST, SECOND = "first", "second"
AT = StoreRef(SECOND, "memory://simulated-second")
EXPECTED = (
    FencedError,
    IncompleteError,
    SnapshotExpiredError,
    StoreUnavailableError,
    WalUnavailableError,
)
"""Errors that a follower may meet. A gap in the log is none of them: trimming waits for the follower."""


class SecondStore(MemoryStore):
    """A store that compares its own effects with the history of the log."""

    def __init__(self, name: str, history: History, clock: Clock) -> None:
        super().__init__(f"{name}-second", "n", clock)
        self.history = history
        self.claimed = 0

    def claim(self, epoch: int, writer: str) -> int:
        after = super().claim(epoch, writer)
        require("I6", after >= self.claimed, f"second: the epoch went from {self.claimed} to {after}")
        self.claimed = after
        return after

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        """Check I5, and apply: rows of the decided attempt, or live rows of the version that is filled."""
        fact = self.history.fact(stamp.version, "I5")
        staged, rows = self.history.staged[fact.attempt].rows, self.history.rows[stamp.version]
        for table, key, row in itertools.chain.from_iterable(map(rows_in, chunks)):
            own = staged.get(table, {}).get(key) == row
            live = value_at(row, fact.decided_at_us) is not None and rows.get(table, {}).get(key) == row
            require("I5", own or live, f"second: {table} {key!r}={row!r} is not of v{stamp.version}")
        super().apply(stamp, *chunks)

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        before, flipped = self.pointer(), super().publish(entry, epoch)
        if flipped:
            require("I7", entry.version == before.visible + 1, f"second: v{before.visible}, {entry.version}")
            require(
                "I7", not before.filling_at, f"second: v{entry.version} into a store that is being filled"
            )
            self._flipped(entry, epoch)
        return flipped

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        before, flipped = self.pointer(), super().publish_filled(entry, epoch, newer)
        if flipped:
            require(
                "I7", before.visible == 0, f"second: v{before.visible} was visible, {entry.version} filled"
            )
            for each in (entry, *newer):
                self._flipped(each, epoch)
        return flipped

    def _flipped(self, entry: CatalogEntry, epoch: int) -> None:
        fact = self.history.fact(entry.version, "I5")
        require("I6", epoch >= self.claimed, f"second: epoch {epoch} flipped after {self.claimed} claimed")
        require(
            "I1", entry.digest == fact.digest, f"second: the flip of {entry.version} is of another history"
        )
        self.history.check_reads(entry.version, self)


def follow_on(driver: Coordinator, store: SecondStore, actor: Actor, steps: int) -> Follower:
    """Run a follower's thread for some steps, even if its driver dies."""
    filled_first = actor.world.chance.random() < 0.5
    follower = follower_for(driver, AT, FaultyStore(store, actor), fill_first=filled_first)
    for _ in range(steps):
        driver.clock.sleep(actor.world.chance.random())
        try:
            if follower.step():
                follower.went_well(level=True)
        except EXPECTED as error:
            follower.retried(error)
            if follower.failed is not None:
                return follower
        except TidegateError as error:
            raise Violation(f"I10: a follower cannot meet {type(error).__name__}: {error}") from error
    return follower


def check_end(history: History, store: SecondStore, key_groups: int) -> None:
    """Check I1, I4: the second store shows everything decided, whole, at every readable version."""
    decided, pointer = len(history.facts), store.pointer()
    require(
        "I4", pointer.visible == decided, f"second: {decided} decided, {pointer.visible} visible at the end"
    )
    for version in range(max(1, pointer.horizon), decided + 1):
        history.check_reads(version, store)
    history.check_scans(decided, key_groups, store)
