"""Pipelined commits in some of a simulation's schedules: production's ``Pipeline``, both sides as actors.

The two actors of a driver are threads of one process: when one is killed, so is the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from simulation.invariants import History, live, require
from simulation.plays.world import Actor, Crashed, Status, TaskLostError, World
from support.faulty import Backwards, Call, FaultyLog, FaultyStore
from tidegate.committers.background.pipeline import Changes, Pipeline
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import (
    SnapshotExpiredError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.keys.groups import key_group
from tidegate.sinks.cache.in_flight import InFlightVersions
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.rules.layout import payloads

T = TypeVar("T")


class Process(Changes):
    """The process of two actors: their port, and how they wait for each other in the world's time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._dead = world, False
        self._waiting: list[Actor] = []

    @property
    def _current(self) -> Actor:
        assert self._world.current is not None
        return self._world.current

    def die(self) -> None:
        """Kill all of it."""
        self._dead = True
        self.tell()

    def call(self, call: Call, effect: Callable[[], T]) -> T:
        """Make a call as the actor that is running."""
        self._check()
        try:
            return self._current.call(call, effect)
        except Crashed:
            self.die()
            raise
        finally:
            self._check()  # the other actor may have been killed meanwhile

    def _check(self) -> None:
        if self._dead:
            raise Crashed

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            if not actor.done:
                actor.status = Status.READY

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        # Without faults no deadline may pass, however far the world's time jumps.
        end = self._world.now + timeout_s if self._current.faulty else math.inf
        while not holds():
            if self._world.now >= end:
                return False
            self._waiting.append(self._current)
            if math.isinf(end):
                self._current.status = Status.WAITING
                self._current.switch()
            else:
                self._current.sleep(end - self._world.now)
            self._check()
        return True


class Pipelines:
    """The pipelines of one schedule's drivers: their number of versions in flight, and their checks."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history = world, history
        self._most = history.in_flight_max = world.chance.randint(1, 3)
        self._of: dict[str, Pipeline] = {}
        self.in_flight_seen = 0
        """The versions in flight of all reads of state."""

    def reads_state(self, driver: Coordinator, *, cached: bool) -> tuple[InFlightVersions | None, bool]:
        """Choose how the next barrier reads state: by versions in flight or None; whether it waits.

        Tasks with a cache read state in any case.
        """
        dice = 1.0 if cached else self._world.chance.random()
        in_flight = self._of[driver.writer].in_flight_versions() if dice > 0.5 else None
        return in_flight, dice < 0.3 or (cached and in_flight is None)

    def epoch_of(self, error: TidegateError, driver: Coordinator, epoch: int) -> int:
        """Return the epoch that an error of this driver is about: the pipeline's, if it ended that."""
        pipeline = self._of[driver.writer]
        return pipeline.line_epoch if error.__cause__ is pipeline.failed is not None else epoch

    @contextlib.contextmanager
    def beside(self, driver: Coordinator, actor: Actor) -> Iterator[Pipeline]:
        """Yield a pipeline of this driver, drained at the end; its completing side is an actor of its own.

        After an error it is drained too, as by a sink that releases; errors of that drain are not raised.
        """
        process = Process(self._world)
        driver.decisions.log = FaultyLog(self._history.log, process)
        driver.store = FaultyStore(self._history.store, process)
        driver.options = dataclasses.replace(driver.options, commit_in_flight=self._most)
        pipeline = self._of[driver.writer] = Pipeline(driver, changes=process)
        completing = self._world.spawn(
            f"{actor.name}/pipeline", lambda _: pipeline.run(math.inf), faulty=actor.faulty
        )
        deadline_s = driver.options.apply_deadline_s
        try:
            try:
                yield pipeline
                pipeline.drain(deadline_s)
                shown, last = self._history.visible, driver.folded.last_version
                require("I3", shown >= last, f"version {last} was drained, {shown} is visible")
            except Exception:
                with contextlib.suppress(Exception):
                    pipeline.drain(deadline_s)
                raise
            finally:
                pipeline.stop()
            actor.wait_any([completing])
        except BaseException as error:
            if not isinstance(error, Exception):
                process.die()
            raise

    def read_state(
        self, actor: Actor, base_version: int, in_flight: InFlightVersions, at_us: int, key_groups: int
    ) -> None:
        """Check I1: stateful calls read exactly the base version, as of that time, and nothing older."""
        history = self._history
        self.in_flight_seen += len(in_flight.versions)
        store, log = FaultyStore(history.store, actor), FaultyLog(history.log, actor)
        state = StateAt(store, base_version, in_flight, lambda: Backwards(log), range(key_groups))
        shown = live(history.rows[base_version], at_us)
        for table, start in history.starts[base_version].items():
            expected = shown.get(table, {})
            keys = sorted({key for rows in history.rows for key in rows.get(table, {})})
            try:
                numbers = pa.array([key_group(key, key_groups) for key in keys], pa.int32())
                rows = pa.record_batch([numbers, pa.array(keys, pa.binary())], ["g", "k"])
                values = payloads(state.get_stored(table, start, rows), at_us).to_pylist()
            except (SnapshotExpiredError, StoreUnavailableError, WalUnavailableError, WalGapError) as error:
                raise TaskLostError(str(error)) from error
            found = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
            what = f"state of {table} was read as {found} at version {base_version}, it holds {expected}"
            require("I1", found == expected, what)
