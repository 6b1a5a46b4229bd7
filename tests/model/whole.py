"""Every state of small scopes of whole processes: drivers, commands, followers, retirement, readers, losses.

``processes.py`` makes the processes of production functions of their replies. A state is the log, the stores,
the world's time, the requests that may still land, and the history of each process. Every process may stop at
any call and stay so. In each state the stores are read, and one more `tidegate recover` is tried, alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from model.processes import TICK_S, LogState, Place, Process, Program, Raised, Request, Run, Standing
from model.programs import KEYS, driver, recovers
from tidegate.errors import (
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
)
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.store import Store
from tidegate.wal.fold import Entry, decided_for
from tidegate.wal.log import Blob
from tidegate.wal.record import Folded

_names = itertools.count()
DEAD = -1
WAITING_MAX = 3_000
"""The most processes that wait for a reply; others are run again from their start."""


class Scope(NamedTuple):
    """The limits of an exploration.

    ``setup``: processes that ran before, one after the other. ``ahead``: the call up to which a process has
    run at the start. ``faults``: calls that may be lost, late or doubled, of those that ``faulty`` names.
    ``losses``: how often the log may lose its last records. ``ticks``: how often time may pass.
    ``old_copies``: how often all but ``readers`` stop, and the first store is put back as it was at the
    start. ``trims``: whether blobs are dropped. ``stops``: processes that begin when all others have been
    stopped for good. ``errors``: what a process may end with.
    """

    programs: Mapping[str, Program]
    setup: tuple[Program, ...] = (driver(0),)
    stores: int = 1
    faults: int = 0
    faulty: frozenset[str] = frozenset({"append_decision", "claim", "begin", "apply", "seal", "publish"})
    losses: int = 0
    ticks: int = 0
    old_copies: int = 0
    trims: bool = False
    ahead: Mapping[str, str] = {}
    stops: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset({"r"})
    errors: tuple[type[TidegateError], ...] = (FencedError,)


class World(NamedTuple):
    """One state. ``late``: histories whose next call may land, though nobody waits for its reply."""

    log: LogState
    stores: tuple[int, ...]
    histories: tuple[int, ...]
    late: frozenset[int] = frozenset()
    faults: int = 0
    losses: int = 0
    time: int = 0
    old_copies: int = 0


class Model:
    """The steps of a scope, for ``explore``. An invariant that breaks raises AssertionError."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.names = scope, list(scope.programs)
        self.place = Place(f"model-{next(_names)}", scope.stores, trims=scope.trims)
        self._histories: list[tuple[int, Any, str]] = []  # the one before, the reply, the process
        self._next: dict[tuple[int, object], int] = {}
        self._standings: dict[int, Standing] = {}
        self._waiting: dict[int, Run] = {}
        self._effects: dict[tuple[object, ...], tuple[int, object, Any]] = {}
        self._checked: set[object] = set()
        self.place.set(LogState(), (), 0)
        for number, program in enumerate(scope.setup):
            process = Process(f"s{number}", self.place, direct=True)
            program(process)
        log = self.place.freeze_log()
        stores = tuple(self.place.freeze(at) for at in range(scope.stores))
        roots = tuple(self._history(-1 - at, None, name) for at, name in enumerate(self.names))
        self.start = World(log, stores, roots)
        for name, told in scope.ahead.items():
            self._run_ahead(self.names.index(name), told)

    def _run_ahead(self, at: int, told: str) -> None:
        while (asked := self.standing(self.start.histories[at]).asked) and not asked.call.told.startswith(
            told
        ):
            ((_, self.start),) = itertools.islice(self._step(self.start, at, self.start.histories[at]), 1)

    # -- histories -------------------------------------------------------------------------------------

    def _history(self, before: int, reply: Any, name: str, key: object = None) -> int:
        known = before, _key(reply) if key is None else key
        if known not in self._next:
            self._next[known] = len(self._histories)
            self._histories.append((before, reply, name))
        return self._next[known]

    def standing(self, history: int) -> Standing:
        """Return where a process stands after a history."""
        if history not in self._standings:
            standing = self._run(history).standing
            silent = (OutcomeUnknownError, StoreUnavailableError) if self.scope.faults else ()
            name, error = self._histories[history][2], standing.error
            assert error is None or issubclass(error, (*self.scope.errors, *silent)), (
                f"I10: {name} ends with {error}"
            )
            self._standings[history] = standing
        return self._standings[history]

    def _run(self, history: int) -> Run:
        """Continue the process of the history before, if it still waits there; else run it from its start."""
        way, run = [history], None
        while run is None:
            before = self._histories[way[-1]][0]
            if before < 0:
                name = self._histories[history][2]
                run = Run(self.scope.programs[name], name, self.place)
            else:
                run = self._waiting.pop(before, None)
                way.append(before)
        for at in reversed(way[:-1]):
            known = self._standings[self._histories[at][0]].asked
            again = run.standing.asked
            assert known is not None, "a process went on after its end"
            assert again is not None, "a process ended early in a replay"
            assert known.call == again.call, "a process made another call in a replay"
            run.reply(self._histories[at][1])
        self._waiting[history] = run
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        return run

    # -- effects ---------------------------------------------------------------------------------------

    def _do(self, world: World, history: int, request: Request) -> tuple[World, Any, object]:
        """Do a call; return the world after it, the reply, and the reply's key."""
        if request.target == -2:
            return world, world.time * TICK_S, None
        if request.target == -1:
            self.place.set(world.log, (), world.time)
            reply = _reply(request)
            if not request.call.writes:
                return world, reply, _key(reply)
            landed = world._replace(log=self.place.freeze_log())
            self._check(world, landed)
            return landed, reply, None
        known = (history, world.stores[request.target], world.time)
        if known not in self._effects:
            self.place.set(world.log, world.stores, world.time)
            reply = _reply(request)
            at = request.target
            state = self.place.freeze(at) if request.call.writes else world.stores[at]
            self._effects[known] = state, reply, _key(reply)
        state, reply, key = self._effects[known]
        stores = (*world.stores[: request.target], state, *world.stores[request.target + 1 :])
        landed = world._replace(stores=stores)
        if landed != world:
            self._check(world, landed, request)
        return landed, reply, key

    # -- invariants ------------------------------------------------------------------------------------

    def _check(self, before: World, after: World, request: Request | None = None) -> None:
        self.place.view(after.log.records)
        if request is not None:
            self._check_flip(before, after, request)
        for known in enumerate(after.stores):
            if known not in self._checked:
                self.place.set(after.log, after.stores, after.time)
                self._check_store(known[0])
                self._checked.add(known)
        if (after.log, after.stores) not in self._checked:
            self._checked.add((after.log, after.stores))
            self._check_pair(after)
            self._check_recovered(after)

    def _check_flip(self, before: World, after: World, request: Request) -> None:
        """Check I6, I7 and I9 where a pointer moves."""
        at = request.target
        old, new = self._pointer(before, at), self._pointer(after, at)
        assert new.epoch >= old.epoch, f"I6: the store's epoch went from {old.epoch} to {new.epoch}"
        assert new.horizon >= old.horizon, f"I8: the horizon went from {old.horizon} to {new.horizon}"
        if (old.visible, old.digest) != (new.visible, new.digest):
            assert new.visible > old.visible, f"I9: visible went from {old.visible} to {new.visible}"
            filled = request.call.name == "publish_filled" and not old.visible
            assert filled or new.visible == old.visible + 1, f"I7: from {old.visible} to {new.visible}"
            epoch = int(request.call.shown.rpartition(" ")[2])
            assert epoch >= old.epoch, f"I6: epoch {epoch} flips after {old.epoch} was claimed"

    def _pointer(self, world: World, at: int) -> Any:
        return self.place.pointers[world.stores[at]]

    def _check_store(self, at: int) -> None:
        """Check I1, I5, I7: each readable version is exactly one decided history's, whole."""
        space, store = self.place.stores[at]._found, self.place.stores[at]
        if space.identity is None or not space.pointer.visible:
            return
        pointer = space.pointer
        assert pointer.horizon <= pointer.visible, f"I7: {pointer.visible} is visible below {pointer.horizon}"
        assert space.catalog[pointer.visible].digest == pointer.digest, "I1: pointer and catalog differ"
        above = None
        for version in range(pointer.visible, max(pointer.horizon, 1) - 1, -1):
            entry = space.catalog[version]
            assert entry.digest in self.place.contents, f"I5: v{version} is visible and was never decided"
            content = self.place.contents[entry.digest]
            assert above is None or self.place.parents[above] == entry.digest, (
                f"I7: v{version} is of another history"
            )
            above = entry.digest
            assert sorted(entry.tables) == sorted(content), (
                f"I1: v{version} has tables {sorted(entry.tables)}"
            )
            for table, of in entry.tables.items():
                shown = _rows(store, table, of.start, entry)
                assert shown == content[table], f"I1: v{version} is read as {shown}, not {content[table]}"

    def _check_pair(self, world: World) -> None:
        """Check that a version is the same in both stores, and in the log unless that lost records."""
        self.place.set(world.log, world.stores, world.time)
        state = self.place.view(world.log.records).state
        assert state is not None
        seen = {decided.version: decided.digest for decided in state.recent} if not world.losses else {}
        for store in self.place.stores:
            for version, entry in store._found.catalog.items():
                same = seen.setdefault(version, entry.digest) == entry.digest
                assert same, f"two stores, or log and store, have another v{version}"

    def _check_recovered(self, world: World) -> None:
        """Check I4: one more process alone makes everything visible, or refuses loudly after a loss."""
        for discard in (False, True):
            self.place.set(world.log, world.stores, world.time)
            try:
                recovers(discard_lost=discard)(Process("z", self.place, direct=True))
            except (WalGapError, FencedError) as error:
                if not world.losses:
                    raise AssertionError(f"I4: recover is refused: {error}") from error
                continue
            log = self.place.freeze_log()
            state = self.place.view(log.records).state
            assert state is not None
            for at, store in enumerate(self.place.stores):
                visible = store._found.pointer.visible
                assert visible == state.last_version or at >= max(1, len(state.stores)), (
                    f"I4: {state.last_version} are decided, {visible} visible after recover"
                )
                self._check_store(at)
            return

    def _check_notes(self, world: World, history: int) -> None:
        before = self._histories[history][0]
        known = len(self.standing(before).notes) if before >= 0 else 0
        for kind, what in self.standing(history).notes[known:]:
            visible = self._pointer(world, 0).visible
            state = self.place.view(world.log.records).state
            assert isinstance(state, Folded)
            if kind == "opened":
                assert visible >= what, f"I4: opened at v{what}, {visible} is visible"
            elif not world.losses:
                version, digest, origin = what
                decided = decided_for(state, origin)
                assert (decided and decided.digest) == digest, f"I2: {origin} is not v{version}"
                assert visible >= version, f"I3: v{version} returned, {visible} visible"

    # -- steps -----------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield everything that may happen next."""
        for history in world.late:
            request = self.standing(history).asked
            assert request is not None
            landed, _, _ = self._do(world, history, request)
            yield f"late {request.call.told} lands", landed._replace(late=landed.late - {history})
        for at, history in enumerate(world.histories):
            if history != DEAD:
                yield from self._step(world, at, history)
        if world.time < self.scope.ticks:
            yield "time passes", world._replace(time=world.time + 1)
        if world.old_copies < self.scope.old_copies:
            yield "all writers stop, an old copy is put back", self._put_back(world)
        if world.losses < self.scope.losses:
            for kept in range(2, len(world.log.records)):
                if kept > world.log.first:
                    log = world.log._replace(records=world.log.records[:kept])
                    yield f"the log keeps {kept} records", world._replace(log=log, losses=world.losses + 1)

    def _put_back(self, world: World) -> World:
        old = world._replace(
            stores=(self.start.stores[0], *world.stores[1:]), old_copies=world.old_copies + 1
        )
        kept = [
            of if name in self.scope.readers or self._is_new(of) else DEAD
            for name, of in zip(self.names, world.histories, strict=True)
        ]
        return old._replace(histories=tuple(kept), late=frozenset())

    def _is_new(self, history: int) -> bool:
        return history != DEAD and self._histories[history][0] < 0

    def _step(self, world: World, at: int, history: int) -> Iterator[tuple[str, World]]:
        name, standing = self.names[at], self.standing(history)
        request = standing.asked
        if request is None:
            return
        label = f"{name}: {request.call.told}"
        if name in self.scope.stops and self._is_new(history):
            alone = tuple(of if index == at else DEAD for index, of in enumerate(world.histories))
            world = world._replace(histories=alone)
        landed, reply, key = self._do(world, history, request)
        yield label, self._replied(landed, at, history, reply, key)
        if (
            world.faults == self.scope.faults
            or not {request.call.name, request.call.told} & self.scope.faulty
        ):
            return
        unknown = Raised(request.call.unknown, "no answer")
        faulty = landed._replace(faults=world.faults + 1)
        yield f"{label}, reply lost", self._replied(faulty, at, history, unknown)
        twice = faulty._replace(late=faulty.late | {history})
        yield f"{label}, and again later", self._replied(twice, at, history, reply, key)
        late = world._replace(faults=world.faults + 1, late=world.late | {history})
        yield f"{label} is late", self._replied(late, at, history, unknown)

    def _replied(self, world: World, at: int, history: int, reply: Any, key: object = None) -> World:
        after = self._history(history, reply, self.names[at], key)
        self._check_notes(world, after)
        standing = self.standing(after)
        if standing.asked is None:
            after = self._history(-1000 - at, None, self.names[at], ("ended", standing.error))
            self._standings.setdefault(after, standing)
        histories = (*world.histories[:at], after, *world.histories[at + 1 :])
        return world._replace(histories=histories)


def _rows(store: Store, table: str, start: int, entry: CatalogEntry) -> object:
    """Read all rows; an error is no answer."""
    try:
        rows = store.get_many(entry.read_at(table), list(KEYS)).to_pylist()
    except TidegateError as error:
        return error
    return {key: value for key, value in zip(KEYS, rows, strict=True) if value is not None}


def _reply(request: Request) -> Any:
    try:
        reply = request.effect()
    except TidegateError as error:
        return Raised(type(error), str(error))
    return list(reply) if isinstance(reply, list) else reply


def _key(reply: Any) -> object:
    if isinstance(reply, list):
        return tuple(map(_key, reply))
    if hasattr(reply, "to_pylist"):
        return repr(reply.to_pylist())
    return reply if isinstance(reply, Raised | Entry | Blob | int | str | bytes | None) else repr(reply)
