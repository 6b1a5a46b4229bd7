"""Decide: append the one record that is the commit point, and learn which attempt won."""

from __future__ import annotations

from tidegate import failpoints
from tidegate.committers.driver import Driver
from tidegate.committers.epoch import claim_epoch, take_epoch
from tidegate.committers.states import Action, Event, Machine, after_fold
from tidegate.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    TidegateError,
)
from tidegate.wal.log import Appended
from tidegate.wal.record import Decided, VersionFact


def decide(driver: Driver, machine: Machine, record: Decided) -> VersionFact:
    """Append Decided until the fold says which attempt won (append rules 2 to 5).

    The same bytes are sent each time, so a late copy of an earlier try is void. When the
    deadline passes, or the log says that it refuses this user, a fencing Open settles it: behind it, this
    attempt can never be decided.
    ConflictError, FencedError: as proven. OutcomeUnknownError: even the fence's fate is unknown.
    """
    driver.all_is_settled()
    patience = driver.patience(driver.options.decide_deadline_s)
    appended: Appended | None = None
    while True:
        match machine.action:
            case Action.APPEND_DECIDED:
                failpoints.hit("decide.before_append")
                appended = driver.append(record)
                failpoints.hit("decide.after_append")
                machine.on(Event.APPEND_LOST if appended is None else Event.APPENDED)
            case Action.FOLD:
                event, fact = _fold(driver, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT) and driver.gives_up(patience):
                    event, patience = Event.DEADLINE, driver.patience(driver.options.decide_deadline_s)
                elif event in (Event.NOT_THERE, Event.LOG_SILENT):
                    patience.pause()
                machine.on(event)
            case Action.APPEND_OPEN:
                appended = take_epoch(driver, driver.folded.lineage)
                event, fact = _fold(driver, appended, record)
                if event in (Event.NOT_THERE, Event.LOG_SILENT):
                    event = Event.DEADLINE if driver.gives_up(patience) else event
                    patience.pause()
                machine.on(event)
            case Action.APPLY if fact is not None:
                if driver.epoch != record.epoch:
                    claim_epoch(driver)
                return fact
            case _:
                raise _undecided(driver, machine, record)


def _fold(driver: Driver, appended: Appended | None, record: Decided) -> tuple[Event, VersionFact | None]:
    state = driver.fold_behind(appended)
    if state is None:
        return Event.LOG_SILENT, None
    if (state.epoch, state.writer) == (driver.tried_epoch, driver.writer):
        driver.epoch = state.epoch  # our fencing Open is the last valid one: its epoch is ours
    return after_fold(state, record, driver.writer)


def _undecided(driver: Driver, machine: Machine, record: Decided) -> TidegateError:
    match machine.action:
        case Action.RAISE_CONFLICT:
            return ConflictError(
                f"version {record.version} was not decided: the log did not take its decision, and a fencing"
                " record now stands before any late copy of it; run the batch again"
            )
        case Action.RAISE_FENCED:
            return FencedError(
                f"driver {driver.folded.writer} opened namespace {driver.endpoints.namespace} at epoch"
                f" {driver.folded.epoch}, above this driver's {record.epoch}: version {record.version} was"
                " not decided by this one; stop it, or restart it if it is the one that should run"
            )
        case _:
            return OutcomeUnknownError(
                f"whether version {record.version} was decided is unknown: {driver.log.where} did not prove"
                f" it{driver.last_said(2 * driver.options.decide_deadline_s)};"
                " restart the query or run `tidegate recover`"
            )
