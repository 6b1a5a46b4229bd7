"""The decision: the append of the record that is the commit point, and the fold that proves its outcome."""

from __future__ import annotations

from tidegate.base import failpoints
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.states import Action, Event, Machine, after_fold
from tidegate.committers.steps.epoch import take_epoch
from tidegate.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    TidegateError,
)
from tidegate.wal.log import Appended
from tidegate.wal.record import Decided, DecidedVersion


def decide(decisions: DecisionLog, machine: Machine, record: Decided) -> DecidedVersion:
    """Append Decided until the fold proves which attempt won (append rules 2 to 5).

    The same bytes are sent each time, so a late copy of an earlier try is void. When the deadline passes, or
    the log refuses this user, a fencing Open settles it: after that record this attempt can never be decided.
    The driver then has a higher epoch, which it claims in the store before it writes there.

    Raises: ConflictError: this attempt was not decided, which is proven. FencedError: another driver opened,
    and it was not decided. OutcomeUnknownError: even the outcome of the fencing Open is unknown.
    """
    decisions.reset_append_outcome()
    backoff = decisions.backoff()
    appended: Appended | None = None
    while True:
        match machine.action:
            case Action.APPEND_DECIDED:
                failpoints.hit("decide.before_append")
                appended = decisions.append(record)
                failpoints.hit("decide.after_append")
                machine.on(Event.APPEND_LOST if appended is None else Event.APPENDED)
            case Action.FOLD:
                event, decided = _fold(decisions, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT) and decisions.should_give_up(backoff):
                    event, backoff = Event.DEADLINE, decisions.backoff()
                elif event in (Event.NOT_THERE, Event.LOG_SILENT):
                    backoff.wait()
                machine.on(event)
            case Action.APPEND_OPEN:
                appended = take_epoch(decisions, decisions.folded.lineage)
                event, decided = _fold(decisions, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT):
                    event = Event.DEADLINE if decisions.should_give_up(backoff) else event
                    backoff.wait()
                machine.on(event)
            case Action.APPLY if decided is not None:
                return decided
            case _:
                raise _undecided(decisions, machine, record)


def _fold(
    decisions: DecisionLog, appended: Appended | None, record: Decided
) -> tuple[Event, DecidedVersion | None]:
    state = decisions.try_catch_up(appended)
    if state is None:
        return Event.LOG_SILENT, None
    if (state.epoch, state.writer) == (decisions.tried_epoch, decisions.writer):
        decisions.epoch = state.epoch  # our fencing Open is the last valid one: its epoch is ours
    return after_fold(state, record, decisions.writer)


def _undecided(decisions: DecisionLog, machine: Machine, record: Decided) -> TidegateError:
    match machine.action:
        case Action.RAISE_CONFLICT:
            return ConflictError(
                f"version {record.version} was not decided: the log did not take its decision, and a fencing"
                " record now precedes any late copy of it; run the batch again"
            )
        case Action.RAISE_FENCED:
            return FencedError(
                f"driver {decisions.folded.writer} opened namespace {decisions.namespace} at"
                f" epoch {decisions.folded.epoch}, above this driver's {record.epoch}: version"
                f" {record.version} was not decided by this one; stop it, or restart it if it is the one that"
                " should run"
            )
        case _:
            return OutcomeUnknownError(
                f"whether version {record.version} was decided is unknown: {decisions.where} did not"
                f" prove it{decisions.describe_last_error(deadlines=2)};"
                " restart the query or run `tidegate recover`"
            )
