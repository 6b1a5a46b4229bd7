"""Insist: append one record that a person asked for, until the fold shows it or proves that it is void."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.committers.driver import Driver
from tidegate.errors import FencedError, OutcomeUnknownError
from tidegate.wal.record import AnyRecord, Folded


def append_until_folded(
    driver: Driver, record: AnyRecord, shown: Callable[[Folded], bool], what: str, again: str
) -> None:
    """The same bytes again and again; on return the fold shows them. The driver must be open.

    ``what`` is what the record makes true, ``again`` the command to run next time. FencedError:
    another driver opened meanwhile, the record will never count. OutcomeUnknownError: the log did
    not answer in ``decide_deadline_s``, or refuses this user.
    """
    driver.all_is_settled()
    patience = driver.patience(driver.options.decide_deadline_s)
    while True:
        appended = driver.append(record)
        state = driver.fold_behind(appended)
        if state is not None:  # else asked again below, until the deadline
            if shown(state):
                return
            _refuse_if_fenced(driver, state, what, again)
        if driver.gives_up(patience):
            msg = (
                f"whether {what} now is unknown: {driver.log.where} did not prove it"
                f"{driver.last_said(driver.options.decide_deadline_s)};"
                f" run `tidegate status`, then `{again}` again if it is not so"
            )
            raise OutcomeUnknownError(msg)
        patience.pause()


def _refuse_if_fenced(driver: Driver, state: Folded, what: str, again: str) -> None:
    if (state.epoch, state.writer) == (driver.epoch, driver.writer):
        return
    msg = (
        f"driver {state.writer} opened namespace {driver.endpoints.namespace} at epoch {state.epoch} before"
        f" {what}: stop that driver, then run `{again}` again"
    )
    raise FencedError(msg)
