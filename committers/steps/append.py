"""The append of one record that a command asked for, until the fold confirms it or proves it void."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.committers.decision_log import DecisionLog
from tidegate.errors import FencedError, OutcomeUnknownError
from tidegate.wal.record import Adopted, AnyRecord, Folded, Rewound


def append_until_confirmed(
    decisions: DecisionLog, record: AnyRecord, confirms: Callable[[Folded], bool], effect: str, command: str
) -> None:
    """Append the record, the same bytes each time, until the fold confirms it. The driver must be open.

    ``effect`` is the sentence that the record makes true, ``command`` the command to run next time; both are
    for messages. Durable: on return the record is in the log, and folded. Raises: FencedError: another driver
    opened meanwhile, the record will never count. OutcomeUnknownError: the log did not answer within
    ``decide_deadline_s``, or refuses this user.
    """
    decisions.reset_append_outcome()
    backoff = decisions.backoff()
    while True:
        appended = decisions.append(record)
        state = decisions.try_catch_up(appended)
        if state is not None:  # else tried again below, until the deadline
            if confirms(state):
                return
            _refuse_if_fenced(decisions, state, effect, command)
        if decisions.should_give_up(backoff):
            msg = (
                f"whether {effect} now is unknown: {decisions.where} did not prove it"
                f"{decisions.describe_last_error()};"
                f" run `tidegate status`, then `{command}` again if it is not so"
            )
            raise OutcomeUnknownError(msg)
        backoff.wait()


def _refuse_if_fenced(decisions: DecisionLog, state: Folded, effect: str, command: str) -> None:
    if (state.epoch, state.writer) == (decisions.epoch, decisions.writer):
        return
    msg = (
        f"driver {state.writer} opened namespace {decisions.namespace} at epoch {state.epoch}"
        f" before {effect}: stop that driver, then run `{command}` again"
    )
    raise FencedError(msg)


def append_adopted(decisions: DecisionLog, lineage: str, command: str = "") -> None:
    """Append Adopted until it is confirmed. The driver is open. ``command`` is named if that fails.

    Raises: as ``append_until_confirmed``.
    """
    before = decisions.folded.lineage
    append_until_confirmed(
        decisions,
        Adopted(**decisions.header(), lineage=lineage),
        lambda state: state.lineage == lineage,
        f"namespace {decisions.namespace}, which follows {before} so far, follows {lineage}",
        command or f"tidegate adopt --lineage {lineage}",
    )


def append_rewound(decisions: DecisionLog, version: int, command: str) -> int:
    """Append Rewound until it is confirmed, unless undone batches may be replayed already.

    The driver is open, and its last version holds what ``version`` held, or its next one will. Return the
    generation in which batches may be replayed. ``command`` is named if that fails. Raises: as
    ``append_until_confirmed``.
    """
    state = decisions.folded
    if state.is_rewound or state.lineage is None:
        return state.generation
    generation = state.generation + 1
    append_until_confirmed(
        decisions,
        Rewound(**decisions.header(), lineage=state.lineage, generation=generation),
        lambda state: state.generation >= generation,
        f"the batches that version {version} of namespace {decisions.namespace} lacks may be replayed",
        command,
    )
    return generation
