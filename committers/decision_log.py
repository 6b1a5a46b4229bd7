"""A driver's client of the decision log: its folded state, its epoch there, and its appends."""

from __future__ import annotations

import dataclasses
import logging
from typing import TypedDict

from tidegate.base.clock import Clock
from tidegate.committers.states import Watch
from tidegate.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    TidegateError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import Entry, View, fold_all
from tidegate.wal.log import Appended, Log
from tidegate.wal.record import AnyRecord, Folded, Summary, decode_record, encode_record

logger = logging.getLogger("tidegate")


class Backoff:
    """A deadline and a growing pause between tries: every retry ends."""

    def __init__(self, clock: Clock, seconds: float, first_s: float = 0.01, most_s: float = 1.0) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds
        self._pause, self._most = first_s, most_s

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock.monotonic() >= self._end

    def wait(self) -> None:
        """Wait before the next try; the wait doubles each time, up to a limit."""
        self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, self._most)


class Header(TypedDict):
    """The fields that every record has."""

    namespace: str
    writer: str
    epoch: int
    prev_digest: str


@dataclasses.dataclass(slots=True)
class DecisionLog:
    """The decision log as one driver reads it and appends to it. Not thread-safe.

    ``namespace`` is the namespace's name. ``deadline_s`` limits the tries of one append. ``epoch`` is the
    fencing number that the driver owns (0: not open), ``tried_epoch`` the highest that it ever sent, ``view``
    the log as far as it was folded. ``watch`` observes the barrier that is being decided.
    """

    log: Log
    namespace: str
    writer: str
    clock: Clock
    deadline_s: float
    watch: Watch = dataclasses.field(default_factory=Watch)
    epoch: int = 0
    tried_epoch: int = 0
    view: View = dataclasses.field(default_factory=View)
    unconfirmed_error: str = ""
    """The log's error for the last append, when its outcome is not proven."""
    refuses_user: bool = False
    """Whether the log refused this user, and will again: waiting does not change that."""

    @property
    def where(self) -> str:
        """The log's location, for messages."""
        return self.log.where

    @property
    def folded(self) -> Folded:
        """The state of the log as far as it was folded."""
        if self.view.state is None:
            msg = (
                f"namespace {self.namespace} has no log yet at {self.where}: start the query,"
                " or run `tidegate init`"
            )
            raise TidegateError(msg)
        return self.view.state

    @property
    def last_decided(self) -> int:
        """The last version decided in the log as far as it was folded; 0: none."""
        return self.view.state.last_version if self.view.state else 0

    # -- reads -----------------------------------------------------------------------------------------

    def catch_up(self) -> Folded | None:
        """Fold every record that the log has by now; return the state, None for an empty log."""
        self.view = catch_up(self.view, self.log)
        return self.view.state

    def catch_up_through(self, appended: Appended | None) -> Folded:
        """Return the state with every record up to the appended one folded (append rule 2)."""
        if appended is None or self.view.position < appended.next_position:
            self.catch_up()
        return self.folded

    def try_catch_up(self, appended: Appended | None) -> Folded | None:
        """Catch up through an append; None when the log does not answer, or refuses this user by now.

        With None the appended record may be in the log all the same.
        """
        try:
            return self.catch_up_through(appended)
        except WalUnavailableError:
            return None
        except ConfigError as error:
            self.unconfirmed_error, self.refuses_user = str(error), True
            return None

    def forget_records(self) -> None:
        """Forget the folded records: the log may have lost some of them, so the next read starts over."""
        self.view = View()

    # -- appends ---------------------------------------------------------------------------------------

    def header(self, epoch: int | None = None) -> Header:
        """Return the common fields of the next record; ``epoch`` is the driver's own unless given."""
        state = self.folded
        return Header(
            namespace=state.namespace,
            writer=self.writer,
            epoch=self.epoch if epoch is None else epoch,
            prev_digest=state.digest,
        )

    def append(self, record: AnyRecord) -> Appended | None:
        """Append one record; None when nothing is proven: it may be in the log, or land later.

        A record that landed directly after the folded ones is folded at once, without a read. Raises:
        ConfigError: nothing was written, by this try nor by an earlier one since ``reset_append_outcome``;
        also for a record that could not be decoded, which would end the log. WalGapError: it landed below
        the folded position.
        """
        content = encode_record(record)
        _refuse_unreadable(record, content)
        try:
            appended = self.log.append_decision(content)
        except (OutcomeUnknownError, WalUnavailableError, ConfigError) as error:
            refused = isinstance(error, ConfigError)
            if refused and not self.unconfirmed_error:
                raise
            logger.warning("the outcome of an append is unknown until the log is read: %s", error)
            self.watch.waiting_for(f"{type(error).__name__}: {error}")
            self.unconfirmed_error = str(error)
            self.refuses_user = refused or isinstance(error.__cause__, ConfigError)
            return None
        self.reset_append_outcome()
        if appended.position < self.view.position:
            raise self._lost(appended.position)
        if appended.position == self.view.position:
            entry = Entry(appended.position, appended.next_position, content)
            self.view = fold_all(self.view, [entry], self.where)
        return appended

    def _lost(self, position: int) -> WalGapError:
        """Build the error for an append below the folded position.

        Every append lands at the log's end, so the records from there to the folded position are lost.
        """
        return WalGapError(
            f"{self.where} lost records: this driver folded up to position {self.view.position}, and its next"
            f" append landed at {position}; nothing was applied after that. Stop all writers, and find out"
            " why (brokers without power, an unclean election, an older copy put back); restore the newest"
            " copy of the log if there is one, then start the query again, which compares log and store"
        )

    def reset_append_outcome(self) -> None:
        """Forget the outcome of earlier appends: errors from here on belong to the caller."""
        self.unconfirmed_error, self.refuses_user = "", False

    def backoff(self) -> Backoff:
        """Return a backoff whose deadline is ``deadline_s`` from now."""
        return Backoff(self.clock, self.deadline_s)

    def should_give_up(self, backoff: Backoff) -> bool:
        """Whether to stop trying an unproven append: the deadline passed, or the log refuses this user."""
        return backoff.expired or self.refuses_user

    def describe_last_error(self, deadlines: int = 1) -> str:
        """Describe, for the end of an error message, the wait and the last append's error if it is unproven.

        ``deadlines`` is the number of deadlines that were waited for.
        """
        waited = "" if self.refuses_user else f" for {deadlines * self.deadline_s} s"
        return waited + (f"; its last error: {self.unconfirmed_error}" if self.unconfirmed_error else "")


def _refuse_unreadable(record: AnyRecord, content: bytes) -> None:
    """Refuse a record that could not be decoded. A Summary is made of decoded records, so it is not checked.

    Raises: ConfigError: a value is of another type than its field.
    """
    if isinstance(record, Summary):
        return
    kind = type(record).__name__
    try:
        decode_record(content, f"a {kind} that was to be written")
    except CorruptError as error:
        msg = (
            f"refusing to write a {kind} record that cannot be decoded: {error.__cause__ or error}; correct"
            " the type of the field that is named there"
        )
        raise ConfigError(msg) from error
