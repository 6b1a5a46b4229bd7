"""What repairs put back, noted in a history: they report it by a warning of the library's logger."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from tidegate.committers.repair import PUT_BACK
from tidegate.torture.events import PutBack
from tidegate.torture.history import Recorder

LOGGER = "tidegate"


class MendingNotes(logging.StreamHandler):  # type: ignore[type-arg] # not generic when it runs
    """Prints warnings as they come, and notes those that report a version that was put back.

    ``began`` is a time at or before the begin of the repair.
    """

    def __init__(self, recorder: Recorder, namespace: str) -> None:
        super().__init__()
        self.began = recorder.now()
        self._recorder, self._namespace = recorder, namespace

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if record.msg == PUT_BACK:
            args: Any = record.args
            version, key_groups = args
            namespace, began = self._namespace, self.began
            self._recorder.note(
                PutBack(namespace=namespace, version=version, key_groups=key_groups, began=began)
            )


@contextlib.contextmanager
def mending_noted(recorder: Recorder, namespace: str) -> Iterator[MendingNotes]:
    """Note what is put back by this process meanwhile."""
    logger, notes = logging.getLogger(LOGGER), MendingNotes(recorder, namespace)
    logger.addHandler(notes)
    try:
        yield notes
    finally:
        logger.removeHandler(notes)
