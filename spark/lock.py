"""The lock by which a sink runs one batch or load at a time. It does not import pyspark."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from tidegate.errors import ConfigError

logger = logging.getLogger("tidegate")

WARN_AFTER_S = 30.0
"""A thread that waits this long logs the thread that it waits for."""
WAIT_MAX_S = 86_400.0
"""A thread that waits this long is refused: the one before it will hardly end. A load may take hours."""
WITHIN = (
    "within the function of sink.each write through its transaction, and call load, import_folder, recover"
    " and close outside of it"
)


class SinkLock:
    """A non-reentrant lock. A thread that has it and acquires it again gets a ConfigError, not a deadlock.

    A thread for which the owner waits would deadlock, too; it is refused after WAIT_MAX_S.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._whose: threading.Thread | None = None

    def __enter__(self) -> None:
        if self.is_mine():
            raise ConfigError(f"this sink is in the middle of a batch or a load: {WITHIN}")
        if not self._lock.acquire(timeout=WARN_AFTER_S):
            logger.warning("%s for %g s; at most for %g s in all", self._waiting(), WARN_AFTER_S, WAIT_MAX_S)
            if not self._lock.acquire(timeout=WAIT_MAX_S - WARN_AFTER_S):
                raise ConfigError(
                    f"{self._waiting()} for {WAIT_MAX_S:g} s, which may wait for this one: {WITHIN}"
                )
        self._whose = threading.current_thread()

    def is_mine(self) -> bool:
        """Return whether this thread has the lock."""
        return self._whose is threading.current_thread()

    def _waiting(self) -> str:
        holder = self._whose
        name = "another thread" if holder is None else f"thread {holder.name!r}"
        return f"this sink waits for a batch or a load of {name}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._whose = None
        self._lock.release()
