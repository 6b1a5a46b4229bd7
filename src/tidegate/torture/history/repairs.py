"""Notes of repairs in a history. Repairs report what they put back by a warning of the library's logger."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from tidegate.torture.history.events import PutBack
from tidegate.torture.history.files import Recorder

LOGGER = "tidegate"
PUT_BACK = "put back in %s key groups"
"""The end of a message that reports what was put back; its last arguments are the version and this number."""


def put_back_in(record: logging.LogRecord) -> tuple[int, int] | None:
    """Return the version (0 for merged ones) and the number of key groups put back; None: another message."""
    if not str(record.msg).endswith(PUT_BACK):
        return None
    args: Any = record.args
    *prefix, version, key_groups = args
    return 0 if prefix == ["all versions up to"] else version, key_groups


class MendingNotes(logging.StreamHandler):  # type: ignore[type-arg] # not generic when it runs
    """A handler that prints each warning at once, and notes those that report a version that was put back.

    ``began`` is a time at or before the begin of the repair.
    """

    def __init__(self, recorder: Recorder, namespace: str) -> None:
        super().__init__()
        self.began = recorder.now()
        self._recorder, self._namespace = recorder, namespace

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if (repaired := put_back_in(record)) is not None:
            version, key_groups = repaired
            event = PutBack(
                namespace=self._namespace, version=version, key_groups=key_groups, began=self.began
            )
            self._recorder.note(event)


@contextlib.contextmanager
def mending_noted(recorder: Recorder, namespace: str) -> Iterator[MendingNotes]:
    """Note the versions that this process puts back while the block runs."""
    logger, notes = logging.getLogger(LOGGER), MendingNotes(recorder, namespace)
    logger.addHandler(notes)
    try:
        yield notes
    finally:
        logger.removeHandler(notes)
