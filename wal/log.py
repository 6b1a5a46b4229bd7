"""The write-ahead log: the interface and its guarantees. No code that does I/O stands here.

A log has two parts. The **decision log** is totally ordered and holds records; the
**change-log** holds blobs (frames and manifests), read back by address. A log only keeps and
iterates bytes: what they mean is decided by ``wal/fold.py``.

Implementations: ``memory_log.py`` (the reference), ``wal/file/log.py`` (embedded) and
``wal/kafka/log.py``. All pass ``tidegate.testing.log.suite``.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidegate.base.checks import Check
from tidegate.wal.fold import Entry


class Appended(NamedTuple):
    """Where a record went: its position, and the position after it."""

    position: int
    next_position: int


class Blob(NamedTuple):
    """A blob read back, with the address it was asked by."""

    address: str
    content: bytes


class Trimmed(NamedTuple):
    """What a trim of the change-log dropped."""

    bytes: int


class LogSize(NamedTuple):
    """What a log takes up: its decision log and its change-log, orphans included."""

    decisions_bytes: int
    changelog_bytes: int


class Log(abc.ABC):
    """One namespace's write-ahead log. An instance may be used by several threads.

    ``where`` names the log in messages; it never shows a password.
    """

    where: str

    @abc.abstractmethod
    def create(self) -> None:
        """Make the log's containers (folder, topics) if they are missing. May be repeated.

        Durable on return. ConfigError: it cannot be made there, and why.
        """

    @abc.abstractmethod
    def append_decision(self, content: bytes) -> Appended:
        """Append one record to the decision log.

        On return the record is durable and ordered: every later ``decisions`` of any process
        shows it at ``position``. May be repeated: a repeat is another record with the same
        bytes, which the fold finds void if the first one counts.

        WalUnavailableError proves that this call wrote nothing (no answer, no room, or the log
        was not created). OutcomeUnknownError proves nothing: the record may be there, or may
        land later; one whose cause is a ConfigError says that this user is refused, and will be again.
        """

    @abc.abstractmethod
    def decisions(self, position: int = 0) -> Iterator[Entry]:
        """The records from ``position`` on, in order, up to the end as it was found.

        ``position`` is a position that this log gave out, or 0: the first record that is kept.
        Whatever is yielded is durable: a reader may act on it. A record whose append has not
        returned may or may not be included. Positions may have gaps. A log that was not created
        yields nothing. An iteration that has begun is not torn by a trim: it goes on with the
        log as it was.

        WalUnavailableError: the log did not answer in time. WalGapError: the records from
        ``position`` on were trimmed, or the log ends before ``position`` (an older copy was put
        back). CorruptError: bytes in the middle cannot be read.
        """

    @abc.abstractmethod
    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        """Append blobs to the change-log; their addresses, in order.

        Durable on return, all of them: this is what makes an ack true (I3). ``blobs`` is
        consumed lazily, so that a task's memory does not grow with its change-log.
        ``segment`` is a fresh name (``[a-z0-9-]+``) that groups what is staged and trimmed
        together; the caller never stages the same name twice.

        May be repeated under another segment name; what an earlier try left are orphans. No
        blobs: nothing is written, and no address comes back.
        Any error proves nothing about what was written, and no address may be used.
        """

    @abc.abstractmethod
    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        """The blobs at these addresses, each once, in any order, a bounded number in memory.

        The bytes are as they were found: the caller checks digest and checksum, whether or not
        the log has a checksum of its own.

        WalGapError: a blob is no longer (or was never) there. WalUnavailableError: no answer
        in time. CorruptError: an address cannot belong to this log, or the log's own checksum
        does not fit.
        """

    @abc.abstractmethod
    def trim_decisions(self, position: int) -> None:
        """Forget all records before ``position``; the record there becomes the first one.

        ``position`` is one that this log gave out for a record that is there: a Summary, which
        the caller folded and found valid, and below which everything is published (a log does
        not know what its records mean). Positions keep their meaning: ``decisions(0)`` starts
        with the record at ``position``, ``decisions(p)`` raises WalGapError for a p before it.

        One atomic step for readers and appenders of all processes: each finds the log as it
        was or as it is then, and no append is lost, whenever it comes. May be repeated; a
        position at or before the first record that is kept changes nothing, so that an older
        driver's late trim does no harm.

        After WalUnavailableError the log may be cut or not. WalGapError: the log ends at or
        before ``position``; CorruptError: no record starts there. Both prove that nothing was cut.
        """

    @abc.abstractmethod
    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        """Drop blobs that were staged before ``before_us`` and are not at a ``needed`` address.

        May keep more than it must: blobs of one segment go together, and an age that is close
        to the limit counts as younger. Never drops a blob at a needed address, nor one that was
        staged at or after ``before_us`` (microseconds since the epoch, by the log's own clock):
        it may be of an attempt that is being staged now, by a driver that the caller does not know.
        To be safe, ``before_us`` must lie so far back that whatever was staged before it is
        decided in what the caller folded, or can never be: see ``committers/steps/trim.py``.

        May be repeated, interrupted and raced. Reading a blob that was dropped is a WalGapError;
        a read that has begun finishes or is a WalGapError, never wrong bytes. What is dropped may
        come back after a power cut.

        After WalUnavailableError any part of it may be dropped. CorruptError: an address cannot
        belong to this log; nothing was dropped.
        """

    @abc.abstractmethod
    def size(self) -> LogSize:
        """About how many bytes the log takes up; zeros when it was not created. Changes nothing.

        WalUnavailableError: no answer in time.
        """

    def checks(self) -> list[Check]:
        """How the log is set up, as far as the promises rest on it; changes nothing.

        Nothing to say before it was created, nor for a log that cannot be set up wrongly.
        WalUnavailableError: no answer in time.
        """
        return []

    def now_us(self) -> int | None:
        """The log's own clock, in microseconds since the epoch; None: it has none, or told none yet.

        Told with the last append of this instance, and reckoned on from there.
        """
        return None

    def retention_s(self) -> float | None:
        """After so many seconds the log may forget what is still needed; None: never by age.

        WalUnavailableError: no answer in time.
        """
        return None

    @abc.abstractmethod
    def drop(self) -> bool:
        """Remove the log, for ever: records and blobs; whether there was anything.

        It is gone in one step: after a crash in between it is not there, as if it had never been
        created, never a part of it. May be repeated, also after such a crash. On return nothing
        is left. An append or stage that returns after it was of another log; one that comes
        later is a WalUnavailableError, until the log is created anew.

        WalUnavailableError: some of it is left that is no log any more; drop it again.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. May be repeated; nothing durable changes."""
