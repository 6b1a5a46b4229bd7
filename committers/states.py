"""The coordinator's state machine: every decision about the order of the steps.

It has no I/O, no clock and no randomness. ``TABLE`` holds every state, its events and the state that each
leads to; an event that is not listed raises. ``ACTIONS`` holds the driver's action in each state. The pure
functions below derive an event from what was read: ``after_fold`` is append rules 2 to 5,
``after_read_back`` the publish rules 2 to 5. The driver, the simulation and the exhaustive exploration run
this same code.
"""

from __future__ import annotations

import enum

from tidegate.sinks.records import Pointer
from tidegate.wal.fold import decided_for, recent_version
from tidegate.wal.record import Decided, DecidedVersion, Folded, RestoreOrigin


class State(enum.Enum):
    """The progress of one barrier towards being visible."""

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
    """The driver's action in a state."""

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
    """A thing that happened or was learned."""

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
"""Every state, and the state that each event leads to. Final states list none. An error of staging or of the
log before the decision ends the machine in its state: nothing was decided."""

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
"""The driver's action in each state."""


class Watch:
    """The observer of one barrier: it gets each step, and decides nothing. This one ignores them all."""

    def entered(self, state: State) -> None:
        """Observe a state: entered by a commit's machine, or by one that resumes a decided version."""

    def of_version(self, version: int) -> None:
        """Observe the barrier's version: it is decided."""

    def applied_by(self, who: str) -> None:
        """Observe who applies the version: "driver", or "tasks"."""

    def waiting_for(self, reason: str) -> None:
        """Observe that the commit waits for something that its phase does not name; '': no longer."""

    def retried(self, error: BaseException) -> None:
        """Observe that a try failed with this error and is made again."""

    def end(self) -> None:
        """Observe that the barrier is no longer in flight, for any reason. Repeatable."""


class IllegalTransitionError(AssertionError):
    """An event came in a state that does not list it: a bug in tidegate."""


class Machine:
    """The state of one barrier. ``on(event)`` moves it along ``TABLE``, and nothing else does.

    ``watch`` observes each state that is entered.
    """

    def __init__(self, state: State = State.READY, watch: Watch | None = None) -> None:
        self.state = state
        self.watch = watch or Watch()
        if state is not State.READY:
            self.watch.entered(state)  # a decided version is resumed

    @property
    def action(self) -> Action:
        """The driver's next action."""
        return ACTIONS[self.state]

    def on(self, event: Event) -> State:
        """Move to the state after the event, and return it.

        Raises: IllegalTransitionError: the event is not listed in this state.
        """
        try:
            self.state = TABLE[self.state][event]
        except KeyError:
            msg = f"event {event.name} in state {self.state.name}"
            raise IllegalTransitionError(msg) from None
        self.watch.entered(self.state)
        return self.state


# -- from what was read to an event -----------------------------------------------------------


def after_fold(folded: Folded, record: Decided, writer: str) -> tuple[Event, DecidedVersion | None]:
    """Derive the event from the log, folded through the driver's own append (append rules 2, 3 and 5).

    The question is never "is my record there", but "which attempt does the fold give for
    this barrier". ``record`` was staged under its own epoch, by ``writer``. Undecided is proven
    only by a valid higher Open with no Decided of this barrier before it.
    """
    decided = decided_for(folded, record.origin)
    if decided is not None and isinstance(record.origin, RestoreOrigin) and decided.version < record.version:
        decided = None  # a version may be restored again: the first time is another barrier
    if decided is not None:
        return (Event.WON if decided.attempt == record.attempt else Event.OTHER_WON), decided
    if folded.epoch > record.epoch:
        return (Event.OWN_HIGHER_OPEN if folded.writer == writer else Event.HIGHER_OPEN), None
    return Event.NOT_THERE, None


def after_read_back(
    pointer: Pointer, decided: DecidedVersion, epoch: int, folded: Folded, before: int | None = None
) -> Event:
    """Derive the event from the store's pointer, after an unproven flip (publish rules 3 to 5).

    ``before`` is the version that has to be visible for the flip: the predecessor, unless given.

    An epoch above ours proves nothing about the version: the driver that owns it finishes what is in flight.
    Otherwise no later driver could decide, so ``folded``, read through our own Open, contains the visible
    version. With that digest the version is visible, no matter which driver flipped it and which versions
    followed.
    """
    if pointer.epoch > epoch:
        return Event.HIGHER_EPOCH
    if pointer.visible == (decided.version - 1 if before is None else before):
        return Event.IS_NEXT
    if pointer.visible < decided.version:
        return Event.GONE_BACK
    shown = recent_version(folded, pointer.visible)
    ours = shown is not None and shown.digest == pointer.digest
    return Event.IS_VISIBLE if ours else Event.FOREIGN_DIGEST
