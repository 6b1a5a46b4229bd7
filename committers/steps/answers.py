"""The requests that find out which of log and store does not answer, for the alarm of a stuck commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

ANSWER_S = 1.0
"""A log or store without an answer after this time is named as the cause."""
SILENT = "it does not answer"


class Answers:
    """The answers to one small request each, sent by threads of their own: nobody waits for them."""

    def __init__(self, requests: Sequence[tuple[str, Callable[[], object]]]) -> None:
        """Send the requests, given with the names of their servers for messages."""
        self._until = time.monotonic() + ANSWER_S
        self._names = [name for name, _ in requests]
        self._errors = [SILENT] * len(requests)
        self._open = set(range(len(requests)))
        for index, (_, request) in enumerate(requests):
            thread = threading.Thread(
                target=self._ask, args=(index, request), name="tidegate-alarm-request", daemon=True
            )
            thread.start()

    def _ask(self, index: int, request: Callable[[], object]) -> None:
        try:
            request()
            self._errors[index] = ""
        except Exception as error:  # noqa: BLE001 - the alarm reports it; the commit has errors of its own
            self._errors[index] = f"{type(error).__name__}: {error}".replace("\n", " ")
        self._open.discard(index)

    @property
    def known(self) -> bool:
        """Whether all have answered or failed, or the time for an answer is over."""
        return not self._open or time.monotonic() >= self._until

    @property
    def missing(self) -> str:
        """The log or store that does not answer, with its error; '' when both do."""
        return "; ".join(
            f"{name}: {error}" for name, error in zip(self._names, self._errors, strict=True) if error
        )
