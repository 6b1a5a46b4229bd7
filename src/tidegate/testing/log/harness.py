"""Harness of the shipped log suites: the hooks that a subclass implements, and small helpers."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tidegate.base.clock import Clock
from tidegate.errors import TidegateError
from tidegate.testing import concurrency
from tidegate.wal.fold import Entry
from tidegate.wal.log import Appended, Log

MEGABYTE = 1_000_000


class Place(NamedTuple):
    """The place of a log, by which another process opens it: the arguments of ``open_log``."""

    url: str
    namespace: str
    options: dict[str, Any]


class LogHarness(abc.ABC):
    """The hooks of a log's suite."""

    clock = Clock()
    keeps_blobs_in_memory = False
    """True for a log whose change-log is this process's memory."""
    look_ahead_max = 16
    """The number of blobs of 100 KB that ``stage`` may hold at once."""
    large_blob_bytes = 20 * MEGABYTE
    batches_share_a_checksum = False
    """True for a log where damage to a small blob makes those staged with it unreadable, too."""
    refuses_used_segments = True
    """False for a log that cannot detect that a segment's name was used."""

    # -- hooks that a subclass implements ------------------------------------------------------------

    @abc.abstractmethod
    def make_log(self) -> Log:
        """Make a log that was not created yet, in a place of its own: every call another place."""

    @abc.abstractmethod
    def reopen(self, log: Log) -> Log:
        """Open another instance of the same log."""

    def place(self, log: Log) -> Place | None:
        """Return the place by which another process opens it; None when other processes cannot."""
        return None

    def damage_decision(self, log: Log, nth: int) -> None:
        """Flip one bit inside the nth record (from 0) of the decision log."""
        pytest.skip("this log's records cannot be damaged from outside")

    def damage_blob(self, log: Log, address: str) -> None:
        """Flip one bit inside the blob at this address."""
        pytest.skip("this log's blobs cannot be damaged from outside")

    def tear(self, log: Log) -> None:
        """Leave half a record at the end, as a crash in the middle of an append does."""
        pytest.skip("this log cannot be torn from outside")

    def lose_segment(self, log: Log, segment: str) -> None:
        """Remove the segment of this name."""
        pytest.skip("this log's segments cannot be removed from outside")

    def lose_last_decision(self, log: Log) -> None:
        """Cut the last record off, as the restore of an older copy does."""
        pytest.skip("this log's records cannot be removed from outside")

    def make_old(self, log: Log, segment: str, seconds: float) -> None:
        """Make the segment of this name look older, by ``seconds``."""
        pytest.skip("the age of this log's segments cannot be changed from outside")

    @pytest.fixture
    def log(self) -> Iterator[Log]:
        new = self.make_log()
        new.create()
        yield new
        new.close()


# -- helpers -----------------------------------------------------------------------------------


def contents(log: Log) -> list[bytes]:
    """Read all records of the decision log."""
    return [entry.content for entry in log.decisions()]


def entries(appends: list[Appended], records: list[bytes]) -> list[Entry]:
    """Return the entries that ``decisions`` must yield for these appends."""
    return [
        Entry(appended.position, appended.next_position, record)
        for appended, record in zip(appends, records, strict=True)
    ]


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run ``work(0)`` to ``work(count - 1)`` at once; raise the first error of any."""
    for result in concurrency.in_threads(*(functools.partial(work, index) for index in range(count))):
        if isinstance(result, TidegateError):
            raise result
