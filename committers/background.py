"""Work beside the batches: heartbeat, retirement and trimming. Never on a batch's path."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tidegate.clock import Clock
from tidegate.committers.retire import retire_up_to
from tidegate.committers.trim import Trimmer
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.log import Log

logger = logging.getLogger("tidegate")


class Background:
    """Two daemon threads for one open driver; ``stop`` ends them and waits for them.

    ``alive`` is asked at every heartbeat: when the query has ended, so does the heartbeat.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        options: Options,
        epoch: Callable[[], int],
        alive: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
    ) -> None:
        self._log, self._store, self._options, self._epoch, self._alive = log, store, options, epoch, alive
        self._clock = clock or Clock()
        self._ending = threading.Event()
        self._work = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"tidegate-{target.__name__.strip('_')}", daemon=True)
            for target in (self._heartbeat, self._retire_and_trim)
        ]
        for thread in self._threads:
            thread.start()

    def published(self) -> None:
        """A version became visible: an older one may be retired now, and the log trimmed."""
        self._work.set()

    @property
    def ended(self) -> bool:
        """Whether the threads have ended, because they were stopped or the query was."""
        return self._ending.is_set()

    def stop(self) -> None:
        """End both threads and wait for them. May be repeated."""
        self._ending.set()
        self._work.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _heartbeat(self) -> None:
        while not self._ending.is_set():
            if not self._alive():
                self._ending.set()
                self._work.set()
                return
            try:
                if epoch := self._epoch():  # 0: not open yet, there may be no namespace
                    self._store.heartbeat(epoch)
            except TidegateError as error:
                logger.warning("heartbeat failed, tried again in %s s: %s", self._options.heartbeat_s, error)
            self._ending.wait(self._options.heartbeat_s)

    def _retire_and_trim(self) -> None:
        view, dropped = View(), 0
        trimmer = Trimmer(self._log, self._store, self._options, self._clock)
        while True:
            self._work.wait()
            self._work.clear()
            if self._ending.is_set():
                return
            try:
                folded_at_us = self._clock.now_us()  # before the read: later decisions are not in it
                view = catch_up(view, self._log)
                dropped = retire_up_to(
                    self._log, self._store, view.state, self._options, self._ending.is_set, dropped
                )
                if not self._ending.is_set():
                    trimmer.trim(view, folded_at_us, self._ending.is_set)
            except TidegateError as error:
                logger.warning("retiring or trimming failed, tried again after the next version: %s", error)
