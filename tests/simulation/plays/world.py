"""A small world with its own time, actors and faults, all of them from one seed.

Every actor is a greenlet. It yields control at each call of the log or the store, before the call takes
effect and again before the reply arrives, so that others can run in between. Nothing else switches; between
two calls an actor runs alone, as one thread does between two messages. The same seed gives the same schedule,
event by event.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import greenlet

from simulation.invariants import Violation
from support.faulty import Call
from tidegate.base.clock import Clock
from tidegate.errors import TidegateError

T = TypeVar("T")
STEPS_MAX = 60_000
TRACE_MAX = 4_000


class Crashed(BaseException):
    """Kills the actor that meets it, as SIGKILL would: nothing of it continues."""


class Fault(enum.Enum):
    """The faults that a call may suffer."""

    REFUSED = "refused"
    LOST = "done, reply lost"
    LATE = "reply lost, done later"
    TWICE = "done, and again later"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CRASH_LATE = "crash, done later"
    HELD_BEFORE = "held before"
    HELD_AFTER = "held after"


FOR_READS = (Fault.REFUSED, Fault.CRASH_BEFORE, Fault.HELD_BEFORE, Fault.HELD_AFTER)


CallId = tuple[str, int]
"""The identity of a call: the actor that makes it, and its number among that actor's calls."""


class Late(NamedTuple):
    """A call in flight, whose caller no longer waits."""

    who: str
    at: CallId
    call: Call
    effect: Callable[[], Any]


class Status(enum.Enum):
    READY = "ready"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    DONE = "done"


READY, SLEEPING = Status.READY, Status.SLEEPING


class Actor:
    """One process or task: a body that runs until it returns, raises, or is killed.

    It is the port of its own log and store wrappers. ``faulty`` False: its calls suffer no faults.
    """

    def __init__(self, world: World, name: str, body: Callable[[Actor], Any], *, faulty: bool) -> None:
        self.world, self.name, self.faulty = world, name, faulty
        self.uid = world.uid_of(name)
        self.calls = self.places = 0
        self.status = Status.READY
        self.wakes_at = 0.0
        self.held_until = 0
        self.result: Any = None
        self.error: TidegateError | None = None
        self.crashed = False
        self.waiter: Actor | None = None
        self._body = body
        self.greenlet = greenlet.greenlet(self._run, parent=world.hub)

    @property
    def done(self) -> bool:
        return self.status is Status.DONE

    def _run(self) -> None:
        try:
            self.result = self._body(self)
        except Crashed:
            self.crashed = True
        except TidegateError as error:
            self.error = error
        except Violation as violation:
            self.world.violation = violation
        except Exception:  # noqa: BLE001 - any other exception is a finding
            what = traceback.format_exc()
            self.world.violation = Violation(f"I10: {self.name} met an unexpected exception\n{what}")
        self.status = Status.DONE
        self.world.some_ended = True
        if self.waiter is not None and self.waiter.status is Status.WAITING:
            self.waiter.status = Status.READY
        self.world.note(self.name, "ends", _ending(self))

    def switch(self) -> None:
        """Let others run."""
        self.world.hub.switch()

    def sleep(self, seconds: float) -> None:
        self.status, self.wakes_at = Status.SLEEPING, self.world.now + seconds
        self.switch()

    def wait_any(self, actors: Sequence[Actor]) -> None:
        """Wait until one of them is done."""
        while not any(actor.done for actor in actors):
            for actor in actors:
                actor.waiter = self
            self.status = Status.WAITING
            self.switch()

    # -- the port ----------------------------------------------------------------------------------

    def call(self, call: Call, effect: Callable[[], T]) -> T:
        """Make one call of the log or the store, with the fault that chance gives it."""
        world = self.world
        world.calls += 1
        self.calls += 1
        self.switch()
        fault = world.draw(self, call) if self.faulty else None
        if fault is not None:
            world.faults[fault] += 1
        return self._with(fault, call, effect)

    def _with(self, fault: Fault | None, call: Call, effect: Callable[[], T]) -> T:
        world, rest = self.world, call.told
        if fault is None:
            world.note(self.name, rest, "")
            result = effect()
            self.switch()
            return result
        if fault is Fault.HELD_BEFORE:
            world.stand_still(self, fault)
        if fault in (Fault.CRASH_BEFORE, Fault.REFUSED):
            world.note(self.name, rest, fault.value)
            raise Crashed if fault is Fault.CRASH_BEFORE else call.refused(f"simulated: {call.name}")
        if fault in (Fault.LATE, Fault.CRASH_LATE, Fault.TWICE):
            world.late.append(Late(self.name, (self.uid, self.calls), call, effect))
        if fault in (Fault.LATE, Fault.CRASH_LATE):
            world.note(self.name, rest, fault.value)
            raise Crashed if fault is Fault.CRASH_LATE else call.unknown(f"simulated: {call.name}")
        world.note(self.name, rest, fault.value)
        result = effect()
        if fault is Fault.CRASH_AFTER:
            raise Crashed
        if fault is Fault.HELD_AFTER:
            world.stand_still(self, fault)
        self.switch()
        if fault is Fault.LOST:
            raise call.unknown(f"simulated: {call.name}")
        return result

    def hold(self, steps: int) -> None:
        """Pause for ``steps`` steps of the others, or until none of them can move."""
        self.held_until = self.world.held_until(steps)
        self.switch()

    def may_crash(self) -> None:
        """Mark a place outside all calls where the process may die."""
        self.places += 1
        if self.faulty and self.world.dies(self):
            self.world.note(self.name, "between two batches", Fault.CRASH_BEFORE.value)
            raise Crashed


