"""The pipelined commit: a version is completed beside the first half of the next barriers.

Two sides. The deciding side calls ``commit``: it returns once the version is durable in the log. The
completing side calls ``run``, in a thread of its own: it applies, seals and publishes what was decided, in
order. A version is **in flight** from its decision until it is visible. The order of each half stands in
``commit.py``; here stands only who waits for whom.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable

from tidegate import failpoints, observing
from tidegate.committers.barrier import Barrier
from tidegate.committers.commit import OnItsWay, complete, decided_since, until_decided
from tidegate.committers.driver import Driver
from tidegate.committers.phases import Phases
from tidegate.committers.states import Machine, State
from tidegate.committers.trim import summarise_if_due
from tidegate.errors import FencedError, StoreUnavailableError, TidegateError
from tidegate.wal.record import TableSchema, VersionFact

logger = logging.getLogger("tidegate")


class Changes:
    """Wakes who waits for a condition of the pipeline. The simulation has one in its own time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def tell(self) -> None:
        """Something changed: everyone who waits looks again."""
        with self._condition:
            self._condition.notify_all()

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until it holds, at most so long; whether it does."""
        with self._condition:
            return self._condition.wait_for(holds, timeout_s)


class Pipeline:
    """The versions in flight of one driver: at most ``commit_in_flight``, oldest first.

    ``commit`` and ``schemas`` are for the driver's own thread, ``run`` for one other; the rest for any.
    The first version that cannot be completed stops the line (I7): ``failed`` is why. Nothing is
    decided any more then, and the driver has to be opened again, which recovers what is in flight.
    ``published`` is called on the completing side for each version that became visible.
    """

    def __init__(
        self,
        driver: Driver,
        published: Callable[[OnItsWay], None] = lambda _: None,
        changes: Changes | None = None,
    ) -> None:
        self._driver, self._published, self._changes = driver, published, changes or Changes()
        self._completing = dataclasses.replace(driver)  # a view of its own: no driver serves two threads
        self._line: deque[OnItsWay] = deque()
        self._decided = self._visible = 0
        self._stopping = self._not_ours = False
        self._schemas: dict[str, TableSchema] = {}
        self.failed: BaseException | None = None

    @property
    def in_flight(self) -> int:
        """How many versions are decided and not yet known to be visible."""
        return self._decided - self._visible

    @property
    def line_epoch(self) -> int:
        """The epoch at which the last version was, or is being, completed."""
        return self._completing.epoch

    @property
    def stopped(self) -> bool:
        """Whether nothing more is completed here: it was stopped, or the line has failed."""
        return self._stopping or self.failed is not None

    # -- the deciding side -----------------------------------------------------------------------------

    def commit(self, barrier: Barrier) -> VersionFact:
        """Make one barrier the next version: durable in the log on return, visible some time later.

        A barrier that reads state waits until its base version is visible. Any other is staged at
        once, and decided as soon as there is room in flight. Errors are those of ``commit.commit`` before
        the decision; besides, what ended an earlier version (see ``check``), or StoreUnavailableError: the
        earlier ones were not visible within ``apply_deadline_s``. Then nothing of this barrier is decided.
        """
        self.check()
        if barrier.reads_state:
            self.drain(self._driver.options.apply_deadline_s)
        base = self._driver.last_decided
        on_its_way = until_decided(self._driver, barrier, self._wait_for_room)
        for each in decided_since(self._driver, base, on_its_way):
            self._put(each)
        summarise_if_due(self._driver)
        failpoints.hit("commit.before_return")
        return on_its_way.fact

    def _wait_for_room(self) -> None:
        most, deadline_s = self._driver.options.commit_in_flight, self._driver.options.apply_deadline_s
        if self.in_flight >= most:
            self._driver.waits_for(f"room: {self.in_flight} decided versions are not visible")
        self._wait_until(lambda: self.in_flight < most, deadline_s)

    def _put(self, on_its_way: OnItsWay) -> None:
        if on_its_way.manifest is None:
            self._not_ours = True
        else:
            self._schemas.update(on_its_way.manifest.schemas)
        if self.in_flight:
            self._driver.waits_for(f"version {on_its_way.fact.version - 1} to be visible first")
        self._line.append(on_its_way)
        self._decided += 1
        self._changes.tell()

    def schemas(self) -> dict[str, TableSchema]:
        """The schemas, by id, of what was decided here: the store may not have them yet.

        Errors as ``drain``: a version whose manifest is another's has to be visible first.
        """
        if self._not_ours:
            self.drain(self._driver.options.apply_deadline_s)
            self._not_ours = False
        return self._schemas

    # -- any side ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what ended the line, as an error of the same class, with the first one as its cause.

        A FencedError is about ``line_epoch``. Who fenced the line may have been fenced by this driver since,
        while it decided: what is in flight is this driver's then, once it is opened again.
        """
        error = self.failed
        if error is None:
            return
        version = self._line[0].fact.version
        msg = f"version {version}, which an earlier batch decided, failed in the background: {error}"
        if isinstance(error, FencedError) and self._driver.epoch > self.line_epoch:
            msg += f"; this driver has fenced that one since, at epoch {self._driver.epoch}: restart it"
        raise (type(error) if isinstance(error, TidegateError) else TidegateError)(msg) from error

    def drain(self, timeout_s: float) -> None:
        """Wait until all that was decided before this call is visible.

        StoreUnavailableError: it was not within this time; it stays decided, and is still worked on.
        What ended the line is raised as by ``check``.
        """
        decided = self._decided
        self._wait_until(lambda: self._visible >= decided, timeout_s)

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        most_s = min(float(timeout_s), threading.TIMEOUT_MAX)
        came = self._changes.wait_for(lambda: holds() or self.failed is not None, most_s)
        self.check()
        if not came:
            msg = (
                f"{self.in_flight} versions are decided and not visible in {self._driver.store.where} after"
                f" {timeout_s} s; they stay decided: restart the query or run `tidegate recover` when the"
                " store is back"
            )
            raise StoreUnavailableError(msg)

    def stop(self) -> None:
        """Let ``run`` end behind the version that it is at."""
        self._stopping = True
        for on_its_way in self._line.copy():
            _no_more(on_its_way)
        self._changes.tell()

    # -- the completing side ---------------------------------------------------------------------------------

    def run(self, idle_s: float) -> None:
        """Complete versions as they are decided; returns when stopped, failed, or idle for so long."""
        while self._changes.wait_for(lambda: bool(self._line) or self._stopping, idle_s):
            if self.stopped:
                return
            self.complete_next()

    def complete_next(self) -> None:
        """Complete the oldest version in flight. Nothing is raised: it is told and kept in ``failed``."""
        on_its_way = self._line[0]
        try:
            failpoints.hit("pipeline.before_complete")
            with observing.within(on_its_way.machine.watch):
                self._complete(on_its_way)
                self._published(on_its_way)
            failpoints.hit("pipeline.after_complete")
        except Exception as error:
            version, trace = on_its_way.fact.version, not isinstance(error, TidegateError)
            level, told = logging.ERROR, "version %s is decided, the line stops at it: %s"
            logger.log(level, told, version, error, exc_info=trace)
            self.failed = error
            _no_more(on_its_way)
        else:
            self._line.popleft()
            self._visible += 1
        self._changes.tell()

    def _complete(self, on_its_way: OnItsWay) -> None:
        fact, manifest, machine = on_its_way
        mine = self._completing
        if mine.folded.last_version < fact.version:
            mine.view = self._driver.view  # it has at least this version
        mine.watch = machine.watch
        mine.waits_for("")
        while True:
            mine.epoch = mine.tried_epoch = self._driver.epoch
            try:
                complete(mine, fact, manifest, machine)
            except FencedError:
                if self._driver.epoch == mine.epoch:
                    raise
                # Not another driver: while a later version was decided this one fenced itself.
                machine = Machine(State.DECIDED, machine.watch)
            else:
                return


def _no_more(on_its_way: OnItsWay) -> None:
    """Nobody here works on it any more, so nobody watches it."""
    if isinstance(on_its_way.machine.watch, Phases):
        on_its_way.machine.watch.end()
