"""The protocol in a small scope: some drivers, some batches, and everything that may go wrong.

Only I/O is abstracted. The effect of a record is computed by ``wal/fold.py``, the successor of a state by
``committers/states.py`` (``TABLE``, ``ACTIONS``, ``after_fold``, ``after_read_back``): the same functions as
in production, not a description of them. The log is the tuple of its valid records. A void one changes
nothing that a driver can observe, except that it makes a driver read where it need not have; both are
explored. Every append may be lost, late or doubled, every claim and flip may be repeated at any time, and
every driver may stop permanently or wake later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.committers import states
from tidegate.committers.states import Action, Event, State
from tidegate.sinks.records import Pointer
from tidegate.wal import fold as folding
from tidegate.wal.record import (
    AnyRecord,
    BatchOrigin,
    Decided,
    DecidedVersion,
    Folded,
    Genesis,
    Open,
    encode_record,
)

LINEAGE = "query-1"
CLAIMED = ("recover", "recovering", "ready", "commit")
"""Phases of a driver that has claimed its epoch in the store."""
FINAL = (State.FENCED, State.STALLED, State.BROKEN)
"""States of a version in flight at which its pipeline stops."""


@dataclasses.dataclass(frozen=True)
class Scope:
    """The limits of the exploration, and rules of the driver that a test may switch off.

    ``lives``: drivers that ever start, each of which may sleep while others run. ``attempts``: over all
    drivers. ``opens``: Opens that one driver may send. ``in_flight``: versions that one driver may have
    decided and not yet made visible, the pipelined commit; 0 is the one that completes its own version.
    """

    lives: int = 2
    batches: int = 2
    attempts: int = 2
    opens: int = 2
    in_flight: int = 0
    folds_through_own_open: bool = True
    claims: bool = True
    flips_from_predecessor: bool = True
    asks_which_attempt_won: bool = True
    reads_versions_in_flight: bool = True
    completes_fenced_versions: bool = True


class Actor(NamedTuple):
    """One driver. ``view`` records of the log are folded, except those in ``blind``.

    ``line``: its versions in flight, oldest first. ``line_state`` and ``line_epoch`` are of the first one,
    which the completing side of the pipeline works on while the other fields change.
    """

    phase: str = "new"
    state: State = State.READY
    view: int = 0
    blind: tuple[int, int] = (0, 0)
    epoch: int = 0
    tried: int = 0
    opens: int = 0
    record: bytes = b""
    acked: bool = False
    landed: bool = False
    known: bool = False
    version: int = 0
    target: int = 0
    line: tuple[int, ...] = ()
    line_state: State = State.DECIDED
    line_epoch: int = 0


class World(NamedTuple):
    """One state. ``late``: appends that may still land. ``requests``: to the store, repeatable."""

    log: tuple[bytes, ...] = ()
    late: frozenset[bytes] = frozenset()
    visible: int = 0
    digest: str = ""
    epoch: int = 0
    applied: frozenset[tuple[int, str]] = frozenset()
    requests: frozenset[tuple[str, int, int, str]] = frozenset()
    actors: tuple[Actor, ...] = ()
    attempts: int = 0
    conflicts: frozenset[str] = frozenset()


Steps = Iterator[tuple[str, World]]


class Model:
    """The steps of a scope, for ``explore``. An invariant that breaks raises AssertionError."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.start = World(actors=tuple(Actor() for _ in range(scope.lives)))
        genesis = Genesis(
            namespace="u", writer="-", epoch=0, prev_digest="", key_groups=1, name="n", created_at_us=0
        )
        self._folded: dict[tuple[bytes, ...], Folded | None] = {(): folding.fold(None, genesis)}
        self._records: dict[bytes, AnyRecord] = {}

    # -- the log -----------------------------------------------------------------------------------

    def folded(self, log: tuple[bytes, ...]) -> Folded:
        """Fold these records with production's fold."""
        state = self._folded.get(log)
        if state is None:
            content = log[-1]
            state = folding.fold(self.folded(log[:-1]), self._records[content], content)
            assert state is not None
            self._folded[log] = state
        return state

    def seen(self, world: World, actor: Actor) -> Folded:
        """Return the fold that this driver has read."""
        first, end = actor.blind
        return self.folded(world.log[:first] + world.log[end : actor.view])

    def land(self, world: World, content: bytes) -> World:
        """Let a record arrive: a void one changes nothing. I2, I7 and proofs are checked here."""
        before, record = self.folded(world.log), self._records[content]
        if folding.why_void(before, record) is not None:
            return world
        log = (*world.log, content)
        after = self.folded(log)
        if isinstance(record, Decided):
            assert record.version == before.last_version + 1, (
                f"I7: v{record.version} leaves a hole or a double"
            )
            twice = [f for f in before.recent if folding.same_barrier(f.origin, record.origin)]
            assert not twice, f"I2: {record.origin} makes a second version"
            assert record.attempt not in world.conflicts, f"proof: {record.attempt} was called undecided"
            assert record.source_offsets == _attempts(before, 1, before.last_version), (
                f"I1: v{record.version} was made from the state of {record.source_offsets or 'nothing'}"
            )
        assert after.epoch >= before.epoch, "the log's epoch went back"
        late = frozenset(r for r in world.late if folding.why_void(after, self._records[r]) is None)
        return world._replace(log=log, late=late)

    def _send(self, world: World, at: int, actor: Actor, record: AnyRecord) -> Iterator[tuple[str, World]]:
        """Yield the outcomes of an append: acked, acked and doubled later, its reply lost, or late."""
        content = encode_record(record)
        self._records.setdefault(content, record)
        landed = self.land(world, content)
        valid = landed is not world
        might = folding.why_void(self.folded(landed.log), record) is None
        later = {content} if might else set()
        acked = actor._replace(acked=True, landed=valid, known=False)
        yield "acked", _set(landed._replace(late=landed.late | later), at, acked)
        if actor.view == len(world.log) and actor.blind == (0, 0):
            at_once = acked._replace(view=len(landed.log), known=True)
            yield "acked, folded at once", _set(landed._replace(late=landed.late | later), at, at_once)
        unknown = actor._replace(acked=False, landed=False, known=False)
        yield "reply lost", _set(landed._replace(late=landed.late | later), at, unknown)
        if folding.why_void(self.folded(world.log), record) is None:
            yield "late", _set(world._replace(late=world.late | {content}), at, unknown)

    # -- the store ---------------------------------------------------------------------------------

    def claim(self, world: World, epoch: int) -> World:
        return self._purged(world._replace(epoch=max(world.epoch, epoch)))

    def may_flip(self, world: World, version: int, epoch: int) -> bool:
        """Evaluate the condition of the one write that makes a version visible."""
        follows = not self.scope.flips_from_predecessor or world.visible == version - 1
        return follows and world.visible != version and world.epoch <= epoch

    def flip(self, world: World, version: int, epoch: int, digest: str) -> World:
        """Do the conditional write; I1, I5, I6 and I7 are checked where it takes effect."""
        if not self.may_flip(world, version, epoch):
            return world
        assert version == world.visible + 1, f"I7: visible goes from {world.visible} to {version}"
        fact = folding.recent_version(self.folded(world.log), version)
        assert fact is not None, f"I5: v{version} becomes visible and is not decided"
        assert fact.digest == digest, f"I1: v{version} becomes visible with another digest"
        assert (version, fact.attempt) in world.applied, f"I3: v{version} becomes visible before it is whole"
        claimed = [actor for actor in world.actors if actor.phase in CLAIMED]
        # A driver that fences itself continues with the version in flight that it has begun.
        assumed = max((actor.line_epoch or actor.epoch for actor in claimed), default=0)
        assert epoch >= assumed, f"I6: epoch {epoch} flips v{version} after epoch {assumed} was claimed"
        return self._purged(world._replace(visible=version, digest=digest, epoch=max(world.epoch, epoch)))

    def _purged(self, world: World) -> World:
        """Drop requests that can never have an effect again."""
        if not self.scope.flips_from_predecessor:
            return world
        kept = frozenset(
            r
            for r in world.requests
            if (r[1] > world.epoch if r[0] == "claim" else r[1] > world.visible and r[2] >= world.epoch)
        )
        return world._replace(requests=kept)

    # -- steps -------------------------------------------------------------------------------------

    def steps(self, world: World) -> Steps:
        """Yield everything that may happen next."""
        for content in world.late:
            landed = self.land(world, content)
            label = type(self._records[content]).__name__
            yield f"late {label} lands", landed._replace(late=landed.late - {content})
        for kind, number, epoch, digest in world.requests:
            if kind == "claim":
                yield f"late claim of {number}", self.claim(world, number)
            else:
                yield f"late flip of v{number} at {epoch}", self.flip(world, number, epoch, digest)
        for at, actor in enumerate(world.actors):
            if actor.phase == "new" and at > 0 and world.actors[at - 1].phase == "new":
                continue
            for label, reached in self._act(world, at, actor):
                yield f"driver {at}, {actor.phase}: {label}", reached
            for label, reached in self._complete_next(world, at, actor):
                yield f"driver {at}, line: {label}", reached

    def _act(self, world: World, at: int, actor: Actor) -> Steps:
        match actor.phase:
            case "new":
                yield "fold", _set(world, at, actor._replace(phase="open", view=len(world.log)))
            case "open":
                yield from self._open(world, at, actor)
            case "own":
                yield from self._own(world, at, actor)
            case "claim" | "reclaim":
                yield from self._claim(world, at, actor)
            case "recover":
                yield from self._recover(world, at, actor)
            case "ready":
                yield from self._begin(world, at, actor)
            case "recovering" | "commit":
                yield from self._commit(world, at, actor)
            case _:
                return

    def _take_epoch(self, world: World, at: int, actor: Actor) -> tuple[Actor, Open]:
        state = self.seen(world, actor)
        tried = max(actor.tried, state.epoch) + 1
        record = Open(
            namespace="u", writer=_writer(at), epoch=tried, prev_digest=state.digest, lineage=LINEAGE
        )
        return actor._replace(tried=tried, opens=actor.opens + 1), record

    def _open(self, world: World, at: int, actor: Actor) -> Steps:
        if actor.opens < self.scope.opens:
            actor, record = self._take_epoch(world, at, actor)
            for label, reached in self._send(world, at, actor._replace(phase="own"), record):
                yield f"Open {record.epoch} {label}", reached

    def _own(self, world: World, at: int, actor: Actor) -> Steps:
        """Check by the fold through our Open whether the epoch is ours.

        Production does so in ``committers/opening/open.py``.
        """
        end, blind = len(world.log), (0, 0)
        state = self.folded(world.log)
        if (state.epoch, state.writer) == (actor.tried, _writer(at)):
            if not self.scope.folds_through_own_open:
                blind = (actor.view, end - 1)
            owner = actor._replace(phase="claim", epoch=actor.tried, view=end, blind=blind)
            yield "the epoch is ours", _set(world, at, owner)
        elif state.epoch > actor.tried and actor.acked:
            yield "fenced", _set(world, at, _gone(actor))
        else:
            yield "not ours, again", _set(world, at, actor._replace(phase="open", view=end))

    def _claim(self, world: World, at: int, actor: Actor) -> Steps:
        then = "recover" if actor.phase == "claim" else "commit"
        if not self.scope.claims:
            yield "no claim", _set(world, at, actor._replace(phase=then))
            return
        claimed = self.claim(world, actor.epoch)
        ours = claimed.epoch == actor.epoch
        yield "claimed", _set(claimed, at, actor._replace(phase=then) if ours else _gone(actor))
        request = ("claim", actor.epoch, 0, "")
        yield (
            "late claim, driver gives up",
            self._purged(_set(world, at, _gone(actor))._replace(requests=world.requests | {request})),
        )

    def _recover(self, world: World, at: int, actor: Actor) -> Steps:
        last = self.seen(world, actor).last_version
        if world.visible < last:
            work = actor._replace(
                phase="recovering", state=State.DECIDED, version=world.visible + 1, target=last
            )
            yield "something to recover", _set(world, at, work)
        else:
            yield "opened", self._opened(world, at, actor)

    def _opened(self, world: World, at: int, actor: Actor) -> World:
        first_of_us = next(n for n, r in enumerate(world.log) if self._is_open(r, at, actor.epoch))
        decided = self.folded(world.log[: first_of_us + 1]).last_version
        assert world.visible >= decided, f"I4: open returned, {decided} decided, {world.visible} visible"
        return _set(world, at, actor._replace(phase="ready", version=0, target=0))

    def _is_open(self, content: bytes, at: int, epoch: int) -> bool:
        record = self._records[content]
        return isinstance(record, Open) and (record.epoch, record.writer) == (epoch, _writer(at))

    def _begin(self, world: World, at: int, actor: Actor) -> Steps:
        state = self.seen(world, actor)
        if state.last_version >= self.scope.batches or world.attempts >= self.scope.attempts:
            return
        if actor.line_state in FINAL:
            return  # the pipeline has failed
        attempt = f"a{world.attempts + 1}"
        origin = BatchOrigin(LINEAGE, 0, state.last_version, "offsets")
        record = Decided(
            namespace="u",
            writer=_writer(at),
            epoch=actor.epoch,
            prev_digest=state.digest,
            attempt=attempt,
            version=state.last_version + 1,
            origin=origin,
            base_version=state.last_version,
            manifest_address=attempt,
            manifest_digest=attempt,
            tables={},
            parallelism={},
            source_offsets=self._state_read(world, actor),
            decided_at_us=state.last_version + 1,
        )
        content = encode_record(record)
        self._records.setdefault(content, record)
        begun = actor._replace(phase="commit", state=State.DECIDING, record=content)
        yield (
            f"stages {attempt} of {origin.batch_id}",
            _set(world, at, begun)._replace(attempts=world.attempts + 1),
        )

    def _state_read(self, world: World, actor: Actor) -> str:
        """Read the state of a batch: the store up to a visible version, then the versions in flight."""
        state = self.seen(world, actor)
        from_store = state.last_version - len(actor.line)
        assert world.visible >= from_store, f"I1: v{from_store} is read from the store and not visible"
        in_flight = _attempts(state, from_store + 1, state.last_version)
        of_store = _attempts(state, 1, from_store)
        return f"{of_store} {in_flight if self.scope.reads_versions_in_flight else ''}".strip()

    # -- the machine ---------------------------------------------------------------------------------

    def _commit(self, world: World, at: int, actor: Actor) -> Steps:
        match states.ACTIONS[actor.state]:
            case Action.APPEND_DECIDED:
                if actor.line and len(actor.line) >= self.scope.in_flight:
                    return  # until there is room
                record = self._decided(actor)
                for label, reached in self._send(world, at, actor, record):
                    sent = reached.actors[at]
                    event = Event.APPENDED if sent.acked else Event.APPEND_LOST
                    yield f"Decided {record.attempt} {label}", _on(reached, at, sent, event)
            case Action.FOLD:
                yield from self._fold(world, at, actor, can_append=False)
            case Action.APPEND_OPEN:
                yield from self._fence(world, at, actor)
            case Action.APPLY if self.scope.in_flight and actor.phase == "commit":
                yield "decided", self._put(world, at, actor)
            case Action.APPLY:
                yield from self._apply(world, at, actor)
            case Action.PUBLISH:
                yield from self._publish(world, at, actor)
            case Action.READ_POINTER:
                pointer = Pointer(world.visible, world.digest, world.epoch)
                fact, folded = self._fact(world, actor), self.seen(world, actor)
                event = states.after_read_back(pointer, fact, actor.epoch, folded)
                known = event not in (Event.FOREIGN_DIGEST, Event.GONE_BACK)
                assert known, f"I10: {event.name} at visible {world.visible}, v{actor.version}, a false alarm"
                yield f"reads back {event.name}", _on(world, at, actor, event)
            case Action.RETURN:
                yield "visible", self._returned(world, at, actor)
            case Action.RAISE_CONFLICT:
                yield "ConflictError", self._conflict(world, at, actor)
            case _:
                yield f"ends {actor.state.name}", _set(world, at, _gone(actor))

    def _fold(self, world: World, at: int, actor: Actor, *, can_append: bool) -> Steps:
        """Fold as ``committers/steps/decide.py`` does after an append; the deadline may pass at any time."""
        read = actor if actor.known else actor._replace(view=len(world.log))
        state = self.seen(world, read)
        if (state.epoch, state.writer) == (read.tried, _writer(at)):
            read = read._replace(epoch=state.epoch)
        event, fact = states.after_fold(state, self._decided(actor), _writer(at))
        if not self.scope.asks_which_attempt_won and actor.acked:
            event = Event.WON if actor.landed else Event.OWN_HIGHER_OPEN
        if fact is not None:
            read = read._replace(version=fact.version)
        if event is not Event.NOT_THERE:
            yield f"folds {event.name}", _on(world, at, self._after_decision(actor, read, event), event)
            return
        if not can_append:
            yield "folds NOT_THERE", _on(world, at, read, event)
            yield "DEADLINE", _on(world, at, read, Event.DEADLINE)
            yield "DEADLINE, log silent", _on(world, at, actor, Event.DEADLINE)
        else:
            yield "folds NOT_THERE", _on(world, at, read._replace(landed=False), event)
            yield "DEADLINE", _on(world, at, read, Event.DEADLINE)

    def _after_decision(self, before: Actor, actor: Actor, event: Event) -> Actor:
        claims = actor.epoch != self._decided(before).epoch and event in (Event.WON, Event.OTHER_WON)
        return actor._replace(phase="reclaim" if claims else actor.phase)

    def _fence(self, world: World, at: int, actor: Actor) -> Steps:
        """Send a fencing Open, or fold the one that was sent."""
        if actor.target == 0 and actor.opens < self.scope.opens:
            fencing, record = self._take_epoch(world, at, actor)
            for label, reached in self._send(world, at, fencing, record):
                sent = reached.actors[at]._replace(target=1)
                yield f"fencing Open {record.epoch} {label}", _set(reached, at, sent)
        elif actor.target == 1:
            yield from self._fold(world, at, actor._replace(target=0), can_append=True)
        else:
            yield "DEADLINE", _on(world, at, actor, Event.DEADLINE)

    def _apply(self, world: World, at: int, actor: Actor) -> Steps:
        fact = self._fact(world, actor)
        decided = folding.recent_version(self.folded(world.log), fact.version)
        assert decided is not None, f"I5: v{fact.version} is applied and not decided"
        assert decided.attempt == fact.attempt, f"I5: {fact.attempt} is applied, {decided.attempt} is decided"
        applied = world._replace(applied=world.applied | {(fact.version, fact.attempt)})
        yield f"applies v{fact.version}", _on(applied, at, actor, Event.SEALED)

    def _publish(self, world: World, at: int, actor: Actor) -> Steps:
        fact = self._fact(world, actor)
        request = ("flip", fact.version, actor.epoch, fact.digest)
        sent = self._purged(world._replace(requests=world.requests | {request}))
        flipped = self.flip(sent, fact.version, actor.epoch, fact.digest)
        if flipped is not sent:
            yield f"flips v{fact.version}", _on(flipped, at, actor, Event.FLIPPED)
            yield f"flips v{fact.version}, reply lost", _on(flipped, at, actor, Event.NOT_FLIPPED)
        yield f"flip of v{fact.version} late or refused", _on(sent, at, actor, Event.NOT_FLIPPED)

    def _returned(self, world: World, at: int, actor: Actor) -> World:
        assert world.visible >= actor.version, f"I3: v{actor.version} returned, {world.visible} visible"
        if actor.phase == "recovering" and actor.version < actor.target:
            return _set(world, at, actor._replace(state=State.DECIDED, version=actor.version + 1))
        if actor.phase == "recovering":
            return self._opened(world, at, actor._replace(state=State.READY))
        fact, decided = self._fact(world, actor), self._decided(actor)
        assert fact.origin == decided.origin, "I2: commit returned the version of another barrier"
        return _set(world, at, _ready(actor))

    def _put(self, world: World, at: int, actor: Actor) -> World:
        """Return from the commit of a pipeline, as ``commit.decided_since`` says which versions are ours."""
        decided, state = self._decided(actor), self.seen(world, actor)
        last, base = state.last_version, decided.base_version
        if last == actor.version == base + 1 or not self.scope.completes_fenced_versions:
            ours: tuple[int, ...] = (actor.version,)
        else:
            ours = tuple(range(min(base + 1, actor.version), last + 1))
        return _set(world, at, _ready(actor)._replace(line=(*actor.line, *ours)))

    def _complete_next(self, world: World, at: int, actor: Actor) -> Steps:
        """Let the completing side take a step, at the epoch of the driver when it began with the version."""
        if not actor.line or actor.line_state in FINAL:
            return
        epoch = actor.line_epoch or actor.epoch
        side = actor._replace(phase="line", state=actor.line_state, version=actor.line[0], epoch=epoch)
        if actor.line_state is State.VISIBLE:
            assert world.visible >= side.version, f"I3: v{side.version} is completed and not visible"
            popped = actor._replace(line=actor.line[1:], line_state=State.DECIDED, line_epoch=0)
            yield f"v{side.version} is visible", _set(world, at, popped)
            return
        for label, reached in self._commit(world, at, side):
            state = reached.actors[at].state
            moved = actor._replace(line_state=state, line_epoch=epoch)
            if state is State.FENCED and actor.epoch != epoch:  # this driver fenced itself
                moved = actor._replace(line_state=State.DECIDED, line_epoch=0)
            yield label, _set(reached, at, moved)

    def _conflict(self, world: World, at: int, actor: Actor) -> World:
        assert actor.record, f"proof: ConflictError for version {actor.version}, which is recovered"
        attempt = self._decided(actor).attempt
        decided = [fact.version for fact in self.folded(world.log).recent if fact.attempt == attempt]
        assert not decided, f"proof: ConflictError for {attempt}, which is version {decided}"
        return _set(world, at, _ready(actor))._replace(conflicts=world.conflicts | {attempt})

    def _fact(self, world: World, actor: Actor) -> DecidedVersion:
        fact = folding.recent_version(self.seen(world, actor), actor.version)
        assert fact is not None, f"v{actor.version} is worked on by a driver that does not know it"
        return fact

    def _decided(self, actor: Actor) -> Decided:
        record = self._records[actor.record]
        assert isinstance(record, Decided)
        return record


