"""One batch or load of a sink at a time. No pyspark is imported here."""

from __future__ import annotations

import threading
from types import TracebackType

from tidegate.errors import ConfigError


class Turns:
    """A lock. Who has it and asks for it again is told so: by a plain one they would wait for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._whose: int | None = None

    def __enter__(self) -> None:
        if self._whose == threading.get_ident():
            raise ConfigError(
                "this sink is in the middle of a batch or a load: within the function of sink.each write"
                " through its transaction, and call load, import_folder, recover and close outside of it"
            )
        self._lock.acquire()
        self._whose = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._whose = None
        self._lock.release()
