"""Open: take a namespace over. Check, append Open, fold through it, claim, recover.

Everything that can be refused is refused before anything is appended, and checked again
after, because another driver may have written in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate import failpoints
from tidegate.committers.driver import Driver
from tidegate.committers.epoch import claim_epoch, refuse_if_shared, take_epoch
from tidegate.committers.lost_attempts import refuse_lost_attempts, settle_lost_attempts
from tidegate.committers.lost_pointer import resume
from tidegate.committers.recover import recover
from tidegate.committers.store_list import list_stores_of_new, refuse_other_stores
from tidegate.committers.unsafe import refuse_unsafe, refuse_unsafe_log, refuse_unsafe_store
from tidegate.errors import (
    ConfigError,
    FencedError,
    LineageError,
    OutcomeUnknownError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.key_groups import KEY_GROUPS_DEFAULT
from tidegate.sinks.aliases import refuse_writing
from tidegate.sinks.store import Identity, Pointer, Stamp
from tidegate.wal.fold import fact_of
from tidegate.wal.log import Appended
from tidegate.wal.record import Folded, Genesis

WRITER_ALIVE_S = 30.0
"""A writer whose heartbeat is younger than this is taken to be alive."""

Check = Callable[[Folded], None]


def open_namespace(
    driver: Driver, lineage: str | None, check: Check | None = None, *, changing: str | None = None
) -> list[int]:
    """Make ``driver`` the writer, and everything decided visible in its store; the versions recovered.

    The same as ``take_over``, then ``recover``.
    """
    take_over(driver, lineage, check, changing=changing)
    return recover(driver)


def take_over(
    driver: Driver, lineage: str | None, check: Check | None = None, *, changing: str | None = None
) -> None:
    """Make ``driver`` the writer; what was decided and is not visible waits for ``recover``.

    ``lineage`` None means: the current one, whatever it is. ``check`` may refuse (raise) on
    the folded state, before the append and again after it. A driver that ran before is fenced
    at once. ``changing`` is a store that is being added or removed: it may be in the log's list or not.

    ConfigError, LineageError, WalGapError: refused, nothing appended. FencedError: another
    driver opened at the same time and won. OutcomeUnknownError: the Open's fate is unknown;
    open again. A log that refuses this user is not asked until the deadline.
    """
    driver.all_is_settled()
    ensure_made(driver)

    def refuse(pointer: Pointer, begun: Sequence[Stamp]) -> str | None:
        state = driver.folded
        taken = state.lineage if lineage is None else lineage
        refuse_other_stores(driver, state, changing)
        _refuse_unfilled(driver, pointer)
        refuse_other_history(driver, state, pointer)
        refuse_lost_attempts(driver, begun)
        _refuse_other_lineage(driver, state, taken)
        if check is not None:
            check(state)
        return taken

    patience = driver.patience(driver.options.decide_deadline_s)
    while True:
        # The store first: what is visible or begun was decided before, so a log read later must have it,
        # also while another driver commits.
        pointer, begun = driver.store.pointer(), driver.store.begun()
        driver.fold_on()
        taken = refuse(pointer, begun)
        failpoints.hit("open.before_append")
        appended = take_epoch(driver, taken, pointer.epoch)
        pointer = driver.store.pointer()
        if _owned(driver, appended):
            break
        if driver.gives_up(patience):
            msg = (
                f"whether this driver opened namespace {driver.endpoints.namespace} is unknown:"
                f" {driver.log.where} did not answer, or others kept opening it"
                f"{driver.last_said(driver.options.decide_deadline_s)}; restart the query"
            )
            raise OutcomeUnknownError(msg)
        patience.pause()
    failpoints.hit("open.after_append")
    refuse(pointer, begun)
    claim_epoch(driver)
    _look_again(driver)
    settle_lost_attempts(driver)
    failpoints.hit("open.after_claim")
    list_stores_of_new(driver)
    resume(driver)


def _look_again(driver: Driver) -> None:
    """Look at the pointer after the claim, from which on no older driver flips or claims.

    An older driver whose records the log lost may have done so until then. FencedError, WalGapError: nothing
    of a version was written.
    """
    pointer = driver.store.pointer()
    refuse_if_shared(driver, pointer)
    if pointer.epoch == driver.epoch:
        refuse_other_history(driver, driver.folded, pointer)


def _owned(driver: Driver, appended: Appended | None) -> bool:
    """Whether the fold, read through our Open, says that the epoch is ours."""
    state = driver.fold_behind(None)
    if state is not None and (state.epoch, state.writer) == (driver.tried_epoch, driver.writer):
        driver.epoch = driver.tried_epoch
        return True
    if state is not None and state.epoch > driver.tried_epoch and appended is not None:
        msg = (
            f"driver {state.writer} opened namespace {driver.endpoints.namespace} at epoch {state.epoch}"
            " while this one was opening it: stop one of the two"
        )
        raise FencedError(msg)
    return False


def ensure_made(driver: Driver) -> Folded:
    """The namespace in log and store, made when neither has it; checked to be one namespace.

    May be repeated and raced: the first Genesis wins, every store takes its uuid.
    """
    identity = driver.store.identity()  # first: a store is made only for a log that has begun
    state = driver.fold_on()
    if state is None:
        if identity is not None:
            raise log_is_empty(driver, identity)
        name = driver.endpoints.namespace
        refuse_writing(driver.store.where, name, driver.store.aliases().get(name))
        state = _begin_log(driver)
    else:
        refuse_unsafe(driver)
    if identity is None:
        identity = driver.store.create(Identity(state.namespace, state.name, state.key_groups))
    refuse_other_uuid(driver, state, identity)
    wanted = driver.options.key_groups
    if wanted is not None and wanted != state.key_groups:
        msg = (
            f"namespace {state.name} was made with key_groups={state.key_groups}, {wanted} was asked for: key"
            " groups are fixed for life; leave the option out, or use a new namespace"
        )
        raise ConfigError(msg)
    return state


def _begin_log(driver: Driver) -> Folded:
    """Make the log with its first record. One that is made here is checked after that: until the record is
    there, a driver of a log that was here before may be the first to append.
    """
    refuse_unsafe_store(driver)
    was_made = bool(driver.log.checks())  # a log that is not there has nothing to say
    if was_made:
        refuse_unsafe_log(driver)
    driver.log.create()
    try:
        state = _append_genesis(driver)
    except WalUnavailableError:
        if driver.refused and not was_made:
            refuse_unsafe_log(driver)  # names the right that is missing: nothing was written
        raise
    _refuse_older_state(driver, state)
    if not was_made:
        refuse_unsafe_log(driver)
    return state


def refuse_other_uuid(driver: Driver, state: Folded, identity: Identity) -> None:
    """WalGapError when the driver's store is of another namespace than the log."""
    if identity.uuid != state.namespace:
        why = f"the log is of namespace {state.namespace}, the store of namespace {identity.uuid}"
        raise _log_behind(driver, why)


