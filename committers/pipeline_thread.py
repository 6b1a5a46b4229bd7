"""A pipeline whose completing side is a thread, which ends with its query and is drained at the end."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from tidegate.committers.barrier import Barrier
from tidegate.committers.commit import OnItsWay
from tidegate.committers.driver import Driver
from tidegate.committers.pipeline import Pipeline
from tidegate.errors import TidegateError
from tidegate.wal.record import VersionFact

logger = logging.getLogger("tidegate")


class PipelineThread(Pipeline):
    """Completes beside the batches: a daemon thread while the query runs, or something is in flight.

    ``ended`` says whether the query has ended; it is asked every ``heartbeat_s``. When the interpreter
    exits, what is in flight is drained first, at most ``apply_deadline_s``.
    """

    def __init__(
        self,
        driver: Driver,
        published: Callable[[OnItsWay], None] = lambda _: None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(driver, published)
        self._ended, self._options = ended, driver.options
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def commit(self, barrier: Barrier) -> VersionFact:
        try:
            return super().commit(barrier)
        finally:
            self._start()  # also when what followed the decision failed

    def close(self) -> TidegateError | None:
        """Drain, at most ``apply_deadline_s``, and end the thread; why something stays in flight, or None.

        It returns behind the version that the thread is at, which has deadlines of its own.
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
            with self._starting:  # so that no version comes in between the look and the end
                if self.stopped or (self._ended() and not self.in_flight):
                    self._thread = None
                    break
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        problem = self.close()
        if problem is not None:
            logger.error("the process ends with versions in flight, for the next one to recover: %s", problem)
