"""The write-ahead log: its interface and guarantees. This module does no I/O.

A log has two parts. The **decision log** is totally ordered and holds records. The **change-log**
holds blobs (frames and manifests), which are read back by address. A log only keeps and iterates
bytes: ``wal/fold.py`` defines what they mean.

Implementations: ``memory_log.py`` (the reference), ``wal/file/log.py`` (embedded) and
``wal/kafka/log.py``. All pass ``tidegate.testing.log.suite``.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tidegate.base.checks import Check
from tidegate.wal.fold import Entry

RECORD_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of a record of the decision log: a Summary of 1,000 versions takes some 400 KB."""


class Appended(NamedTuple):
    """The position of an appended record, and the position after it."""

    position: int
    next_position: int


class Blob(NamedTuple):
    """A blob as it was read, with the address under which it was requested."""

    address: str
    content: bytes


class Blobs(Protocol):
    """The blobs of versions: a log, or the copy of a part of it in a backup."""

    @property
    def where(self) -> str:
        """Their location, for messages."""
        ...

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        """Yield the blobs at these addresses, as ``Log.read``."""
        ...


class Trimmed(NamedTuple):
    """The result of a trim of the change-log: the bytes it dropped."""

    bytes: int


class LogSize(NamedTuple):
    """The size of a log: its decision log and its change-log, orphans included."""

    decisions_bytes: int
    changelog_bytes: int


