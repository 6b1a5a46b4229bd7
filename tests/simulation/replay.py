"""A schedule recorded, and played again from its record, whole or in part.

Chance in a schedule is of two kinds. **Values** (a batch's rows, options, ids) are kept by the actor that
drew them, so that each gets the same again, whether others run or not. **Deeds** are what makes a schedule
long to read: faults, late arrivals, the order in which actors run, which processes there are. Without any
deed each actor runs to its end, one after the other. Any part of a schedule's deeds can be played, so a part
can be searched for that still breaks what the whole broke.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import greenlet

from simulation.plays.world import Actor, CallId, Fault, Status, World
from support.faulty import Call

WORLD = "world"
"""The name under which values are drawn when no actor runs."""
Drawn = dict[tuple[str, int], list[Any]]
"""Values by the name of the actor that drew them and their kind: N bits, or (0) between 0 and 1."""


class Run(NamedTuple):
    """An actor continues, over ``switches`` switches."""

    uid: str
    switches: int


class Arrive(NamedTuple):
    """A late call arrives."""

    at: CallId


Move = Run | Arrive


@dataclasses.dataclass(frozen=True)
class Deeds:
    """The chance of a schedule, except for values.

    ``faults``: by call; a death outside all calls has the actor's count of such places, negative.
    ``settled``: calls in flight when faults stopped, and whether each arrived then or at the end; all others
    never did.
    """

    parts: frozenset[str]
    batches: int
    processes: tuple[str, ...]
    faults: tuple[tuple[CallId, Fault], ...]
    moves: tuple[Move, ...]
    settled: tuple[tuple[CallId, bool], ...]


class _Dice(random.Random):
    """Dice that ask for each value; all other methods come down to these two."""

    def __init__(self, ask: Callable[[int], Any]) -> None:
        self._ask = ask
        super().__init__()

    def random(self) -> float:
        value: float = self._ask(0)
        return value

    def getrandbits(self, k: int, /) -> int:
        value: int = self._ask(k)
        return value

    def seed(self, *_: Any, **__: Any) -> None:
        """Ignore the seed: there is none."""


class _KeyedWorld(World):
    """A world whose values are known by the actor that drew them."""

    def __init__(self) -> None:
        self.current = None
        self.hub = greenlet.getcurrent()
        super().__init__(_Dice(lambda bits: self._value(self._who(), bits)))

    def _who(self) -> str:
        running = greenlet.getcurrent() is not self.hub and self.current is not None
        return self.current.uid if running and self.current is not None else WORLD

    def _value(self, who: str, bits: int) -> Any:
        raise NotImplementedError


class RecordingWorld(_KeyedWorld):
    """A world that plays a schedule as it is, and records it."""

    def __init__(self, chance: random.Random) -> None:
        self._plain = chance
        self._deciding = False
        self.drawn: Drawn = defaultdict(list)
        self.fates: list[tuple[CallId, Fault]] = []
        self.moves: list[Move] = []
        self.settled: list[tuple[CallId, bool]] = []
        self.processes: list[str] = []
        self._settling = False
        self._idle: set[str] = set()
        super().__init__()

    def _value(self, who: str, bits: int) -> Any:
        value = self._plain.getrandbits(bits) if bits else self._plain.random()
        if not self._deciding:
            self.drawn[who, bits].append(value)
        return value

    @contextmanager
    def _deeds(self) -> Iterator[None]:
        """Record what is drawn in the block as a deed."""
        before, self._deciding = self._deciding, True
        try:
            yield
        finally:
            self._deciding = before

    def spawn(self, name: str, body: Callable[[Actor], Any], *, faulty: bool = True) -> Actor:
        actor = super().spawn(name, body, faulty=faulty)
        if faulty and is_process(name):
            self.processes.append(actor.uid)
        return actor

    def draw(self, actor: Actor, call: Call) -> Fault | None:
        with self._deeds():
            fault = super().draw(actor, call)
        if fault not in (None, Fault.HELD_BEFORE, Fault.HELD_AFTER):
            self.fates.append(((actor.uid, actor.calls), fault))
        return fault

    def dies(self, actor: Actor) -> bool:
        with self._deeds():
            dead = super().dies(actor)
        if dead:
            self.fates.append(((actor.uid, -actor.places), Fault.CRASH_BEFORE))
        return dead

    def stand_still(self, actor: Actor, fault: Fault) -> None:
        """Hold an actor. Its next moves show that it was held, so no fault is recorded."""
        if fault is Fault.HELD_BEFORE:
            self.moves.pop()  # in this move it has done nothing
        else:
            self._idle.add(actor.uid)  # it will do nothing when it continues, but switch again
        with self._deeds():
            steps = self.chance.randint(10, 500)
        actor.hold(steps)

    def step(self) -> None:
        with self._deeds():
            arrives = bool(self.late) and self.chance.random() < self.delivers
            index = self.chance.randrange(len(self.late)) if arrives else 0
            actor = None if arrives else self._choose()
        if arrives:
            self.deliver(index)
        elif actor is not None:
            self.go_on(actor)

    def go_on(self, actor: Actor) -> None:
        if actor.uid in self._idle:
            self._idle.remove(actor.uid)
        else:
            self.moves.append(Run(actor.uid, 1))
        super().go_on(actor)

    def deliver(self, index: int) -> None:
        if self._settling:
            self.settled.append((self.late[index].at, True))
        else:
            self.moves.append(Arrive(self.late[index].at))
        super().deliver(index)

    def settle(self) -> None:
        self._settling = True
        with self._deeds():
            super().settle()
        self._settling = False
        self.settled += [(late.at, False) for late in self.late]

    def deeds(self, parts: frozenset[str], batches: int) -> Deeds:
        """Return the recorded deeds."""
        return Deeds(
            parts,
            batches,
            tuple(self.processes),
            tuple(self.fates),
            tuple(joined(self.moves)),
            tuple(self.settled),
        )


class ReplayedWorld(_KeyedWorld):
    """A world that plays these deeds, with the values that were drawn."""

    def __init__(self, drawn: Drawn, deeds: Deeds) -> None:
        self._drawn, self._places = drawn, dict[tuple[str, int], int]()
        self._faults, self._moves = dict(deeds.faults), list(reversed(deeds.moves))
        self._settled, self._processes = dict(deeds.settled), frozenset(deeds.processes)
        super().__init__()

    def _value(self, who: str, bits: int) -> Any:
        place = self._places[who, bits] = self._places.get((who, bits), -1) + 1
        known = self._drawn.get((who, bits), ())
        if place < len(known):
            return known[place]
        other = random.Random(f"{who} {bits} {place}")
        return other.getrandbits(bits) if bits else other.random()

    def spawn(self, name: str, body: Callable[[Actor], Any], *, faulty: bool = True) -> Actor:
        actor = super().spawn(name, body, faulty=faulty)
        if faulty and is_process(name) and actor.uid not in self._processes:
            actor.status, self.some_ended = Status.DONE, True
        return actor

    def draw(self, actor: Actor, call: Call) -> Fault | None:
        fault = self._faults.get((actor.uid, actor.calls))
        if fault not in (None, Fault.REFUSED, Fault.CRASH_BEFORE) and not call.writes:
            return Fault.REFUSED  # another call than the recorded one
        return fault

    def dies(self, actor: Actor) -> bool:
        return (actor.uid, -actor.places) in self._faults

    def held_until(self, steps: int) -> int:
        del steps
        return self.steps

    def step(self) -> None:
        while self._moves:
            move = self._moves.pop()
            if isinstance(move, Arrive):
                at = next((n for n, late in enumerate(self.late) if late.at == move.at), None)
                if at is not None:
                    return self.deliver(at)
                continue
            actor = next((actor for actor in self.actors if actor.uid == move.uid), None)
            if actor is not None and actor.status in (Status.READY, Status.SLEEPING):
                if move.switches > 1:
                    self._moves.append(Run(move.uid, move.switches - 1))
                return self.go_on(actor)
        return self.go_on(self._first())

    def _first(self) -> Actor:
        """Return the running actor if it is ready; else the first that is; else the one that wakes first."""
        ready = [actor for actor in self.actors if actor.status is Status.READY]
        sleeping = [actor for actor in self.actors if actor.status is Status.SLEEPING]
        if self.current in ready and self.current is not None:
            return self.current
        return ready[0] if ready else min(sleeping, key=lambda actor: actor.wakes_at)

    def go_on(self, actor: Actor) -> None:
        if actor.status is Status.SLEEPING:
            self.now = max(self.now, actor.wakes_at)
            actor.status = Status.READY
        super().go_on(actor)

    def settle(self) -> None:
        for index in reversed(range(len(self.late))):
            arrives = self._settled.get(self.late[index].at)
            if arrives:
                self.deliver(index)
            elif arrives is None:
                self.late.pop(index)


def is_process(name: str) -> bool:
    """Return whether an actor of this name is a process of its own, which may be left out; tasks may not."""
    kind = name.rpartition("/")[2]
    return kind.startswith(("driver-", "recover-", "reader-", "retirer-", "second"))


def joined(moves: list[Move]) -> Iterator[Move]:
    """Yield the same moves, consecutive ones of an actor joined."""
    held: Run | None = None
    for move in moves:
        if isinstance(move, Run) and held is not None and held.uid == move.uid:
            held = Run(held.uid, held.switches + move.switches)
            continue
        if held is not None:
            yield held
        held = move if isinstance(move, Run) else None
        if held is None:
            yield move
    if held is not None:
        yield held
