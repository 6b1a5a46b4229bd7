"""The coordinator's state machine: everything that decides what may follow what stands here.

No I/O, no clock, no randomness. ``TABLE`` holds every state with its events and what they
lead to; an event that is not listed raises. ``ACTIONS`` says what the driver does in each
state. The pure functions below turn what was read into an event: ``after_fold`` is append
rules 2 to 5, ``after_read_back`` the publish rules 2 to 5. The driver, the simulation and
the exhaustive exploration run this same code.
"""

from __future__ import annotations

import enum

from tidegate.sinks.records import Pointer
from tidegate.wal.fold import decided_for, fact_of
from tidegate.wal.record import Decided, Folded, RestoreOrigin, VersionFact


class State(enum.Enum):
    """Where one barrier is on its way to being visible."""

    READY = "ready"
    STAGING = "staging"
    STAGED = "staged"
    DECIDING = "deciding"
    FOLDING = "folding"
    FENCING = "fencing"
    DECIDED = "decided"
    SEALED = "sealed"
    READING_BACK = "reading back"
    VISIBLE = "visible"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"
    FENCED = "fenced"
    STALLED = "stalled"
    BROKEN = "broken"


class Action(enum.Enum):
    """What the driver does in a state; None of them means anything in a final state."""

    BEGIN = "begin the attempt"
    STAGE = "let the tasks stage their change-logs"
    WRITE_MANIFEST = "check the acks, stage the manifest"
    APPEND_DECIDED = "append Decided, the same bytes each time"
    FOLD = "fold the decision log to its end"
    APPEND_OPEN = "append a fencing Open"
    APPLY = "apply and seal every key group"
    PUBLISH = "flip the visible version"
    READ_POINTER = "read the store's pointer back"
    RETURN = "return the version"
    RAISE_CONFLICT = "raise ConflictError"
    RAISE_UNKNOWN = "raise OutcomeUnknownError"
    RAISE_FENCED = "raise FencedError"
    RAISE_UNAVAILABLE = "raise StoreUnavailableError"
    RAISE_CORRUPT = "raise CorruptError"


class Event(enum.Enum):
    """What happened, or what was learned."""

    BEGUN = "the attempt has its id"
    ACKED = "all acks are in"
    MANIFEST_WRITTEN = "the manifest is durable"
    APPENDED = "the append returned its position"
    APPEND_LOST = "the append's outcome is unknown, or it wrote nothing"
    WON = "this attempt is the one decided"
    OTHER_WON = "another attempt is decided for this barrier"
    NOT_THERE = "no attempt is decided yet, the epoch is still ours"
    HIGHER_OPEN = "another writer's higher Open is folded, this attempt is not before it"
    OWN_HIGHER_OPEN = "our fencing Open is folded, this attempt is not before it"
    LOG_SILENT = "the log could not be read"
    DEADLINE = "the deadline passed"
    SEALED = "every key group is sealed"
    FLIPPED = "the conditional write happened"
    NOT_FLIPPED = "its condition was false, or the outcome is unknown"
    IS_VISIBLE = "the version, or one after it, is visible with the log's digest"
    IS_NEXT = "the version's predecessor is still visible"
    HIGHER_EPOCH = "the store's epoch is above ours"
    FOREIGN_DIGEST = "a digest is visible that the log does not have"
    GONE_BACK = "a version before the predecessor is visible"
    STORE_SILENT = "the store could not be read"


TABLE: dict[State, dict[Event, State]] = {
    State.READY: {Event.BEGUN: State.STAGING},
    State.STAGING: {Event.ACKED: State.STAGED},
    State.STAGED: {Event.MANIFEST_WRITTEN: State.DECIDING},
    State.DECIDING: {
        Event.APPENDED: State.FOLDING,
        Event.APPEND_LOST: State.FOLDING,
    },
    State.FOLDING: {
        Event.WON: State.DECIDED,
        Event.OTHER_WON: State.DECIDED,
        Event.NOT_THERE: State.DECIDING,
        Event.LOG_SILENT: State.FOLDING,
        Event.DEADLINE: State.FENCING,
        Event.HIGHER_OPEN: State.FENCED,
        Event.OWN_HIGHER_OPEN: State.UNDECIDED,
    },
    State.FENCING: {
        Event.WON: State.DECIDED,
        Event.OTHER_WON: State.DECIDED,
        Event.HIGHER_OPEN: State.FENCED,
        Event.OWN_HIGHER_OPEN: State.UNDECIDED,
        Event.NOT_THERE: State.FENCING,
        Event.LOG_SILENT: State.FENCING,
        Event.DEADLINE: State.UNKNOWN,
    },
    State.DECIDED: {Event.SEALED: State.SEALED, Event.DEADLINE: State.STALLED},
    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.READING_BACK},
    State.READING_BACK: {
        Event.IS_VISIBLE: State.VISIBLE,
        Event.IS_NEXT: State.SEALED,
        Event.HIGHER_EPOCH: State.FENCED,
        Event.FOREIGN_DIGEST: State.BROKEN,
        Event.GONE_BACK: State.STALLED,
        Event.STORE_SILENT: State.READING_BACK,
        Event.DEADLINE: State.STALLED,
    },
    State.VISIBLE: {},
    State.UNDECIDED: {},
    State.UNKNOWN: {},
    State.FENCED: {},
    State.STALLED: {},
    State.BROKEN: {},
}
"""Every state, and where each event leads. Final states list none. What staging or the log raises
before the decision ends the machine where it is: nothing was decided."""