class Log(abc.ABC):
    """One namespace's write-ahead log. An instance may be used by several threads.

    ``where`` names the log in messages. It never shows a password.
    """

    where: str
    folder: Path | None = None
    """The folder of its files; None: they are not on this machine."""

    @abc.abstractmethod
    def create(self) -> None:
        """Create the log's containers (folder, topics) if they are missing.

        Durable: on return. Repeatable: yes. Raises: ConfigError, with the reason, when it cannot be
        created there.
        """

    @abc.abstractmethod
    def append_decision(self, content: bytes) -> Appended:
        """Append one record to the decision log.

        Durable: on return the record is durable and ordered, and every later ``decisions`` of any
        process yields it at ``position``. Repeatable: a repeat is another record with the same
        bytes, which the fold finds void if the first one counts.

        Raises: WalUnavailableError proves that this call wrote nothing (no answer, no capacity, or
        the log was not created). OutcomeUnknownError proves nothing: the record may be there, or
        may be written later. If its cause is a ConfigError, the log refuses this user, and will
        again.
        """

    @abc.abstractmethod
    def decisions(self, position: int = 0) -> Iterator[Entry]:
        """Yield the records from ``position`` on, in order, up to the end at the time of the call.

        ``position`` is a position that this log returned, or 0 for the first record that is kept.
        Durable: every yielded record is, so a reader may act on it. A record whose append has not
        returned may or may not be included. Positions may have gaps. A log that was not created
        yields nothing. A trim does not tear an iteration that has begun: it continues with the log
        as it was.

        Raises: WalUnavailableError, no answer in time; WalGapError, the records from ``position``
        on were trimmed, or the log ends before ``position`` (an older copy was restored);
        CorruptError, bytes in the middle cannot be read.
        """

    def is_empty(self) -> bool:
        """Return whether the decision log has no record, or does not exist. Raises: as ``decisions``."""
        return not any(True for _ in self.decisions())

    @abc.abstractmethod
    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        """Append blobs to the change-log and return their addresses, in order.

        ``blobs`` is consumed lazily, so that a task's memory does not grow with its change-log.
        ``segment`` is a fresh name (``[a-z0-9-]+``) that groups what is staged and trimmed
        together; the caller never stages the same name twice. Without blobs nothing is written and
        no address returned.

        Durable: all blobs on return; this is what makes an ack true (I3). Repeatable: under another
        segment name; the blobs of an earlier try are orphans. Raises: any error proves nothing
        about what was written, and no address may be used.
        """

    @abc.abstractmethod
    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        """Yield the blobs at these addresses, each once, in any order, a bounded number in memory.

        The bytes are as they were found. The caller checks digest and checksum, whether or not the
        log has a checksum of its own.

        Raises: WalGapError, a blob is not there (any more); WalUnavailableError, no answer in time;
        CorruptError, an address cannot belong to this log, or the log's own checksum does not fit.
        """

    @abc.abstractmethod
    def trim_decisions(self, position: int) -> None:
        """Drop all records before ``position``; the record there becomes the first one.

        ``position`` is one that this log returned for an existing record: a Summary which the
        caller folded and found valid, and below which everything is published. (A log does not know
        what its records mean.) Positions keep their meaning: ``decisions(0)`` starts with the
        record at ``position``, ``decisions(p)`` raises WalGapError for a p before it.

        The trim is one atomic step for readers and appenders of all processes: each finds the log
        as before or as after it, and no append is ever lost. Repeatable: a position at or before
        the first record that is kept changes nothing, so an older driver's late trim does no harm.

        Raises: WalUnavailableError, the log may be cut or not; WalGapError, the log ends at or
        before ``position``; CorruptError, no record starts there. The latter two prove that nothing
        was cut.
        """

    @abc.abstractmethod
    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        """Drop blobs that were staged before ``before_us`` and are not at a ``needed`` address.

        A log may keep more than it must: blobs of one segment are dropped together, and an age
        close to the limit counts as younger. It never drops a blob at a needed address, nor one
        staged at or after ``before_us`` (microseconds since the epoch, by the log's own clock):
        such a blob may belong to an attempt that a driver unknown to the caller is staging now. To
        be safe, ``before_us`` must be so far in the past that every blob staged before it is
        decided in the records that the caller folded, or can never be decided: see
        ``committers/steps/trim.py``.

        Repeatable, interruptible and safe to race. Reading a dropped blob raises WalGapError. A
        read that has begun finishes or raises WalGapError, and never returns wrong bytes. Dropped
        blobs may come back after a power cut.

        Raises: WalUnavailableError, any part may be dropped; CorruptError, an address cannot belong
        to this log, and nothing was dropped.
        """

    @abc.abstractmethod
    def size(self) -> LogSize:
        """Return about how many bytes the log takes, zeros when it was not created. Changes nothing.

        Raises: WalUnavailableError, no answer in time.
        """

    def checks(self) -> list[Check]:
        """Return checks of the log's set-up, as far as the guarantees rest on it. Changes nothing.

        Empty before the log was created, and for a log that cannot be set up wrongly. Raises:
        WalUnavailableError, no answer in time.
        """
        return []

    def now_us(self) -> int | None:
        """Return the log's own clock in microseconds since the epoch; None: no clock, or no reading yet.

        The reading comes with the last append of this instance, and is extrapolated from there.
        """
        return None

    def retention_s(self) -> float | None:
        """Return the seconds after which the log may drop what is still needed; None: never by age.

        Raises: WalUnavailableError, no answer in time.
        """
        return None

    def foreign_entry(self) -> str:
        """Return a file or folder at the log's place that is not the log's; ``''``: there is none.

        A log with such a one is not dropped. Raises: ConfigError: this user may not remove what is there.
        """
        return ""

    @abc.abstractmethod
    def drop(self) -> bool:
        """Remove the log permanently, records and blobs; return whether there was anything.

        Atomic: after a crash in the middle the log is absent, as if it had never been created; a
        part of it never remains a log. Durable: on return nothing is left. Repeatable: also after
        such a crash. An append or stage that returns after the drop belonged to another log. One
        that is called later raises WalUnavailableError, until the log is created again.

        Raises: WalUnavailableError, files or topics are left that are not a log any more; drop it
        again. ConfigError, nothing was removed: it has a ``foreign_entry``.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release handles. Repeatable; nothing durable changes."""
