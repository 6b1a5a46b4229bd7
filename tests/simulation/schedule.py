"""One schedule of the simulation: its parts, its actors, and the invariants at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from simulation.coverage import Tally
from simulation.invariants import History, Violation, require, watch
from simulation.plays.actors import KEY_GROUPS, KEYS, TABLES, Query, life, read_on, retire_all, retire_on
from simulation.plays.expiring_tables import ExpiringTables
from simulation.plays.pipelines import Pipelines
from simulation.plays.second_store import SecondStore, check_end
from simulation.plays.state_hosts import StateHosts
from simulation.plays.world import Actor, VirtualClock, World
from tidegate.sinks.memory import store
from tidegate.wal import memory_log

PARTS = {"second": 0.25, "expiry": 0.25, "state": 0.02, "pipelined": 0.2, "drops": 0.2}
"""The share of schedules with a second store, with rows that expire, with caches of state (which are files),
with pipelined commits, and with tables that are dropped.
"""


def dice(seed: int, index: int) -> random.Random:
    """Return the source of all chance in one schedule."""
    return random.Random(f"tidegate {seed} {index}")


def parts_of(seed: int, index: int) -> frozenset[str]:
    """Choose a schedule's parts by dice of their own, so that schedules without a part stay the same."""
    return frozenset(
        part for part, share in PARTS.items() if random.Random(f"{part} {seed} {index}").random() < share
    )


def play(
    seed: int,
    index: int,
    tally: Tally,
    world: World,
    *,
    folder: Path | None = None,
    parts: Collection[str] | None = None,
    batches: int | None = None,
) -> None:
    """Play one schedule. Violation: its message has the invariant, the seed and the trace's end.

    With a folder, log and store are the embedded ones, in files; otherwise the reference ones. ``parts`` and
    ``batches``, the largest number of batches, replace the schedule's own.
    """
    name = f"simulation-{seed}-{index}"
    history = History()
    watch(history, name, VirtualClock(world), folder)
    query = Query(world, history)
    own = parts_of(seed, index) if parts is None else parts
    if "second" in own and query.trims:
        query.batches += 2  # so that the log can be cut between the two stores' versions
    query.batches = min(query.batches, batches or query.batches)
    if folder is None and "second" in own:
        query.second = SecondStore(name, history, VirtualClock(world))
    if "expiry" in own:
        query.expiring = ExpiringTables(world.chance, TABLES)
    if "state" in own:
        query.hosts = StateHosts(world, history, KEYS)
    if "pipelined" in own:
        query.pipelines = Pipelines(world, history)
    query.drops_tables = "drops" in own
    try:
        _run(world, history, query)
    except Violation as violation:
        again = f"python -m simulation.run --seed {seed} --only {index}"
        raise Violation(f"{violation}\nrepeat: {again} (--shrink makes it short)\n{world.told()}") from None
    finally:
        for actor in world.actors:
            actor.greenlet.throw()
        if query.hosts is not None:
            tally.hits += query.hosts.hits
            query.hosts.close()
        if query.pipelines is not None:
            tally.in_flight += query.pipelines.in_flight_seen
        history.log.close()
        history.store.close()
        memory_log.forget(name)
        store.forget(name)
        store.forget(f"{name}-second")
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

    world.settle()
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
    if query.second is not None:
        check_end(history, query.second, KEY_GROUPS)
    if not query.trims:
        retire_all(query)
        left = history.store.vacuum(dry_run=True)
        require("I11", not left.rows, f"{left.rows} rows that no reader reaches were not retired")
        history.check_scans(decided, KEY_GROUPS)
