"""The open, by which a driver takes a namespace over: check, append Open, fold through it, claim, recover.

Everything that can be refused is refused before anything is appended. It is checked again after the append,
because another driver may have written in between.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidegate.base import failpoints
from tidegate.base.names import saved_by_relog
from tidegate.committers.coordinator import Coordinator, describe_writer
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.begin_log import begin_log
from tidegate.committers.opening.lifecycle import QUERY, ask, refuse_other_uuid
from tidegate.committers.opening.lost_attempts import refuse_lost_attempts, settle_lost_attempts
from tidegate.committers.opening.preflight import require_safe_setup
from tidegate.committers.opening.recover import recover
from tidegate.committers.opening.store_list import list_stores_of_new, refuse_alias, refuse_other_stores
from tidegate.committers.repair.log_reach import (
    log_can_fill,
    refilled_at,
    refuse_missing_place,
    refuse_unrecoverable,
)
from tidegate.committers.repair.lost_pointer import resume
from tidegate.committers.repair.lost_store import refuse_lost_for_good
from tidegate.committers.steps.epoch import claim_epoch, refuse_if_shared, take_epoch
from tidegate.errors import (
    ConfigError,
    FencedError,
    LineageError,
    OutcomeUnknownError,
    StoreLostError,
    StoreRemovedError,
    StoreUnavailableError,
    WalGapError,
)
from tidegate.keys.groups import stride_for
from tidegate.sinks.aliases import refuse_writing
from tidegate.sinks.records import Identity, Pointer, Stamp
from tidegate.sinks.rules.fit import Fit, fit_of
from tidegate.sinks.store import Store
from tidegate.wal.log import Appended, Log
from tidegate.wal.record import Folded

logger = logging.getLogger("tidegate")

WRITER_ALIVE_S = 30.0
"""A writer whose heartbeat is younger than this is considered alive."""

Check = Callable[[Folded], None]


def open_namespace(
    coordinator: Coordinator,
    lineage: str | None,
    check: Check | None = None,
    *,
    changing: str | None = None,
    command: str = QUERY,
) -> list[int]:
    """Make the driver the writer, and every decided version visible in its store; return those recovered.

    It is ``take_over``, then ``recover``.
    """
    take_over(coordinator, lineage, check, changing=changing, command=command)
    return recover(coordinator)


def take_over(
    coordinator: Coordinator,
    lineage: str | None,
    check: Check | None = None,
    *,
    changing: str | None = None,
    command: str = QUERY,
) -> None:
    """Make the driver the writer. Decided versions that are not visible wait for ``recover``.

    ``lineage`` None means the current one. ``check`` may refuse (raise) on the folded state, before anything
    is made or appended, and again after the append. A driver that ran before is fenced at once. ``changing``
    is a store that is being added or removed: it may be in the log's list or not. ``command`` is the row of
    ``lifecycle.COMMANDS`` by which the namespace may be one that a rekey is making, or has moved.

    Raises: ConfigError, LineageError, WalGapError: refused, nothing appended. FencedError: another
    driver opened at the same time and won. OutcomeUnknownError: the outcome of the Open is unknown;
    open again. When the log refuses this user, that is raised at once, not at the deadline.
    """
    coordinator.decisions.reset_append_outcome()
    state = coordinator.decisions.catch_up()
    if state is not None and coordinator.store.identity() is None:  # before a lost store is made again
        refuse_other_stores(coordinator, state, changing)
    ensure_made(coordinator, check=check)
    decisions, backoff = coordinator.decisions, coordinator.decisions.backoff()
    while True:
        # The store first: a visible or begun version was decided before, so a log read later must have it,
        # also while another driver commits.
        pointer, stamps = coordinator.store.pointer(), coordinator.store.begun()
        decisions.catch_up()
        opening = Opening(coordinator, pointer, stamps, lineage, check, changing, command)
        refuse(opening)
        failpoints.hit("open.before_append")
        _warn_of_lost_open(coordinator, pointer)
        appended = take_epoch(decisions, opening.lineage_taken, pointer.epoch)
        pointer = coordinator.store.pointer()
        if _owned(decisions, appended):
            break
        if decisions.should_give_up(backoff):
            msg = (
                f"whether this driver opened namespace {decisions.namespace} is unknown:"
                f" {decisions.where} did not answer, or others kept opening it"
                f"{decisions.describe_last_error()}; restart the query"
            )
            raise OutcomeUnknownError(msg)
        backoff.wait()
    failpoints.hit("open.after_append")
    refuse(opening._replace(pointer=pointer))
    claim_epoch(coordinator)
    _look_again(coordinator)
    settle_lost_attempts(coordinator)
    failpoints.hit("open.after_claim")
    list_stores_of_new(coordinator)
    if not coordinator.request.from_backup:
        resume(coordinator)


class Opening(NamedTuple):
    """The sides of an open: the driver with its folded log, its store as it was read, and the request."""

    coordinator: Coordinator
    pointer: Pointer
    begun: Sequence[Stamp]
    lineage: str | None
    check: Check | None
    changing: str | None
    command: str

    @property
    def lineage_taken(self) -> str | None:
        """The lineage that the Open record names: that of the query, or the log's."""
        return self.coordinator.folded.lineage if self.lineage is None else self.lineage


