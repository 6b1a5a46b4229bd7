"""The decision: the append of the record that is the commit point, and the fold that proves its outcome."""

from __future__ import annotations

from tidegate.base import failpoints
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.states import Action, Event, Machine, after_fold
from tidegate.committers.steps.epoch import claim_epoch, take_epoch
from tidegate.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    TidegateError,
)
from tidegate.wal.log import Appended
from tidegate.wal.record import Decided, VersionFact


def decide(coordinator: Coordinator, machine: Machine, record: Decided) -> VersionFact:
    """Append Decided until the fold proves which attempt won (append rules 2 to 5).

    The same bytes are sent each time, so a late copy of an earlier try is void. When the deadline passes, or
    the log refuses this user, a fencing Open settles it: after that record this attempt can never be decided.
    Raises: ConflictError: this attempt was not decided, which is proven. FencedError: another driver opened,
    and it was not decided. OutcomeUnknownError: even the outcome of the fencing Open is unknown.
    """
    coordinator.reset_append_outcome()
    backoff = coordinator.backoff(coordinator.options.decide_deadline_s)
    appended: Appended | None = None
    while True:
        match machine.action:
            case Action.APPEND_DECIDED:
                failpoints.hit("decide.before_append")
                appended = coordinator.append(record)
                failpoints.hit("decide.after_append")
                machine.on(Event.APPEND_LOST if appended is None else Event.APPENDED)
            case Action.FOLD:
                event, fact = _fold(coordinator, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT) and coordinator.should_give_up(backoff):
                    event, backoff = (
                        Event.DEADLINE,
                        coordinator.backoff(coordinator.options.decide_deadline_s),
                    )
                elif event in (Event.NOT_THERE, Event.LOG_SILENT):
                    backoff.wait()
                machine.on(event)
            case Action.APPEND_OPEN:
                appended = take_epoch(coordinator, coordinator.folded.lineage)
                event, fact = _fold(coordinator, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT):
                    event = Event.DEADLINE if coordinator.should_give_up(backoff) else event
                    backoff.wait()
                machine.on(event)
            case Action.APPLY if fact is not None:
                if coordinator.epoch != record.epoch:
                    claim_epoch(coordinator)
                return fact
            case _:
                raise _undecided(coordinator, machine, record)


def _fold(
    coordinator: Coordinator, appended: Appended | None, record: Decided
) -> tuple[Event, VersionFact | None]:
    state = coordinator.try_catch_up(appended)
    if state is None:
        return Event.LOG_SILENT, None
    if (state.epoch, state.writer) == (coordinator.tried_epoch, coordinator.writer):
        coordinator.epoch = state.epoch  # our fencing Open is the last valid one: its epoch is ours
    return after_fold(state, record, coordinator.writer)


def _undecided(coordinator: Coordinator, machine: Machine, record: Decided) -> TidegateError:
    match machine.action:
        case Action.RAISE_CONFLICT:
            return ConflictError(
                f"version {record.version} was not decided: the log did not take its decision, and a fencing"
                " record now stands before any late copy of it; run the batch again"
            )
        case Action.RAISE_FENCED:
            return FencedError(
                f"driver {coordinator.folded.writer} opened namespace {coordinator.endpoints.namespace} at"
                f" epoch {coordinator.folded.epoch}, above this driver's {record.epoch}: version"
                f" {record.version} was not decided by this one; stop it, or restart it if it is the one that"
                " should run"
            )
        case _:
            return OutcomeUnknownError(
                f"whether version {record.version} was decided is unknown: {coordinator.log.where} did not"
                f" prove it{coordinator.describe_last_error(2 * coordinator.options.decide_deadline_s)};"
                " restart the query or run `tidegate recover`"
            )
