"""The simulation: production's open, commit and recover, under every fault, from one seed.

    python -m tidegate.testing.simulation --schedules 1000000 --seed 1 --workers 2

One schedule is a Spark query of a few batches, its drivers (some of them paused and woken
later), their tasks (some of them run twice, or on after their driver died) and readers. Every
call of log and store may be refused, take effect and lose its reply, arrive late or twice, or
kill its caller. ``history.py`` checks the invariants at each effect, this file what errors
prove, and that at the end a fresh driver makes everything that was decided visible.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.committers.states import TABLE, Event, Machine, State
from tidegate.sinks import memory_store
from tidegate.testing.history import History, Violation, require, watch
from tidegate.testing.scenario import KEY_GROUPS, Query, life, read_on, retire_on
from tidegate.testing.world import Actor, Fault, VirtualClock, World
from tidegate.wal import memory_log

CHUNK = 250
Transition = tuple[State, Event]


@dataclasses.dataclass
class Tally:
    """What many schedules did."""

    schedules: int = 0
    calls: int = 0
    versions: int = 0
    faults: Counter[Fault] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    transitions: Counter[Transition] = dataclasses.field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.calls += other.calls
        self.versions += other.versions
        self.faults += other.faults
        self.errors += other.errors
        self.transitions += other.transitions

    def uncovered(self) -> list[Transition]:
        """Transitions of the state table that no schedule took."""
        listed = [(state, event) for state, events in TABLE.items() for event in events]
        return [transition for transition in listed if transition not in self.transitions]

    def report(self) -> str:
        """The summary, one line per kind of count."""
        faults = ", ".join(f"{fault.value} {self.faults[fault]:,}" for fault in Fault)
        errors = ", ".join(f"{name} {count:,}" for name, count in sorted(self.errors.items()))
        uncovered = ", ".join(f"{state.name} on {event.name}" for state, event in self.uncovered())
        covered = sum(len(events) for events in TABLE.values()) - len(self.uncovered())
        return "\n".join(
            [
                f"{self.schedules:,} schedules, {self.calls:,} calls, {self.versions:,} versions",
                f"faults: {faults}",
                f"errors that drivers met: {errors}",
                f"transitions covered: {covered}, not covered: {uncovered or 'none'}",
            ]
        )


def run_schedule(seed: int, index: int, tally: Tally, folder: Path | None = None) -> None:
    """One schedule. Violation: its message has the invariant, the seed and the trace's end.

    With a folder, log and store are the embedded ones, in files; else the reference ones.
    """
    chance = random.Random(f"tidegate {seed} {index}")
    name = f"simulation-{seed}-{index}"
    world, history = World(chance), History()
    watch(history, name, VirtualClock(world), folder)
    query = Query(world, history)
    try:
        _run(world, history, query)
    except Violation as violation:
        again = f"python -m tidegate.testing.simulation --seed {seed} --only {index}"
        raise Violation(f"{violation}\nrepeat: {again}\n{world.told()}") from None
    finally:
        for actor in world.actors:
            actor.greenlet.throw()
        history.log.close()
        history.store.close()
        memory_log.forget(name)
        memory_store.forget(name)
        tally.schedules += 1
        tally.calls += world.calls
        tally.versions += len(history.facts)
        tally.faults += world.faults
        tally.errors += query.errors


def _run(world: World, history: History, query: Query) -> None:
    world.spawn("supervisor", lambda actor: _supervise(world, query, actor), faulty=False)
    for number in range(world.chance.randrange(3)):
        world.spawn(f"reader-{number}", _reader(query))
    for number in range(world.chance.choice([0, 0, 1, 2])):
        world.spawn(f"retirer-{number}", lambda actor: retire_on(query, actor))
    world.run()

    # Faults stop. What is still on its way arrives now, later or never; an Open that arrived
    # after the last driver's own would fence it, rightly, so those do not wait.
    for index in reversed(range(len(world.late))):
        is_open = world.late[index][1].shown == "open"
        dice = world.chance.random()
        if dice < 0.4:
            world.deliver(index)
        elif is_open or dice < 0.5:
            world.late.pop(index)
    query.restore_checkpoint()
    last: list[Actor] = []
    if world.chance.random() < 0.5:
        last.append(world.spawn("recover", lambda actor: life(query, actor, only_recover=True), faulty=False))
        world.run()
        history.opened(len(history.facts))
    last.append(world.spawn("last", lambda actor: life(query, actor), faulty=False))
    world.run()
    while world.late:
        world.deliver(len(world.late) - 1)
    for actor in last:
        require("I4", actor.error is None, f"{actor.name} failed without faults: {actor.error!r}")
    _check_end(history, query)


def _supervise(world: World, query: Query, actor: Actor) -> None:
    """Start a driver, and another after some time, whether the first still runs or not."""
    for number in range(world.chance.randint(1, 4)):
        recovers = number > 0 and world.chance.random() < 0.15
        body = _life(query, only_recover=recovers)
        world.spawn(f"{'recover' if recovers else 'driver'}-{number}", body)
        actor.hold(world.chance.choice([20, 60, 200, 1_000]))


def _life(query: Query, *, only_recover: bool) -> Callable[[Actor], Any]:
    return lambda actor: life(query, actor, only_recover=only_recover)


def _reader(query: Query) -> Callable[[Actor], Any]:
    return lambda actor: read_on(query, actor)


def _check_end(history: History, query: Query) -> None:
    decided = len(history.facts)
    require("I4", history.visible == decided, f"{decided} decided, {history.visible} visible at the end")
    batches = [fact.origin for fact in history.facts]
    require("I2", len(batches) == query.batches, f"{query.batches} batches made the versions of {batches}")
    for version in range(max(1, history.store.pointer().horizon), decided + 1):
        history.check_reads(version)
    history.check_scans(decided, KEY_GROUPS)


# -- many schedules -------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_transitions(transitions: Counter[Transition]) -> Iterator[None]:
    """Count what every Machine of this process does."""
    plain = Machine.on

    def counting(machine: Machine, event: Event) -> State:
        transitions[machine.state, event] += 1
        return plain(machine, event)

    setattr(Machine, "on", counting)  # noqa: B010 - a type checker takes it for a bound method
    try:
        yield
    finally:
        setattr(Machine, "on", plain)  # noqa: B010


def run_schedules(seed: int, indexes: Sequence[int], folder: Path | None = None) -> Tally:
    """These schedules, one after the other. Violation: the first that breaks an invariant."""
    tally = Tally()
    with counted_transitions(tally.transitions):
        for index in indexes:
            run_schedule(seed, index, tally, folder)
    return tally


def main(argv: Sequence[str] | None = None) -> int:
    """Run schedules, print progress and the summary; 1 when an invariant broke."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", type=int, help="one schedule, by its number")
    parser.add_argument("--folder", type=Path, help="use the embedded log and store, in files here")
    args = parser.parse_args(argv)
    numbers = range(args.schedules) if args.only is None else [args.only]
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    total, started = Tally(), time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        running = [pool.submit(run_schedules, args.seed, chunk, args.folder) for chunk in chunks]
        try:
            for done in concurrent.futures.as_completed(running):
                total.add(done.result())
                seconds = time.monotonic() - started
                say(f"{total.schedules:,} schedules in {seconds:.0f} s, {total.versions:,} versions")
        except Violation as violation:
            pool.shutdown(wait=False, cancel_futures=True)
            say(str(violation))
            return 1
    say(total.report())
    return 0


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