def _refuse_other_query(opening: Opening) -> None:
    """Refuse a query that does not follow the log, by lineage or by its own check. Raises: LineageError."""
    name, state = opening.coordinator.decisions.namespace, opening.coordinator.folded
    try:
        _refuse_other_lineage(name, state, opening.lineage_taken)
        if opening.check is not None:
            opening.check(state)
    except LineageError:
        if _is_alive(opening.pointer):  # the advice of the other errors would fence that writer
            raise _second_query(name, state, opening.pointer) from None
        raise


REFUSALS: Mapping[str, Callable[[Opening], None]] = {
    "the log lists other stores": lambda opening: refuse_other_stores(
        opening.coordinator, opening.coordinator.folded, opening.changing
    ),
    "the namespace is a copy, has moved or was restored": lambda opening: ask(
        opening.coordinator, opening.command
    ),
    "the store was removed": lambda opening: refuse_removed(opening.coordinator.store, opening.pointer),
    "the store is being filled": lambda opening: _refuse_unfilled(opening.coordinator, opening.pointer),
    "the store holds nothing for good": lambda opening: refuse_lost_for_good(
        opening.coordinator, opening.pointer
    ),
    "the store has versions of another history": lambda opening: refuse_other_history(
        opening.coordinator, opening.coordinator.folded, opening.pointer
    ),
    "another store has what the log lost": lambda opening: _refuse_newer_elsewhere(
        opening.coordinator, opening.pointer.visible
    ),
    "the store has attempts that the log lost": lambda opening: refuse_lost_attempts(
        opening.coordinator, opening.begun, opening.changing
    ),
    "the query is another one": _refuse_other_query,
}
"""Why an open is refused, in this order: a cause comes before the refusals that it would bring about.

An open goes through them before it appends, and again after that. None of them writes.
"""


def refuse(opening: Opening) -> None:
    """Go through ``REFUSALS``. Raises: what the first one that holds raises."""
    for refusal in REFUSALS.values():
        refusal(opening)


def _look_again(coordinator: Coordinator) -> None:
    """Check the pointer again, after the claim: from then on no older driver flips or claims.

    An older driver whose records the log lost may have done so until then. Raises: FencedError, WalGapError:
    nothing of a version was written.
    """
    pointer = coordinator.store.pointer()
    refuse_if_shared(coordinator, pointer)
    if pointer.epoch == coordinator.epoch:
        refuse_other_history(coordinator, coordinator.folded, pointer)


def _warn_of_lost_open(coordinator: Coordinator, pointer: Pointer) -> None:
    state = coordinator.folded
    if pointer.epoch > state.epoch:
        logger.warning(
            "%s carries epoch %s, the log %s has epochs up to %s: the log lost the record by which a driver"
            " took its epoch (brokers without power, an unclean election, an older copy put back), or it"
            " is another log than that driver's, as of a command with another --wal; that driver is fenced if"
            " it still runs",
            coordinator.store.where, pointer.epoch, coordinator.log.where, state.epoch,
        )  # fmt: skip


def _owned(decisions: DecisionLog, appended: Appended | None) -> bool:
    """Whether the fold, read through our Open, gives us the epoch. Raises: FencedError: another has it."""
    state = decisions.try_catch_up(None)
    if state is not None and (state.epoch, state.writer) == (decisions.tried_epoch, decisions.writer):
        decisions.epoch = decisions.tried_epoch
        return True
    if state is not None and state.epoch > decisions.tried_epoch and appended is not None:
        msg = (
            f"driver {state.writer} opened namespace {decisions.namespace} at epoch {state.epoch}"
            " while this one was opening it: stop one of the two"
        )
        raise FencedError(msg)
    return False


