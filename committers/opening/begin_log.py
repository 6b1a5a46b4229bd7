"""The first record of a log: a Genesis, or the state that a copy or a restored backup begins with."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.base.clock import Clock
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.preflight import refuse_unsafe_log, refuse_unsafe_store
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.keys.groups import key_groups_for
from tidegate.wal.record import Folded, Genesis, Summary


def new_uuid(clock: Clock) -> str:
    """Return the uuid of a namespace that is made."""
    return f"{clock.new_id()}{clock.new_id()}"


def begin_log(coordinator: Coordinator, state: Callable[[], Folded] | None = None) -> Folded:
    """Create the log with its first record; return the state with which it begins, which may be another's.

    ``state`` gives the state of a Summary, once the log exists; without it the record is a Genesis. A log
    that is created here is checked afterwards: before its first record, a driver of an earlier log at this
    place may be the first to append. Repeatable: the first record wins. Raises: ConfigError: the log is not
    set up safely, or an older driver was first. WalUnavailableError: the record is not in the log, or it is
    unknown.
    """
    refuse_unsafe_store(coordinator)
    was_made = bool(coordinator.log.checks())  # a log that does not exist has no checks
    if was_made:
        refuse_unsafe_log(coordinator)
    coordinator.log.create()
    first = None if state is None else state()
    try:
        initial = _append_first(
            coordinator.decisions, _genesis(coordinator) if first is None else summary_of(first)
        )
    except WalUnavailableError:
        if coordinator.decisions.refuses_user and not was_made:
            refuse_unsafe_log(coordinator)  # names the missing permission; nothing was written
        raise
    if first is None or initial.namespace != first.namespace:
        _refuse_older_state(coordinator, initial)
    if not was_made:
        refuse_unsafe_log(coordinator)
    return initial


def _genesis(coordinator: Coordinator) -> Genesis:
    decisions = coordinator.decisions
    return Genesis(
        namespace=new_uuid(decisions.clock),
        writer=decisions.writer,
        epoch=0,
        prev_digest="",
        key_groups=coordinator.options.key_groups or key_groups_for(coordinator.request.expected_tasks),
        name=decisions.namespace,
        created_at_us=decisions.clock.now_us(),
    )


def summary_of(state: Folded) -> Summary:
    """Return the record with which a log begins at a state."""
    return Summary(
        namespace=state.namespace,
        writer=state.writer,
        epoch=state.epoch,
        prev_digest=state.digest,
        state=state,
    )


def _append_first(decisions: DecisionLog, first: Genesis | Summary) -> Folded:
    backoff = decisions.backoff()
    tried = False
    while (state := decisions.catch_up()) is None:
        if tried and decisions.should_give_up(backoff):
            msg = (
                f"{decisions.where} did not take the first record of namespace {decisions.namespace}"
                f"{decisions.describe_last_error()}"
            )
            raise WalUnavailableError(msg)
        decisions.append(first)  # a second copy, or another driver's, is void after the first
        if decisions.view.state is None:
            backoff.wait()
        tried = True
    return state


def _refuse_older_state(coordinator: Coordinator, state: Folded) -> None:
    """Refuse a log that was empty and now begins with the state of a namespace that the store does not have.

    One that the store has was created by another driver meanwhile, and trimmed. Raises: ConfigError.
    """
    first = next(iter(coordinator.log.decisions()), None)
    began = {place.position for place in coordinator.decisions.view.summaries[:1]}
    if first is not None and first.position in began and coordinator.store.identity() is None:
        raise ConfigError(
            f"{coordinator.log.where} was just made, and another driver wrote {state.namespace} there first."
            " If a second run of this command did, wait for its end. An older driver: stop it, run `tidegate"
            f" drop --force --namespace {coordinator.endpoints.namespace}` and start again"
        )
