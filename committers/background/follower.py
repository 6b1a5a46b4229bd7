"""Followers: each brings one secondary store to the log's end, independently of the primary.

A follower has a coordinator of its own for one store, under the epoch of the driver that owns the namespace:
the same apply, seal and publish, one machine per version. It decides nothing, and no batch waits for it. It
keeps its errors in its ``standing``; FencedError and CorruptError end it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping

from tidegate.base import failpoints
from tidegate.committers.background.fill import fill, is_rebuilding
from tidegate.committers.coordinator import ApplyOnExecutors, Coordinator, OpenRequest
from tidegate.committers.opening.lifecycle import refuse_other_uuid
from tidegate.committers.opening.lost_attempts import lost_of, settle_lost_attempts
from tidegate.committers.opening.open import refuse_other_history, refuse_removed
from tidegate.committers.opening.preflight import refuse_unsafe_store
from tidegate.committers.opening.recover import recover
from tidegate.committers.repair.below_horizon import Repaired, repair_all
from tidegate.committers.repair.log_reach import log_can_rebuild
from tidegate.committers.repair.lost_groups import Source
from tidegate.committers.repair.lost_store import create_again, refuse_if_dropped
from tidegate.committers.steps.decided_versions import RetirementBacklog
from tidegate.committers.steps.epoch import claim_epoch
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import CorruptError, FencedError, StoreLostError, TidegateError, WalGapError
from tidegate.observe import events
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.sinks.store import Store

logger = logging.getLogger("tidegate")

STEP_DEADLINE_S = 5.0
"""A follower gives up a version after this time without success, and tries it again later."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.5, 30.0
COMMAND_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Standing:
    """The standing of a store, as its follower last saw it.

    ``visible`` is the store's last visible version, ``decided`` the log's last decided one. ``behind_s`` is
    the time since the store was last at the log's end, 0 when it is. ``error`` is the last error, '' when
    none.
    """

    name: str
    where: str
    visible: int = 0
    decided: int = 0
    behind_s: float = 0.0
    error: str = ""


