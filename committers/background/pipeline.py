"""The pipelined commit: a version is completed while the next barriers are in their first half.

It has two sides. The deciding side calls ``commit``, which returns once the version is durable in the log.
The completing side calls ``run``, in a thread of its own: it applies, seals and publishes decided versions
in order. A version is **in flight** from its decision until it is visible. ``commit.py`` contains the order
of each half; this module contains only the waits between the sides.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable

from tidegate.base import failpoints
from tidegate.committers.barrier import Barrier
from tidegate.committers.commit import InFlight, complete, decided_since, until_decided
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.states import Machine, State
from tidegate.committers.steps.trim import summarise_if_due
from tidegate.errors import FencedError, StoreUnavailableError, TidegateError
from tidegate.observe import events
from tidegate.sinks.cache.in_flight import InFlightVersions, frames_of
from tidegate.wal.record import DecidedVersion, TableSchema

logger = logging.getLogger("tidegate")


class Changes:
    """The condition variable of a pipeline. The simulation has one in simulated time."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def tell(self) -> None:
        """Wake all waiting threads, which check their conditions again."""
        with self._condition:
            self._condition.notify_all()

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, at most ``timeout_s``; return whether it does."""
        with self._condition:
            return self._condition.wait_for(holds, timeout_s)


class Pipeline:
    """The versions in flight of one driver: at most ``commit_in_flight``, oldest first.

    ``commit`` and ``schemas`` are for the driver's own thread, ``run`` for one other; the rest for any.
    The first version that cannot be completed stops the pipeline (I7): ``failed`` is its error. From then on
    nothing is decided, and the driver has to be opened again, which recovers the versions in flight.
    ``published`` is called on the completing side for each version that became visible.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        published: Callable[[InFlight], None] = lambda _: None,
        changes: Changes | None = None,
    ) -> None:
        self._coordinator, self._published, self._changes = coordinator, published, changes or Changes()
        self._completing = coordinator.copy()  # a coordinator is not thread-safe
        self._line: deque[InFlight] = deque()
        self._decided = self._visible = 0
        self._stopping = self._not_ours = False
        self._schemas: dict[str, TableSchema] = {}
        self.failed: BaseException | None = None

    @property
    def in_flight(self) -> int:
        """The number of versions that are decided and not yet known to be visible."""
        return self._decided - self._visible

    @property
    def line_epoch(self) -> int:
        """The epoch at which the last version was, or is being, completed."""
        return self._completing.epoch

    @property
    def stopped(self) -> bool:
        """Whether nothing more is completed here: the pipeline was stopped, or has failed."""
        return self._stopping or self.failed is not None

    # -- the deciding side -----------------------------------------------------------------------------

    def commit(self, barrier: Barrier) -> DecidedVersion:
        """Make one barrier the next version, which becomes visible later.

        A barrier that needs its base version to be visible waits for that. Any other is staged at
        once, and decided as soon as fewer than ``commit_in_flight`` versions are in flight. Durable: on
        return the version is in the log. Raises, with nothing of this barrier decided: the errors of
        ``commit.commit`` before the decision; the error that stopped the pipeline (see ``check``);
        StoreUnavailableError: the earlier versions were not visible within ``apply_deadline_s``.
        """
        self.check()
        if barrier.needs_visible_base:
            self.drain(self._coordinator.options.apply_deadline_s)
        base = self._coordinator.last_decided
        in_flight_version = until_decided(self._coordinator, barrier, self._wait_for_room)
        for each in decided_since(self._coordinator, base, in_flight_version):
            self._put(each)
        summarise_if_due(self._coordinator.decisions, self._coordinator.options.summary_every)
        failpoints.hit("commit.before_return")
        return in_flight_version.decided

    def _wait_for_room(self) -> None:
        most, deadline_s = (
            self._coordinator.options.commit_in_flight,
            self._coordinator.options.apply_deadline_s,
        )
        if self.in_flight >= most:
            self._coordinator.waiting_for(f"room: {self.in_flight} decided versions are not visible")
        self._wait_until(lambda: self.in_flight < most, deadline_s)

    def _put(self, in_flight_version: InFlight) -> None:
        if in_flight_version.manifest is None:
            self._not_ours = True
        else:
            self._schemas.update(in_flight_version.manifest.schemas)
        if self.in_flight:
            self._coordinator.waiting_for(
                f"version {in_flight_version.decided.version - 1} to be visible first"
            )
        self._line.append(in_flight_version)
        self._decided += 1
        self._changes.tell()

    def schemas(self) -> dict[str, TableSchema]:
        """Return the schemas, by id, of the versions decided here: the store may not have them yet.

        A version whose manifest is another attempt's has to be visible first. Raises: as ``drain``.
        """
        if self._not_ours:
            self.drain(self._coordinator.options.apply_deadline_s)
            self._not_ours = False
        return self._schemas

    def in_flight_versions(self) -> InFlightVersions | None:
        """Return the versions in flight up to the last decided one, for reads of state at that one.

        ``visible`` is the newest version that was visible at the call, or one before it. None: the manifest
        of one of them is another attempt's, so that its frames are known only once it is visible.
        """
        line, last = self._line.copy(), self._coordinator.last_decided
        manifests = [each.manifest for each in line if each.manifest is not None]
        if [manifest.version for manifest in manifests] != list(range(last - len(line) + 1, last + 1)):
            return None
        return InFlightVersions(last - len(line), tuple(map(frames_of, manifests)))

    # -- any side ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that stopped the pipeline, as one of the same class with the first as its cause.

        A FencedError is about ``line_epoch``. This driver may since have fenced the driver that raised it,
        during a decision. The versions in flight are this driver's then, once it is opened again.
        """
        error = self.failed
        if error is None:
            return
        version = self._line[0].decided.version
        msg = f"version {version}, which an earlier batch decided, failed in the background: {error}"
        if isinstance(error, FencedError) and self._coordinator.epoch > self.line_epoch:
            msg += f"; this driver has fenced that one since, at epoch {self._coordinator.epoch}: restart it"
        raise (type(error) if isinstance(error, TidegateError) else TidegateError)(msg) from error

    def drain(self, timeout_s: float) -> None:
        """Wait until every version decided before this call is visible.

        Raises: StoreUnavailableError: it was not within ``timeout_s``; the versions stay decided, and the
        completing side continues. The error that stopped the pipeline, as ``check`` does.
        """
        decided = self._decided
        self._wait_until(lambda: self._visible >= decided, timeout_s)

    def _wait_until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        most_s = min(float(timeout_s), threading.TIMEOUT_MAX)
        came = self._changes.wait_for(lambda: holds() or self.failed is not None, most_s)
        self.check()
        if not came:
            msg = (
                f"{self.in_flight} versions are decided and not visible in {self._coordinator.store.where}"
                f" after {timeout_s} s; they stay decided: restart the query or run `tidegate recover` when"
                " the store is back"
            )
            raise StoreUnavailableError(msg)

    def stop(self) -> None:
        """Let ``run`` end after the version that it is completing."""
        self._stopping = True
        for in_flight_version in self._line.copy():
            _no_more(in_flight_version)
        self._changes.tell()

    # -- the completing side ---------------------------------------------------------------------------------

    def run(self, idle_s: float) -> None:
        """Complete versions as they are decided, until stopped, failed, or idle for ``idle_s``."""
        while self._changes.wait_for(lambda: bool(self._line) or self._stopping, idle_s):
            if self.stopped:
                return
            self.complete_next()

    def complete_next(self) -> None:
        """Complete the oldest version in flight. An error is logged and kept in ``failed``, not raised."""
        in_flight_version = self._line[0]
        try:
            failpoints.hit("pipeline.before_complete")
            with events.log_context(in_flight_version.machine.watch):
                self._complete(in_flight_version)
                self._published(in_flight_version)
            failpoints.hit("pipeline.after_complete")
        except Exception as error:
            version, trace = in_flight_version.decided.version, not isinstance(error, TidegateError)
            level, message = logging.ERROR, "version %s is decided, the line stops at it: %s"
            logger.log(level, message, version, error, exc_info=trace)
            self.failed = error
            _no_more(in_flight_version)
        else:
            self._line.popleft()
            self._visible += 1
        self._changes.tell()

    def _complete(self, in_flight_version: InFlight) -> None:
        decided, manifest, machine, frames = in_flight_version
        mine = self._completing
        mine.held = frames
        if mine.folded.last_version < decided.version:
            mine.decisions.view = self._coordinator.decisions.view  # it has at least this version
        mine.watch = machine.watch
        mine.waiting_for("")
        while True:
            mine.decisions.epoch = mine.decisions.tried_epoch = self._coordinator.epoch
            try:
                complete(mine, decided, manifest, machine)
            except FencedError:
                if self._coordinator.epoch == mine.epoch:
                    raise
                # This driver fenced itself while it decided a later version; no other driver did.
                machine = Machine(State.DECIDED, machine.watch)
            else:
                mine.held = {}
                return


def _no_more(in_flight_version: InFlight) -> None:
    """End the watch of a version that this driver no longer completes."""
    in_flight_version.machine.watch.end()


# -- a pipeline whose completing side is a thread, which is drained and ends with its query ----------------

logger = logging.getLogger("tidegate")


class PipelineThread(Pipeline):
    """A pipeline with a daemon thread as its completing side, while the query runs or versions are in flight.

    ``ended`` returns whether the query has ended; it is called every ``heartbeat_s``. When the interpreter
    exits, the versions in flight are drained first, at most ``apply_deadline_s``.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        published: Callable[[InFlight], None] = lambda _: None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(coordinator, published)
        self._ended, self._options = ended, coordinator.options
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def commit(self, barrier: Barrier) -> DecidedVersion:
        try:
            return super().commit(barrier)
        finally:
            self._start()  # also when a step after the decision failed

    def close(self) -> TidegateError | None:
        """Drain, at most ``apply_deadline_s``, and end the thread; return the error of the drain, or None.

        With an error versions stay in flight. It returns after the version that the thread is completing,
        which has deadlines of its own.
        """
        problem = None
        try:
            self.drain(self._options.apply_deadline_s)
        except TidegateError as error:
            problem = error
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join()
        return problem

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and self.in_flight and not self.stopped:
                self._thread = threading.Thread(target=self._run, name="tidegate-pipeline", daemon=True)
                atexit.register(self._at_exit)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self.run(self._options.heartbeat_s)
            with self._starting:  # so that no version is added between the check and the end
                if self.stopped or (self._ended() and not self.in_flight):
                    self._thread = None
                    break
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        problem = self.close()
        if problem is not None:
            logger.error("the process ends with versions in flight, for the next one to recover: %s", problem)
