"""The append of one record that a command asked for, until the fold confirms it or proves it void."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.committers.coordinator import Coordinator
from tidegate.errors import FencedError, OutcomeUnknownError
from tidegate.wal.record import AnyRecord, Folded


def append_until_confirmed(
    coordinator: Coordinator, record: AnyRecord, shown: Callable[[Folded], bool], what: str, again: str
) -> None:
    """Append the record, the same bytes each time, until the fold confirms it. The driver must be open.

    ``what`` is the sentence that the record makes true, ``again`` the command to run next time; both are for
    messages. Durable: on return the record is in the log, and folded. Raises: FencedError: another driver
    opened meanwhile, the record will never count. OutcomeUnknownError: the log did not answer within
    ``decide_deadline_s``, or refuses this user.
    """
    coordinator.reset_append_outcome()
    backoff = coordinator.backoff(coordinator.options.decide_deadline_s)
    while True:
        appended = coordinator.append(record)
        state = coordinator.try_catch_up(appended)
        if state is not None:  # else tried again below, until the deadline
            if shown(state):
                return
            _refuse_if_fenced(coordinator, state, what, again)
        if coordinator.should_give_up(backoff):
            msg = (
                f"whether {what} now is unknown: {coordinator.log.where} did not prove it"
                f"{coordinator.describe_last_error(coordinator.options.decide_deadline_s)};"
                f" run `tidegate status`, then `{again}` again if it is not so"
            )
            raise OutcomeUnknownError(msg)
        backoff.wait()


def _refuse_if_fenced(coordinator: Coordinator, state: Folded, what: str, again: str) -> None:
    if (state.epoch, state.writer) == (coordinator.epoch, coordinator.writer):
        return
    msg = (
        f"driver {state.writer} opened namespace {coordinator.endpoints.namespace} at epoch {state.epoch}"
        f" before {what}: stop that driver, then run `{again}` again"
    )
    raise FencedError(msg)