def ensure_made(coordinator: Coordinator, first: Folded | None = None, check: Check | None = None) -> Folded:
    """Create the namespace in log and store when neither has it, and check that both have the same one.

    ``first``: the state with which a log begins that is created, without versions, instead of a Genesis.
    ``check`` may refuse a namespace that neither has, with a state without anything. Repeatable: also
    concurrently; the first record wins, and every store takes its uuid.
    """
    identity = coordinator.store.identity()  # first: a store is created only for a log that has begun
    state = coordinator.decisions.catch_up()
    if state is None:
        refuse_without_log(coordinator)
        refuse_alias(coordinator)
        name = coordinator.endpoints.namespace
        if check is not None:
            check(Folded("", name, 0, ""))
        state = begin_log(coordinator, None if first is None else lambda: first)
    else:
        require_safe_setup(coordinator)
    if identity is None and state.last_version:  # again: another driver may have made it meanwhile
        identity = coordinator.store.identity()
    if identity is None:
        version = 0
        if state.last_version and not (coordinator.request.has_copy or coordinator.request.from_backup):
            _refuse_newer_elsewhere(coordinator, 0)
            refuse_missing_place(coordinator)
            refuse_unrecoverable(coordinator)
            version = refilled_at(coordinator)
        refuse_writing(coordinator.store.where, state.name, coordinator.store.aliases().get(state.name))
        identity = coordinator.store.create(Identity(state.namespace, state.name, state.key_groups), version)
    refuse_other_uuid(coordinator.log, coordinator.store, state)
    groups = coordinator.options.key_groups
    if groups is not None and groups != state.key_groups:
        is_shown = bool(coordinator.store.pointer().visible)  # else there is nothing that a rekey could copy
        rekey = f", or run `tidegate rekey --to NAME --key-groups {groups}`" if is_shown else ""
        raise ConfigError(
            f"namespace {state.name} was made with key_groups={state.key_groups}, {groups} was asked for: key"
            f" groups are fixed for life; leave the option out{rekey}"
        )
    for table, of_table in (coordinator.options.table_key_groups or {}).items():
        stride_for(table, of_table, state.key_groups)
    return state


def refuse_without_log(coordinator: Coordinator) -> None:
    """Refuse a namespace that a store has, while the log has nothing. Raises: WalGapError.

    A store besides the primary that does not answer is left out.
    """
    for store in coordinator.stores:
        try:
            identity = store.identity()
        except StoreUnavailableError as error:
            if store is coordinator.store:
                raise
            logger.warning(
                "whether namespace %s is there is unknown: %s", coordinator.endpoints.namespace, error
            )
            continue
        if identity is not None and coordinator.decisions.catch_up() is None:  # nobody makes it meanwhile
            why = f"namespace {identity.uuid} is in the store, the log is empty"
            raise _log_behind(coordinator, why, store.pointer().visible, store)


def not_shown(state: Folded | None) -> str:
    """Return the end of a message about a store that shows no version, where the log has some."""
    if state is None or not state.last_version:
        return ""
    return (
        f"; its log has {state.last_version}: `tidegate recover` makes visible what it has; if a `tidegate"
        " restore-from FOLDER` was interrupted, run it again"
    )


def refuse_lost(log: Log, store: Store, state: Folded | None) -> None:
    """Refuse a store that has nothing of a log with decided versions. Raises: StoreLostError."""
    if state is not None and state.last_version and store.identity() is None:
        raise StoreLostError(
            f"{store.where}: there is nothing here, and {log.where} has {state.last_version} decided versions"
            f" of namespace {state.name}: is the store's disk mounted, and its URL right? Nothing was made:"
            " `tidegate recover` rebuilds a lost store from the log; for a new namespace use another name"
        )


def refuse_other_history(
    coordinator: Coordinator, state: Folded, pointer: Pointer, store: Store | None = None
) -> None:
    """Refuse a store (the primary) whose visible version this log never decided. Raises: WalGapError."""
    store = store or coordinator.store
    identity = Identity(state.namespace, state.name, state.key_groups)  # compared before
    fit = fit_of(state, identity, pointer)
    if fit is Fit.LOG_BEHIND:
        why = f"version {pointer.visible} is visible, the log ends at version {state.last_version}"
        raise _log_behind(coordinator, why, pointer.visible, store)
    if fit is Fit.OTHER_HISTORY:
        why = f"version {pointer.visible} has digest {pointer.digest} in the store, another one in the log"
        raise _log_behind(coordinator, why, pointer.visible, store)


def _refuse_newer_elsewhere(coordinator: Coordinator, visible: int) -> None:
    """Refuse to rebuild a primary that shows nothing by a log that lacks what another store shows.

    A store that does not answer is left out: its follower compares it later. Raises: WalGapError.
    """
    for store in coordinator.others if not visible else ():
        with contextlib.suppress(StoreUnavailableError):
            identity = store.identity()
            pointer = Pointer() if identity is None else store.pointer()
            state = coordinator.decisions.catch_up()  # after the store: another driver may commit
            if state is not None and identity is not None and identity.uuid == state.namespace:
                refuse_other_history(coordinator, state, pointer, store)