def _append_genesis(driver: Driver) -> Folded:
    genesis = Genesis(
        namespace=f"{driver.clock.new_id()}{driver.clock.new_id()}",
        writer=driver.writer,
        epoch=0,
        prev_digest="",
        key_groups=driver.options.key_groups or KEY_GROUPS_DEFAULT,
        name=driver.endpoints.namespace,
        created_at_us=driver.clock.now_us(),
    )
    patience = driver.patience(driver.options.decide_deadline_s)
    tried = False
    while (state := driver.fold_on()) is None:
        if tried and driver.gives_up(patience):
            said = driver.last_said(driver.options.decide_deadline_s)
            msg = f"{driver.log.where} did not take the first record of namespace {genesis.name}{said}"
            raise WalUnavailableError(msg)
        driver.append(genesis)  # a second copy, or another's, is void behind the first
        if driver.view.state is None:
            patience.pause()
        tried = True
    return state


def _refuse_older_state(driver: Driver, state: Folded) -> None:
    """ConfigError: the log was empty, and now it begins with the state of a namespace that the store does not
    have. One that the store has was made by another driver meanwhile, and trimmed.
    """
    first = next(iter(driver.log.decisions()), None)
    began = {place.position for place in driver.view.summaries[:1]}
    if first is not None and first.position in began and driver.store.identity() is None:
        raise ConfigError(
            f"{driver.log.where} was just made, and a driver of namespace {state.namespace}, which was there"
            f" before, wrote its state first: stop that driver, run `tidegate drop --force` and start again"
        )


def refuse_other_history(driver: Driver, state: Folded, pointer: Pointer) -> None:
    """WalGapError when what is visible in the driver's store was never decided in this log."""
    if pointer.visible > state.last_version:
        why = f"version {pointer.visible} is visible, the log ends at version {state.last_version}"
        raise _log_behind(driver, why)
    fact = fact_of(state, pointer.visible)
    if fact is not None and fact.digest != pointer.digest:
        why = f"version {pointer.visible} has digest {pointer.digest} in the store, {fact.digest} in the log"
        raise _log_behind(driver, why)


def _refuse_unfilled(driver: Driver, pointer: Pointer) -> None:
    if pointer.filling_at:
        msg = (
            f"{driver.store.where} is being filled from another store, at version {pointer.filling_at}, and"
            " shows nothing yet: put a store that is filled first, this one after it"
        )
        raise ConfigError(msg)


def log_is_empty(driver: Driver, identity: Identity) -> WalGapError:
    """The error for a store whose log is not there (any more)."""
    return _log_behind(driver, f"namespace {identity.uuid} is in the store, the log is empty")


def _log_behind(driver: Driver, why: str) -> WalGapError:
    return WalGapError(
        f"the log {driver.log.where} does not belong to, or is behind, the {driver.store.where}: {why};"
        " nothing was written; check the log's URL, restore the log that belongs to this store, or use a new"
        " namespace"
    )


def _refuse_other_lineage(driver: Driver, state: Folded, lineage: str | None) -> None:
    if state.lineage is None or state.last_version == 0 or lineage == state.lineage:
        return
    msg = (
        f"namespace {driver.endpoints.namespace} follows the checkpoint of query {state.lineage} and has"
        f" {state.last_version} versions from it; this query is {lineage}: its checkpoint was deleted or"
        " replaced. Put the old checkpoint back; or, if the new one is meant to take over, run"
        f" `tidegate adopt --lineage {lineage}` and restart the query; or use a new namespace"
    )
    raise LineageError(msg)


def writer_is_alive(driver: Driver) -> bool:
    """Whether a writer's heartbeat is younger than 30 s."""
    if driver.store.identity() is None:
        return False
    age = driver.store.pointer().heartbeat_age_s
    return age is not None and age < WRITER_ALIVE_S


def refuse_if_writer_alive(driver: Driver, command: str, *, force: bool) -> None:
    """ConfigError when a writer's heartbeat is younger than 30 s, unless forced."""
    if driver.store.identity() is None:
        return
    pointer = driver.store.pointer()
    age = pointer.heartbeat_age_s
    if not force and age is not None and age < WRITER_ALIVE_S:
        msg = (
            f"driver {pointer.writer} gave a sign of life {age:.0f} s ago and seems to be running;"
            f" `{command}` would fence it: stop the query and wait {WRITER_ALIVE_S:.0f} s, or use --force"
        )
        raise ConfigError(msg)