def _writer(at: int) -> str:
    return f"w{at}"


def _set(world: World, at: int, actor: Actor) -> World:
    return world._replace(actors=(*world.actors[:at], actor, *world.actors[at + 1 :]))


def _on(world: World, at: int, actor: Actor, event: Event) -> World:
    """Let the driver's machine take an event, along production's table."""
    machine = states.Machine(actor.state)
    return _set(world, at, actor._replace(state=machine.on(event)))


def _ready(actor: Actor) -> Actor:
    """Return a driver after its commit, which may begin the next barrier."""
    ready = actor._replace(phase="ready", state=State.READY, record=b"", version=0, target=0)
    return ready._replace(acked=False, landed=False, known=False)


def _gone(actor: Actor) -> Actor:
    """Return a driver that raised and decides nothing more. Its versions in flight may still be completed."""
    if not actor.line:
        return Actor(phase="gone")
    kept = {name: getattr(actor, name) for name in ("view", "blind", "epoch", *Actor._fields[-3:])}
    return Actor(phase="gone", **kept)


def _attempts(state: Folded, first: int, last: int) -> str:
    """Name the attempts of these versions: the state that they make."""
    facts = (folding.recent_version(state, version) for version in range(first, last + 1))
    return " ".join(fact.attempt for fact in facts if fact is not None)


def with_table(state: State, event: Event, then: State) -> dict[State, dict[Event, State]]:
    """Copy production's table with one entry changed, for tests that break a rule."""
    return {**states.TABLE, state: {**states.TABLE[state], event: then}}
