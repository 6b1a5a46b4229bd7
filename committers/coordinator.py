"""The state of a driver, and its reads of the decision log and appends to it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from tidegate.base.clock import Clock
from tidegate.committers.apply.apply import ApplyWork
from tidegate.committers.states import Watch
from tidegate.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    TidegateError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.options import Endpoints, Options
from tidegate.sinks.records import Stamp
from tidegate.sinks.store import Store
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import Entry, View, fold_all
from tidegate.wal.log import Appended, Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import AnyRecord, Folded, Summary, decode_record, encode_record

logger = logging.getLogger("tidegate")

ApplyOnExecutors = Callable[[Sequence[ApplyWork]], None]
"""Runs all works on executors, in parallel. Raises: TidegateError when one failed."""


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


YIELD_VERSIONS = 2
"""Retirement yields to versions being applied until this number was published since it began."""
YIELD_S = 1.0
"""The longest that one step of retirement yields, so that retirement proceeds under a steady load."""


class ApplyPriority:
    """The priority of applying over retiring, shared by one driver's threads that apply, decide and retire.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applying = 0
        self._retiring = False
        self._published = self._retired = 0

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """Mark the block as applying a version."""
        with self._changed:
            self._applying += 1
        try:
            yield
        finally:
            with self._changed:
                self._applying -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def retiring(self) -> Iterator[None]:
        """Mark the block as retiring older versions, in steps with ``yield_to_apply`` between them."""
        with self._changed:
            self._retiring, self._published, self._retired = True, 0, 0
        try:
            yield
        finally:
            with self._changed:
                self._retiring = False
                self._changed.notify_all()

    def published(self) -> None:
        """Count a version that became visible: one more to be retired later."""
        with self._changed:
            self._published += 1
            self._changed.notify_all()

    def retired(self) -> None:
        """Count a version that was retired: one less."""
        with self._changed:
            self._retired += 1
            self._changed.notify_all()

    def yield_to_apply(self) -> None:
        """Wait while a version is applied, at most ``YIELD_S`` or until ``YIELD_VERSIONS`` are published."""
        with self._changed:
            self._changed.wait_for(lambda: not self._applying or self._published >= YIELD_VERSIONS, YIELD_S)

    @property
    def behind(self) -> int:
        """The versions published since the running retirement began; 0: none is running."""
        return self._published if self._retiring else 0

    def wait_for_backlog(self, most: int, timeout_s: float) -> bool:
        """Wait until ``behind`` is below ``most``, or below half of what this retirement has dropped.

        In the second case the number of versions in the store falls, however long the retirement still
        takes. False: neither was true within ``timeout_s``.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self.behind < max(most, self._retired // 2), timeout_s)


@dataclasses.dataclass(slots=True)
class Coordinator:
    """The one writer of a namespace, from its open on. Not thread-safe.

    ``store`` is the primary; ``others`` are the secondaries, which catch up in the background. ``epoch`` is
    the fencing number that it owns (0: not open), ``tried_epoch`` the highest that it ever sent, ``view`` the
    decision log as far as it was folded.
    """

    endpoints: Endpoints
    log: Log
    store: Store
    options: Options = dataclasses.field(default_factory=Options)
    clock: Clock = dataclasses.field(default_factory=Clock)
    apply_on_executors: ApplyOnExecutors | None = None
    watch: Watch = dataclasses.field(default_factory=Watch)
    writer: str = ""
    epoch: int = 0
    tried_epoch: int = 0
    view: View = dataclasses.field(default_factory=View)
    others: tuple[Store, ...] = ()
    last_manifest: Manifest | None = None
    """The manifest of this driver's last decided or published version; None: it is only in the log."""
    held: dict[str, bytes] = dataclasses.field(default_factory=dict)
    """Frames that the driver itself staged for the current barrier, by address: they are not read back."""
    priority: ApplyPriority = dataclasses.field(default_factory=ApplyPriority)
    """The priority at the store, shared by both sides of a pipeline."""
    unconfirmed_error: str = ""
    """The log's error for the last append, when its outcome is not proven."""
    begun_us: int = 0
    """The latest time of a version that was begun in the primary; the log may have lost its decision."""
    discard_lost: bool = False
    """Whether to remove from the store the rows of attempts whose decision the log lost."""
    discarded: list[Stamp] = dataclasses.field(default_factory=list)
    """The attempts that were removed in this way."""
    refused: bool = False
    """Whether the log refused this user, and will again: waiting does not change that."""

    def __post_init__(self) -> None:
        self.writer = self.writer or self.clock.new_id()

    @property
    def folded(self) -> Folded:
        """The state of the log as far as it was folded."""
        if self.view.state is None:
            msg = (
                f"namespace {self.endpoints.namespace} has no log yet at {self.log.where}: start the query,"
                " or run `tidegate init`"
            )
            raise TidegateError(msg)
        return self.view.state

    @property
    def last_decided(self) -> int:
        """The last version decided in the log as far as it was folded; 0: none."""
        return self.view.state.last_version if self.view.state else 0

    @property
    def stores(self) -> tuple[Store, ...]:
        """Every store to which this driver's decided versions are applied."""
        return (self.store, *self.others)

    def catch_up_log(self) -> Folded | None:
        """Fold every record that the log has by now; return the state, None for an empty log."""
        self.view = catch_up(self.view, self.log)
        return self.view.state

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
            logger.warning("an append is not proven, the fold will tell: %s", error)
            self.waiting_for(f"{type(error).__name__}: {error}")
            self.unconfirmed_error, self.refused = (
                str(error),
                refused or isinstance(error.__cause__, ConfigError),
            )
            return None
        self.unconfirmed_error, self.refused = "", False
        if appended.position < self.view.position:
            raise self._lost(appended.position)
        if appended.position == self.view.position:
            entry = Entry(appended.position, appended.next_position, content)
            self.view = fold_all(self.view, [entry], self.log.where)
        return appended

    def _lost(self, position: int) -> WalGapError:
        """Build the error: every append lands at the log's end, so records from there to the folded position
        are lost.
        """
        return WalGapError(
            f"{self.log.where} lost records: this driver folded up to position {self.view.position}, and what"
            f" it appended now landed at {position}; nothing was applied after that. Stop all writers, and"
            " find out why (brokers without power, an unclean election, an older copy put back); restore the"
            " newest copy of the log if there is one, then start the query again, which compares log and"
            " store"
        )

    def reset_append_outcome(self) -> None:
        """Forget the outcome of earlier appends: errors from here on belong to the caller."""
        self.unconfirmed_error, self.refused = "", False

    def try_catch_up(self, appended: Appended | None) -> Folded | None:
        """Catch up through an append; None when the log does not answer, or refuses this user by now.

        With None the appended record may be in the log all the same.
        """
        try:
            return self.catch_up_through(appended)
        except WalUnavailableError:
            return None
        except ConfigError as error:
            self.unconfirmed_error, self.refused = str(error), True
            return None

    def should_give_up(self, backoff: Backoff) -> bool:
        """Whether to stop trying an unproven append: the deadline passed, or the log refuses this user."""
        return backoff.expired or self.refused

    def describe_last_error(self, waited_s: float) -> str:
        """Describe, for the end of an error message, the time waited and the last append's error if it is
        unproven.
        """
        asked = "" if self.refused else f" for {waited_s} s"
        return asked + (f"; it last said: {self.unconfirmed_error}" if self.unconfirmed_error else "")

    def catch_up_through(self, appended: Appended | None) -> Folded:
        """Return the state with every record up to the appended one folded (append rule 2)."""
        if appended is None or self.view.position < appended.next_position:
            self.catch_up_log()
        return self.folded

    def retried(self, error: BaseException) -> None:
        """Report to the watch that a try failed and is made again."""
        self.watch.retried(error)

    def waiting_for(self, reason: str) -> None:
        """Report to the watch what the driver waits for, when the phase does not name it."""
        self.watch.waiting_for(reason)

    def backoff(self, seconds: float) -> Backoff:
        """Return a backoff whose deadline is ``seconds`` from now."""
        return Backoff(self.clock, seconds)


def _refuse_unreadable(record: AnyRecord, content: bytes) -> None:
    """Refuse a record that could not be decoded. A Summary is made of decoded records, so it is not checked.

    Raises: ConfigError: a value is of another type than its field.
    """
    if isinstance(record, Summary):
        return
    try:
        decode_record(content, f"a {type(record).__name__} that was to be written")
    except CorruptError as error:
        msg = (
            f"a {type(record).__name__} that nobody could read was not written: {error.__cause__ or error};"
            " give the value that is named there as the type that it has to be"
        )
        raise ConfigError(msg) from error