def _ending(actor: Actor) -> str:
    if actor.crashed:
        return "killed"
    return f"{type(actor.error).__name__}: {actor.error}" if actor.error else ""


@dataclasses.dataclass
class World:
    """Time, actors, calls in flight, and the dice."""

    chance: random.Random

    def __post_init__(self) -> None:
        self.hub = greenlet.getcurrent()
        self.now = 0.0
        self.steps = self.calls = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.late: list[Late] = []
        self.spawned: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.trace: deque[tuple[float, str, str, str]] = deque(maxlen=TRACE_MAX)
        self.violation: Violation | None = None
        self.some_ended = False
        # Each schedule has its own mixture: many kinds at once hide what one kind alone would show.
        levels = [0.0, 0.0, 0.01, 0.03, 0.12]
        self.rates = {fault: self.chance.choice(levels) for fault in Fault}
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_LATE):
            self.rates[fault] /= 6
        self._likely = {
            writes: [(fault, self.rates[fault]) for fault in kinds if self.rates[fault]]
            for writes, kinds in ((True, Fault), (False, FOR_READS))
        }
        self.delivers = self.chance.choice([0.002, 0.02, 0.2])
        self.outages = [self._outage() for _ in range(self.chance.choice([0, 0, 1, 2, 3]))]
        self.hurries = self.chance.choice([0.0, 0.01, 0.2])

    def _outage(self) -> tuple[int, int, str, Fault]:
        """Choose an outage: its first and last step, the calls that fail (by prefix), and their fault."""
        first = self.chance.randint(0, 400)
        names = self.chance.choice(
            ["append_decision", "append_decision decided", "decisions", "log.", "publish", "pointer", "seal"]
        )
        fault = self.chance.choice([Fault.REFUSED, Fault.LOST, Fault.LATE])
        return first, first + self.chance.randint(20, 300), names, fault

    def note(self, who: str, what: str, outcome: str) -> None:
        self.trace.append((self.now, who, what, outcome))

    def told(self, last: int = 120) -> str:
        """Format the end of the trace, one line per event."""
        events = list(self.trace)[-last:]
        return "\n".join(f"{at:9.3f}  {who:<14} {what:<34} {out}".rstrip() for at, who, what, out in events)

    def spawn(self, name: str, body: Callable[[Actor], Any], *, faulty: bool = True) -> Actor:
        """Add an actor; it runs when the scheduler chooses it."""
        actor = Actor(self, name, body, faulty=faulty)
        self.actors.append(actor)
        return actor

    def uid_of(self, name: str) -> str:
        """Return a name that no other actor has, for the next one of this name."""
        self.spawned[name] += 1
        return name if self.spawned[name] == 1 else f"{name}~{self.spawned[name]}"

    def dies(self, actor: Actor) -> bool:
        """Return whether the actor dies here, outside all calls."""
        del actor
        return self.chance.random() < self.rates[Fault.CRASH_BEFORE]

    def held_until(self, steps: int) -> int:
        """Return the step until which an actor is held that is held for ``steps`` steps."""
        return self.steps + steps

    def stand_still(self, actor: Actor, fault: Fault) -> None:
        """Hold an actor, as a fault does."""
        del fault
        actor.hold(self.chance.randint(10, 500))

    def draw(self, actor: Actor, call: Call) -> Fault | None:
        """Choose the fault of this call."""
        del actor
        for first, last, names, fault in self.outages:
            if first <= self.steps <= last and call.told.startswith(names):
                return fault if call.writes else Fault.REFUSED
        dice = self.chance.random()
        for fault, rate in self._likely[call.writes]:
            dice -= rate
            if dice < 0:
                return fault
        return None

    # -- the scheduler -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run until every actor is done. Violation: one was found, or they never end."""
        while True:
            if self.some_ended:
                self.actors, self.some_ended = [actor for actor in self.actors if not actor.done], False
            if not self.actors:
                return
            self.steps += 1
            if self.steps > STEPS_MAX:
                names = [f"{actor.name} {actor.status.value}" for actor in self.actors]
                raise Violation(f"liveness: no end after {STEPS_MAX} steps: {names}")
            self.step()

    def step(self) -> None:
        """Let one thing happen: a late call arrives, or an actor continues to its next switch."""
        if self.late and self.chance.random() < self.delivers:
            self.deliver(self.chance.randrange(len(self.late)))
            return
        actor = self._choose()
        if actor is not None:
            self.go_on(actor)

    def go_on(self, actor: Actor) -> None:
        """Run the actor to its next switch."""
        self.current = actor
        actor.greenlet.switch()
        self._check()

    def settle(self) -> None:
        """Let each call in flight arrive now, or never, or (it stays) at the end: faults have stopped.

        An Open that arrived after the last driver's own would fence it, rightly, so those do not stay.
        """
        for index in reversed(range(len(self.late))):
            is_open = self.late[index].call.shown == "open"
            dice = self.chance.random()
            if dice < 0.4:
                self.deliver(index)
            elif is_open or dice < 0.5:
                self.late.pop(index)

    def _choose(self) -> Actor | None:
        steps, ready, sleeping = self.steps, [], []
        for actor in self.actors:
            if actor.status is READY:
                if actor.held_until <= steps:
                    ready.append(actor)
            elif actor.status is SLEEPING:
                sleeping.append(actor)
        if sleeping and (not ready or self.chance.random() < self.hurries):
            first = min(sleeping, key=lambda a: a.wakes_at)
            self.now = max(self.now, first.wakes_at)
            first.status = Status.READY
            return first if first.held_until <= self.steps else None
        if ready:
            return self.chance.choice(ready)
        held = [a for a in self.actors if a.status is Status.READY]
        if not held:
            raise Violation(f"liveness: everyone waits: {[actor.name for actor in self.actors]}")
        min(held, key=lambda a: a.held_until).held_until = 0
        return None

    def deliver(self, index: int) -> None:
        """Let one late call arrive; nobody receives its answer."""
        late = self.late.pop(index)
        self.note(f"({late.who})", late.call.told, "arrives late")
        try:
            late.effect()
        except TidegateError as error:
            self.note(f"({late.who})", late.call.name, f"{type(error).__name__}, unheard")
        self._check()

    def _check(self) -> None:
        if self.violation is not None:
            raise self.violation

    def run_tasks(
        self, name: str, bodies: Sequence[Callable[[Actor], T]], *, faulty: bool, tries: int = 3
    ) -> list[T]:
        """Run tasks as Spark runs a stage: a failed task is tried again, a slow one runs twice at once.

        The first result of each task counts. Losers are not stopped: they continue as zombies.
        """
        waiter = self.current
        assert waiter is not None
        results: dict[int, T] = {}
        running: list[tuple[int, Actor]] = []
        tried: Counter[int] = Counter()

        def start(index: int) -> None:
            tried[index] += 1
            actor = self.spawn(f"{name}.{index}.{tried[index]}", bodies[index], faulty=faulty)
            running.append((index, actor))

        for index in range(len(bodies)):
            start(index)
            if faulty and self.chance.random() < 0.15:
                start(index)
        while len(results) < len(bodies):
            waiter.wait_any([actor for _, actor in running])
            for index, actor in [entry for entry in running if entry[1].done]:
                running.remove((index, actor))
                if actor.error is None and not actor.crashed:
                    results.setdefault(index, actor.result)
                elif index in results or any(other == index for other, _ in running):
                    continue
                elif tried[index] <= tries:
                    start(index)
                else:
                    raise actor.error or TaskLostError(f"task {index} was killed {tries} times")
        return [results[index] for index in range(len(bodies))]


class TaskLostError(TidegateError):
    """Every try of a task was killed: Spark reports that as a failed job."""


class VirtualClock(Clock):
    """A process's clock in a world: virtual time, a wrong wall clock, ids from the seed."""

    EPOCH_US = 1_700_000_000_000_000

    def __init__(self, world: World, skew_us: int = 0) -> None:
        self._world, self._skew_us = world, skew_us

    def now_us(self) -> int:
        return self.EPOCH_US + self._skew_us + int(self._world.now * 1e6)

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        assert self._world.current is not None
        self._world.current.sleep(seconds)

    def new_id(self) -> str:
        return f"{self._world.chance.getrandbits(64):016x}"