ACTIONS: dict[State, Action] = {
    State.READY: Action.BEGIN,
    State.STAGING: Action.STAGE,
    State.STAGED: Action.WRITE_MANIFEST,
    State.DECIDING: Action.APPEND_DECIDED,
    State.FOLDING: Action.FOLD,
    State.FENCING: Action.APPEND_OPEN,
    State.DECIDED: Action.APPLY,
    State.SEALED: Action.PUBLISH,
    State.READING_BACK: Action.READ_POINTER,
    State.VISIBLE: Action.RETURN,
    State.UNDECIDED: Action.RAISE_CONFLICT,
    State.UNKNOWN: Action.RAISE_UNKNOWN,
    State.FENCED: Action.RAISE_FENCED,
    State.STALLED: Action.RAISE_UNAVAILABLE,
    State.BROKEN: Action.RAISE_CORRUPT,
}
"""What the driver does in each state."""


class Watch:
    """What looks on at one barrier: it learns each step, and decides nothing. This one ignores all of
    them.
    """

    def entered(self, state: State) -> None:
        """A state is entered: by a commit's machine, or by one that takes a decided version up again."""

    def of_version(self, version: int) -> None:
        """The barrier's version is known: it is decided."""

    def waiting_for(self, reason: str) -> None:
        """The commit waits for something that its phase does not name; '' again: for what the phase names."""

    def retried(self, error: BaseException) -> None:
        """A try failed with this error, and is made again."""

    def end(self) -> None:
        """The barrier is no longer in flight, whatever became of it. May be repeated."""


class IllegalTransitionError(AssertionError):
    """An event came in a state that does not list it: a bug in tidegate."""


class Machine:
    """One barrier's state. ``on(event)`` moves it along ``TABLE`` and nowhere else.

    ``watch`` learns each state that is entered.
    """

    def __init__(self, state: State = State.READY, watch: Watch | None = None) -> None:
        self.state = state
        self.watch = watch or Watch()
        if state is not State.READY:
            self.watch.entered(state)  # a decided version is taken up

    @property
    def action(self) -> Action:
        """What the driver does now."""
        return ACTIONS[self.state]

    def on(self, event: Event) -> State:
        """The state after the event. IllegalTransitionError: it is not listed here."""
        try:
            self.state = TABLE[self.state][event]
        except KeyError:
            msg = f"event {event.name} in state {self.state.name}"
            raise IllegalTransitionError(msg) from None
        self.watch.entered(self.state)
        return self.state


# -- from what was read to an event -----------------------------------------------------------


def after_fold(folded: Folded, record: Decided, writer: str) -> tuple[Event, VersionFact | None]:
    """What folding the log through the own append says (append rules 2, 3 and 5).

    The question is never "is my record there", but "which attempt does the fold give for
    this barrier". ``record`` was staged under its own epoch, by ``writer``. Undecided is proven
    only by a valid higher Open with no Decided of this barrier before it.
    """
    fact = decided_for(folded, record.origin)
    if fact is not None and isinstance(record.origin, RestoreOrigin) and fact.version < record.version:
        fact = None  # a version may be restored again: the first time is another barrier
    if fact is not None:
        return (Event.WON if fact.attempt == record.attempt else Event.OTHER_WON), fact
    if folded.epoch > record.epoch:
        return (Event.OWN_HIGHER_OPEN if folded.writer == writer else Event.HIGHER_OPEN), None
    return Event.NOT_THERE, None


def after_read_back(
    pointer: Pointer, fact: VersionFact, epoch: int, folded: Folded, before: int | None = None
) -> Event:
    """What the store's pointer says after a flip of unknown or false outcome (publish rules 3 to 5).

    ``before`` is what has to be visible for the flip: the version before the fact's, unless given.

    An epoch above ours says nothing about the version: whoever owns it finishes the line. Else
    nobody after us could decide, so what is visible stands in ``folded``, read through our own
    Open: with that digest the version is visible, whoever flipped it and whatever came after.
    """
    if pointer.epoch > epoch:
        return Event.HIGHER_EPOCH
    if pointer.visible == (fact.version - 1 if before is None else before):
        return Event.IS_NEXT
    if pointer.visible < fact.version:
        return Event.GONE_BACK
    shown = fact_of(folded, pointer.visible)
    ours = shown is not None and shown.digest == pointer.digest
    return Event.IS_VISIBLE if ours else Event.FOREIGN_DIGEST