def refuse_removed(store: Store, pointer: Pointer) -> None:
    """Refuse a store that was removed, under whatever name it is given. Raises: StoreRemovedError."""
    if pointer.is_removed:
        raise StoreRemovedError(
            f"{store.where} was removed from the namespace: nothing was written. Give the stores that"
            " remained; `tidegate store add NAME=URL`, with those, takes it up again"
        )


def _refuse_unfilled(coordinator: Coordinator, pointer: Pointer) -> None:
    """Refuse a store that is being filled, unless the log can complete it. Raises: ConfigError."""
    if pointer.filling_at and not coordinator.request.from_backup and not log_can_fill(coordinator):
        msg = (
            f"{coordinator.store.where} is being filled from another store, at version {pointer.filling_at},"
            " and shows nothing yet: put a store that is filled first, this one after it; or, if `tidegate"
            " restore-from FOLDER` was interrupted, run it again"
        )
        raise ConfigError(msg)


def _log_behind(coordinator: Coordinator, why: str, visible: int, store: Store) -> WalGapError:
    return WalGapError(
        f"the log {coordinator.log.where} does not belong to, or is behind, the {store.where}:"
        f" {why}; nothing was written; if the log's URL is right, and the disk of a log in files is mounted:"
        f" {saved_by_relog(coordinator.endpoints.namespace, visible)}"
    )


def _refuse_other_lineage(namespace: str, state: Folded, lineage: str | None) -> None:
    if state.lineage is None or state.last_version == 0 or lineage == state.lineage:
        return
    msg = (
        f"namespace {namespace} follows the checkpoint of query {state.lineage} and has"
        f" {state.last_version} versions from it; this query is {lineage}: its checkpoint was deleted or"
        " replaced. Put the old checkpoint back; or make it again from the log, for Kafka sources: `tidegate"
        " rebuild-checkpoint FOLDER`; or, if the new one is meant to take over, run"
        f" `tidegate adopt --lineage {lineage}` and restart the query: from the start of its source it would"
        " add all rows to sums a second time, and the command shows how to start after the last batch; or use"
        " a new namespace"
    )
    raise LineageError(msg)


def _second_query(namespace: str, state: Folded, pointer: Pointer) -> LineageError:
    """Build the error for a query that cannot follow the log, while another one's writer is alive."""
    decided = state.recent[-1] if state.recent else None
    last = "" if decided is None else f", the last decision is version {decided.version}"
    return LineageError(
        f"namespace {namespace} has a living writer, and this query is a second one:"
        f" {describe_writer(pointer.writer)} at epoch {pointer.epoch} gave a sign of life"
        f" {pointer.heartbeat_age_s:.0f} s ago{last}. Nothing was written. A namespace serves one query: give"
        " this one a namespace of its own, or write all tables in one query, by `sink.each`. If that writer"
        f" was killed, it counts as living for {WRITER_ALIVE_S:.0f} s: start this query again after that"
    )


def writer_is_alive(coordinator: Coordinator) -> bool:
    """Whether a writer's heartbeat is younger than 30 s."""
    return _living_writer(coordinator) is not None


def refuse_if_writer_alive(
    coordinator: Coordinator, command: str, *, force: bool, way_out: str = "wait, or use --force"
) -> None:
    """Refuse to run while a writer's heartbeat is younger than 30 s, unless forced. Raises: ConfigError."""
    pointer = None if force else _living_writer(coordinator)
    if pointer is not None:
        msg = (
            f"{describe_writer(pointer.writer)} gave a sign of life {pointer.heartbeat_age_s:.0f} s ago and"
            f" seems to be running; {command} would fence it: stop the query. A killed one counts as"
            f' running for {WRITER_ALIVE_S:.0f} s, one of format("tidegate") for 95 s: {way_out}'
        )
        raise ConfigError(msg)


def _living_writer(coordinator: Coordinator) -> Pointer | None:
    """Read the pointer of a store whose writer's heartbeat is younger than 30 s; None: there is none."""
    if coordinator.store.identity() is None:
        return None
    pointer = coordinator.store.pointer()
    return pointer if _is_alive(pointer) else None


def _is_alive(pointer: Pointer) -> bool:
    return pointer.heartbeat_age_s is not None and pointer.heartbeat_age_s < WRITER_ALIVE_S
