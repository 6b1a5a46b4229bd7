"""A driver's background work: heartbeat, gauges, repair between batches, retirement, trimming, followers.

A batch waits for it only when too many older versions wait for retirement (``committers/apply/priority.py``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from tidegate.base.clock import Clock
from tidegate.committers.apply.priority import ApplyPriority
from tidegate.committers.background import process_end
from tidegate.committers.background.follower import Follower, FollowerThread, Standing
from tidegate.committers.background.gauges import Gauges
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.recover import recover
from tidegate.committers.repair.lost_store import make_again
from tidegate.committers.steps.decided_versions import RetirementBacklog
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import StoreLostError, TidegateError
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels, LogPlace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.log import Log
from tidegate.wal.record import Folded

logger = logging.getLogger("tidegate")

AT_EXIT_S = 5.0
"""The time in which a process that ends retires and trims, and then notes that its writer is closed."""


class Background:
    """The daemon threads of one open driver, three and one for each follower; ``stop`` ends them and waits.

    ``alive`` is called at every heartbeat: when the query has ended, the heartbeat ends, and the
    followers end at the log's end. ``at`` is the namespace, and the primary's name in the log's list of
    stores.
    """

    def __init__(  # noqa: PLR0913 - all but the first four have defaults
        self,
        log: Log,
        store: Store,
        options: Options,
        epoch: Callable[[], int],
        alive: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
        *,
        followers: Sequence[Follower] = (),
        at: Labels = Labels(""),  # noqa: B008 - it is frozen
        way: ApplyPriority | None = None,
        folded: Callable[[], Folded | None] = lambda: None,
    ) -> None:
        """``way`` is the driver's priority at the store, ``folded`` returns its state of the log, if any."""
        self._log, self._store, self._options, self._epoch, self._alive = log, store, options, epoch, alive
        self._clock = clock or Clock()
        self._at = at
        self.priority = way or ApplyPriority()
        self._gauges = Gauges(at, log, store, folded, options.max_leases, self._clock)
        self._name, self._others = at.store, {follower.name: follower.store for follower in followers}
        self._ending = threading.Event()
        self._work, self._caught_up = threading.Event(), threading.Event()
        self._caught_up.set()
        self._threads = [
            threading.Thread(
                target=self._inside,
                args=(target,),
                name=f"tidegate-{target.__name__.strip('_')}",
                daemon=True,
            )
            for target in (self._heartbeat, self._measure, self._retire_and_trim)
        ]
        self._followers = [FollowerThread(follower, self._ending.is_set) for follower in followers]
        process_end.at_end(self._at_exit)
        for thread in self._threads:
            thread.start()

    def published(self) -> None:
        """Wake the threads after a version became visible: to retire, trim, and follow."""
        self.priority.published()
        self._caught_up.clear()
        if self._ending.is_set():  # the thread has ended, or is about to: the next writer retires
            self._caught_up.set()
        self._work.set()
        for each in self._followers:
            each.wake()

    def check(self) -> None:
        """Raise the error that ended a follower: FencedError or CorruptError (I10)."""
        for each in self._followers:
            if each.follower.failed is not None:
                raise each.follower.failed

    @property
    def standings(self) -> list[Standing]:
        """Return the standing of every other store."""
        return [each.follower.standing for each in self._followers]

    def drain(self, timeout_s: float) -> None:
        """After the last version: ``catch_up``, let the followers reach the log's end, then end.

        A follower that meets an error ends there. It waits at most ``timeout_s`` for each.
        """
        self.catch_up(timeout_s)
        self._end()
        for each in self._followers:
            each.join(timeout_s)
        self.stop()
        for standing in self.standings:
            if standing.visible < standing.decided:
                logger.warning(
                    "the writer ends, and store %s shows version %s of %s: the next continues, or `tidegate"
                    " recover` brings it to the log's end",
                    standing.name, standing.visible, standing.decided,
                )  # fmt: skip

    def catch_up(self, timeout_s: float) -> None:
        """Wait until older versions are retired and the log is trimmed after the last version, or both fail.

        A job that ends with its only version would leave both to a next one that does the same.
        """
        self._caught_up.wait(timeout_s)

    @property
    def ended(self) -> bool:
        """Whether the threads have ended, because they or the query were stopped."""
        return self._ending.is_set()

    def stop(self, *, followers: bool = True) -> None:
        """End all threads and wait for them. Repeatable.

        Without ``followers`` their threads continue until another Background has taken the followers over.
        """
        self._end()
        for each in self._followers if followers else ():
            each.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _at_exit(self) -> None:
        self.catch_up(AT_EXIT_S)
        self._end()
        self._threads[0].join(AT_EXIT_S)

    def _end(self) -> None:
        self._ending.set()
        self._work.set()
        for each in self._followers:
            each.wake()

    def _inside(self, work: Callable[[], None]) -> None:
        with events.log_context(LogPlace(self._at.namespace, phase=work.__name__.strip("_"))):
            work()

    def _heartbeat(self) -> None:
        """Write heartbeats until the query or the background work ends; the writer is closed then."""
        answered, connected = True, False
        while not self._ending.is_set():
            try:
                if not self._alive():
                    self._end()
                    break
                if epoch := self._epoch():  # 0: not open yet, there may be no namespace
                    answered = False
                    self._store.heartbeat(epoch)
                    answered = True
                    if not connected:
                        process_end.at_end(self._at_exit)  # again: the store's client has its own end by now
                        connected = True
                    if self._store.unverified():
                        self._work.set()  # readers are refused until it is repaired
            except Exception as error:  # noqa: BLE001 - a driver without a heartbeat would be silent
                if isinstance(error, StoreLostError):
                    self._gauges.watch_eviction()  # the cause first
                    self._work.set()  # readers are refused until it is rebuilt
                _tell(error, "heartbeat failed, tried again in %s s: %s", self._options.heartbeat_s)
            self._ending.wait(self._options.heartbeat_s)
        if answered and (epoch := self._epoch()):  # a store that is away would only make the end wait
            self._note_closed(epoch)
        process_end.forget(self._at_exit)

    def _note_closed(self, epoch: int) -> None:
        try:
            self._store.end_heartbeat(epoch)
        except Exception as error:  # noqa: BLE001 - the work has ended well without it
            _tell(error, "the store did not note that the writer is closed: %s")

    def _measure(self) -> None:
        """Report the gauges at each heartbeat, in a thread of its own: a silent log delays no heartbeat."""
        while not self._ending.is_set():
            try:
                if self._epoch():
                    self._gauges.watch_eviction()
                    self._gauges.report(self.standings)
            except Exception as error:  # noqa: BLE001 - without gauges nobody would be alerted
                _tell(
                    error, "the gauges could not be read, tried again in %s s: %s", self._options.heartbeat_s
                )
            self._ending.wait(self._options.heartbeat_s)
        events.tell(lambda observer: observer.closed(self._at.namespace))

    def _retire_and_trim(self) -> None:
        view, dropped, backlog = View(), 0, RetirementBacklog(self._log)
        trimmer = Trimmer(self._log, self._store, self._options, self._clock, self._others, self._name)
        while True:
            self._work.wait()
            self._work.clear()
            if self._ending.is_set():
                self._caught_up.set()
                return
            try:
                folded_at_us = self._clock.now_us()  # before the read: later decisions are not in it
                view = catch_up(view, self._log)
                events.level(Gauge.VOID, Labels(self._at.namespace), view.void)
                self._repair_if_changed(view)
                with events.timed(self._at, "retire"), self.priority.retiring():
                    dropped = retire_up_to(
                        self._log,
                        self._store,
                        view.state,
                        self._options,
                        self._between_steps,
                        dropped,
                        self.priority.retired,
                        backlog,
                    )
                if not self._ending.is_set():
                    trimmer.trim(view, folded_at_us, self._ending.is_set)
            except Exception as error:  # noqa: BLE001 - what ended here would never be retired again
                _tell(error, "retiring or trimming failed, tried again after the next version: %s")
            self._caught_up.set()
            if self._work.is_set():  # a version became visible meanwhile
                self._caught_up.clear()

    def _between_steps(self) -> bool:
        """Yield to a version that is applied; return whether to stop here."""
        if not self._ending.is_set():
            self.priority.yield_to_apply()
        return self._ending.is_set()

    def _repair_if_changed(self, view: View) -> None:
        """Put back the rows that servers lost, or a whole store, without waiting for a batch.

        The next batch may not come for hours.

        A batch that comes meanwhile does the same, without harm: any driver that owns the epoch may repeat
        each step.
        """
        epoch, state = self._epoch(), view.state
        if not epoch or state is None:
            return
        is_gone = self._store.identity() is None
        if is_gone and not state.last_version:
            return
        if not is_gone and not self._store.unverified():
            return
        where = Endpoints(state.name, self._log.where, self._store.where)
        coordinator = Coordinator(
            where, self._log, self._store, self._options, self._clock, writer=state.writer
        )
        coordinator.decisions.view = view
        coordinator.decisions.epoch = coordinator.decisions.tried_epoch = epoch
        if is_gone:
            make_again(coordinator)
        recover(coordinator, self._ending.is_set)


def _tell(error: Exception, what: str, *details: object) -> None:
    """Log an error whose work is tried again: one of tidegate's in one line, any other with its trace."""
    if isinstance(error, TidegateError):
        logger.warning(what, *details, error)
    else:
        logger.error(what, *details, error, exc_info=error)