class Follower:
    """One secondary of one driver. ``step`` is for one thread; ``standing`` and ``failed`` for any."""

    def __init__(
        self,
        at: StoreRef,
        coordinator: Coordinator,
        source: Store,
        epoch: Callable[[], int],
        *,
        fill_first: bool = False,
    ) -> None:
        self.name, self.failed = at.name, None
        self._fill_first = fill_first and coordinator.store.can_be_filled
        self._coordinator, self._source, self._epoch = coordinator, source, epoch
        self._visible = self._dropped = 0
        self._backlog = RetirementBacklog(coordinator.log)
        self._error = ""
        self._level_at = self._alarmed_at = self._beat_at = coordinator.clock.monotonic()
        self._level, self._retires = False, True
        self.heartbeat_s = coordinator.options.heartbeat_s

    failed: TidegateError | None
    """The FencedError or CorruptError that has stopped it; the next batch raises this (I10)."""
    driven_by: FollowerThread | None = None

    @property
    def store(self) -> Store:
        """The store that follows."""
        return self._coordinator.store

    @property
    def discarded(self) -> list[Stamp]:
        """The attempts that it removed from its store, because the log had lost their decisions."""
        return self._coordinator.discarded

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._coordinator.endpoints.namespace

    @property
    def standing(self) -> Standing:
        """The store's standing."""
        now, decided = self._coordinator.clock.monotonic(), self._coordinator.last_decided
        behind_s = 0.0 if self._level and not self._error else now - self._level_at
        return Standing(self.name, self.store.where, self._visible, decided, behind_s, self._error)

    def step(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Bring the store to the log's present end; return whether it is there.

        False: stopped half-way, or the log does not list the store. Repeatable. Raises: the errors of log
        and store; nothing of an unfinished version is visible.
        """
        coordinator, epoch = self._coordinator, self._epoch()
        if (
            not epoch
            or coordinator.decisions.catch_up() is None
            or self.name not in coordinator.folded.stores
        ):
            return False
        self._level = False
        if coordinator.epoch != epoch:
            self._open(epoch)
        if not self._begun(stopped):
            return False
        for_this_one = _either(stopped, self._went)
        recover(coordinator, for_this_one, self._source)
        self._visible = coordinator.store.pointer().visible
        self._level = self._visible >= coordinator.folded.last_version
        if self._visible and self._retires:
            self._dropped = retire_up_to(
                coordinator.log,
                coordinator.store,
                coordinator.folded,
                coordinator.options,
                stopped,
                self._dropped,
                backlog=self._backlog,
            )
        self._beat()
        return self._level

    def catch_up(self) -> Standing:
        """Bring the store to the log's end for a command, in ``COMMAND_TRIES``; return its standing.

        It retires nothing: a command does not know the query's ``keep_versions``.
        It raises nothing: ``standing.error`` is the last error, ``failed`` the one that ended the follower.
        """
        self._retires = False
        for tries_left in range(COMMAND_TRIES - 1, -1, -1):
            try:
                level = self.step()
                self.went_well(level=level)
            except TidegateError as error:
                self.retried(error)
                level = False
            if level or self.failed is not None:
                break
            if tries_left:
                self._coordinator.clock.sleep(PAUSE_FIRST_S)
        self.end_beat()
        return self.standing

    def look(self) -> bool:
        """Whether the store is behind the log, or lost something. It writes nothing."""
        state, store = self._coordinator.decisions.catch_up(), self.store
        if state is None or self.name not in state.stores:
            return False
        if store.identity() is None:
            self._visible, stamps = 0, []
        else:
            self._visible, stamps = store.pointer().visible, store.begun()
        self._level = self._visible >= state.last_version
        return not self._level or store.unverified() or bool(lost_of(self._coordinator.decisions, stamps))

    def repair(self, source: Source | None = None) -> Repaired:
        """Compare the store with the log, as far back as that reaches, and put back what its servers lost.

        Raises: as ``repair_all``.
        """
        self._coordinator.decisions.catch_up()
        self._open(self._epoch())
        return repair_all(self._coordinator, source)

    def beat(self) -> bool:
        """Write a heartbeat while no version comes; return whether servers have to be compared."""
        if not self._coordinator.epoch:
            return False
        self._beat()
        return self.store.unverified()

    def _beat(self) -> None:
        self._beat_at = self._coordinator.clock.monotonic()
        self.store.heartbeat(self._coordinator.epoch)

    def end_beat(self) -> None:
        """Note in the store that its writer is closed; a store that did not answer last is not asked."""
        if self._coordinator.epoch and not self._error:
            try:
                self.store.end_heartbeat(self._coordinator.epoch)
            except TidegateError as error:
                logger.warning("store %s did not note that its writer is closed: %s", self.name, error)

    def _open(self, epoch: int) -> None:
        """Check the store as a driver checks its primary, then claim it, before anything is written (I6)."""
        coordinator, state, store = self._coordinator, self._coordinator.folded, self._coordinator.store
        refuse_unsafe_store(coordinator)
        coordinator.decisions.epoch = coordinator.decisions.tried_epoch = epoch
        try:
            if store.identity() is None:
                refuse_if_dropped(coordinator)
                is_rebuilt = not self._fill_first and log_can_rebuild(coordinator)
                create_again(coordinator, state.last_version if is_rebuilt else 0)
            refuse_other_uuid(coordinator.log, store, state)
            # The pointer first: a visible version was decided before, so a log read later has it.
            pointer = store.pointer()
            refuse_removed(store, pointer)
            coordinator.decisions.catch_up()
            refuse_other_history(coordinator, coordinator.folded, pointer)
            claim_epoch(coordinator)
            settle_lost_attempts(coordinator)
        except BaseException:
            coordinator.decisions.epoch = 0  # claimed again before anything else is written
            raise
        failpoints.hit("follow.after_claim")

    def _begun(self, stopped: Callable[[], bool]) -> bool:
        """Whether a version is visible, or the log has every version from 1 on; else fill the store."""
        coordinator = self._coordinator
        pointer = coordinator.store.pointer()
        if pointer.visible or not coordinator.folded.last_version:
            return True
        # Version 1 is never filled: the log has it, and an apply of it may have begun here.
        fill_first = self._fill_first and self._source.pointer().visible >= FILLED_FROM
        if is_rebuilding(coordinator) or not (pointer.filling_at or fill_first):
            try:
                recover(coordinator, _either(stopped, self._went))
            except WalGapError:
                logger.warning("store %s is empty: it is filled from %s", self.name, self._source.where)
            else:
                return True
        filled = fill(coordinator, self._source, _either(stopped, self._went))
        coordinator.decisions.catch_up()  # versions were decided meanwhile
        return filled

    def _went(self) -> bool:
        """Write a heartbeat and the lag alarm when due: before each version, and key group of a fill."""
        if self._coordinator.clock.monotonic() - self._beat_at >= self.heartbeat_s:
            self._beat()
        self._alarm("it is catching up")
        return False

    # -- errors ----------------------------------------------------------------------------------

    def retried(self, error: Exception) -> None:
        """Keep and log an error; raise the lag alarm when it is due."""
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        if isinstance(error, WalGapError) and f"`tidegate store add {self.name}=URL`" not in text:
            text += (
                f" (or run `tidegate store remove {self.name}`, `tidegate drop --only-stores --store"
                f" {self.name}=URL` and `tidegate store add {self.name}=URL`, which fills it)"
            )
        if isinstance(error, StoreLostError):
            self._coordinator.decisions.epoch = 0  # the next step makes the namespace again, and claims it
        if isinstance(error, FencedError | CorruptError):
            self.failed = error
            logger.error("store %s is not followed any more: %s", self.name, text)
        elif not self._error:
            logger.warning("store %s does not follow, tried again: %s", self.name, text)
        self._error, self._level = text, False
        self._alarm(text)

    def went_well(self, *, level: bool) -> None:
        """Forget the last error after a step without one."""
        if self._error:
            logger.warning("store %s follows again, version %s is visible there", self.name, self._visible)
        self._error = ""
        if level:
            self._level_at = self._alarmed_at = self._coordinator.clock.monotonic()

    def _alarm(self, why: str) -> None:
        now, limit = self._coordinator.clock.monotonic(), self._coordinator.options.behind_s
        if now - self._alarmed_at < limit:
            return
        self._alarmed_at = now
        labels = events.Labels(self.namespace, self.name)
        events.count(events.Count.ALARMS, labels, kind="behind")
        logger.warning(
            "ALARM: store %s has been behind the log for %.0f s (15 times alarm_s is %.0f): version %s is"
            " visible there, %s is decided; the log is not trimmed meanwhile; bring it back, or run"
            " `tidegate store remove %s`: %s",
            self.name,
            now - self._level_at,
            limit,
            self._visible,
            self._coordinator.last_decided,
            self.name,
            why,
        )


def _either(one: Callable[[], bool], other: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: other() or one()


class FollowerThread:
    """A daemon thread that drives a follower; ``stop`` ends it and waits for it.

    An earlier thread that still drives the follower is ended first; no batch waits for that.
    """

    def __init__(self, follower: Follower, ended: Callable[[], bool]) -> None:
        self.follower = follower
        self._ended = ended
        self._before, follower.driven_by = follower.driven_by, self
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._wake.set()
        self._thread = threading.Thread(target=self._inside, name=f"tidegate-{follower.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread after a version was decided, or the query has ended."""
        self._wake.set()

    def stop(self) -> None:
        """End it after its current version or key group, and wait. Repeatable."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended by itself, at most ``timeout_s``."""
        self._thread.join(timeout_s)

    def _inside(self) -> None:
        if self._before is not None:
            self._before.stop()  # after its current version, perhaps in a store that does not answer
            self._before = None
        with events.log_context(events.LogPlace(self.follower.namespace, phase="follow")):
            self._run()
            self.follower.end_beat()

    def _run(self) -> None:
        """Drive the follower. After the query's end it continues up to the log's end, or an error."""
        follower = self.follower
        failures = 0
        while True:
            most = PAUSE_FIRST_S * 2 ** (failures - 1) if failures else follower.heartbeat_s
            woken = self._wake.wait(min(most, PAUSE_MOST_S))
            self._wake.clear()
            ended = self._ended()  # before the step, which applies every version decided until then
            if self._stopping.is_set():
                return
            try:
                if woken or failures or follower.beat():
                    follower.went_well(level=follower.step(self._stopping.is_set))
                failures = 0
            except Exception as error:  # noqa: BLE001 - also what Spark raises as it ends: logged, tried again
                follower.retried(error)
                failures = min(failures + 1, 10)
            if ended or follower.failed is not None:
                return


def followers_of(
    coordinator: Coordinator,
    apply: Mapping[str, ApplyOnExecutors] | None = None,
    open_one: Callable[[StoreRef], Store] | None = None,
) -> list[Follower]:
    """Build a follower for each store of the driver but the first, and set their stores as its ``others``.

    It opens no connection. ``apply`` maps a store's name to its apply on executors. The caller closes the
    stores.
    """

    def opened(ref: StoreRef) -> Store:
        return open_store(ref.url, coordinator.endpoints.namespace, ref.options, coordinator.clock)

    followers = [
        follower_for(coordinator, ref, (open_one or opened)(ref), (apply or {}).get(ref.name))
        for ref in coordinator.endpoints.also
    ]
    coordinator.others = tuple(follower.store for follower in followers)
    return followers


def follower_for(
    coordinator: Coordinator,
    at: StoreRef,
    store: Store,
    apply: ApplyOnExecutors | None = None,
    *,
    fill_first: bool = False,
) -> Follower:
    """Build a follower of one store, under the driver's epoch.

    ``fill_first``: an empty store is filled, not caught up from the log's start, unless the source is at
    version 1.
    """
    deadline_s = min(coordinator.options.apply_deadline_s, STEP_DEADLINE_S)
    options = dataclasses.replace(coordinator.options, apply_deadline_s=deadline_s)
    if store.checks_of_confirm(replicas=1, aof=False):  # a copy of a kind that has nothing to wait for
        options = dataclasses.replace(options, wait_replicas=0, wait_aof=False)
    where = coordinator.endpoints.only(at)
    own = Coordinator(
        where, coordinator.log, store, options, coordinator.clock, apply, writer=coordinator.writer
    )
    own.request = OpenRequest(discard_lost=coordinator.request.discard_lost)
    return Follower(at, own, coordinator.store, lambda: coordinator.epoch, fill_first=fill_first)
