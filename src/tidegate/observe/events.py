"""Events of a namespace and the registry of their observers: metrics, spans, a page.

The only observability hook. The library notifies, observers subscribe. Without observers, an event
costs a look at an empty tuple. An observer decides nothing, and its exceptions are logged and not
propagated. Nothing here leaves the process, and nothing of Prometheus or OpenTelemetry is imported.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.base.text import counted, html_table

logger = logging.getLogger("tidegate")


class Count(enum.Enum):
    """The counters."""

    RETRIES = "tries of a phase that were made again"
    ALARMS = "alarms"
    CACHE_HITS = "keys of state that a host's cache answered"
    CACHE_MISSES = "keys of state that were read from the store"
    CACHE_MOVED = "bytes of state moved between memory and disks"


class Gauge(enum.Enum):
    """The gauges."""

    DECIDED = "the last decided version"
    VISIBLE = "the visible version"
    HORIZON = "the oldest readable version"
    LAG = "decided versions that are not visible"
    BEHIND_S = "seconds since the store was last at the log's end"
    LEASES = "leases that hold a version"
    LAYERS = "readable versions"
    VOID = "void records in the log"
    CACHE_BYTES = "bytes of state in the hosts' caches"
    SPILL_BYTES = "bytes of these that are on disks"
    STUCK_S = "seconds that a stuck commit has been in its phase"
    UP = "1 while a driver here writes the namespace, 0 after a failure"
    VERSION_AT = "Unix time when the newest visible version was decided"
    STORE_UP = "whether the store answered its last request"
    LOG_UP = "whether the log answered its last request"
    APPLY_BEFORE = "Unix time when the log may drop a version that the store lacks; +Inf: none"
    LEASES_MAX = "the limit of leases"
    UNVERIFIED = "whether servers of the store are not compared with the log yet"
    STORE_USED = "used share of the store's fullest server or disk"
    IMBALANCE = "that share divided by the mean of all servers"
    MAY_EVICT = "whether servers of the store may drop rows by themselves, by their maxmemory-policy"
    LOG_USED = "used share of the log's disk"


class Labels(NamedTuple):
    """The labels of an event. The only others are a phase, a reason, the name of an error, alarm or call."""

    namespace: str
    store: str = ""
    table: str = ""


class PhaseTime(NamedTuple):
    """One stay in a phase: Unix time of its start in nanoseconds, and its duration."""

    phase: str
    began_ns: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Commit:
    """One version that was made visible, with its times.

    ``batch`` is Spark's batch id, None when it is not a micro-batch. ``rows`` are its changes,
    after the last of each key won, by table; ``bytes`` the size of its change-logs in the log.
    ``phases`` are seconds by phase, in order: stage, manifest, decide, apply, publish. With
    ``commit="pipelined"`` the wait for capacity is in ``decide`` and the wait for the versions
    before it in ``apply``. ``retries`` are repeated tries of a phase. For a batch that was skipped,
    since it was visible already, only ``namespace``, ``version`` and ``batch`` are known. ``steps`` are the
    rows and seconds of each call of its transaction, by name; ``ties`` how often a row of ``apply_changes``
    lost to a delete of its key with the same sequence. ``staged_by`` and ``applied_by`` are "tasks", or
    "driver" for a small version that it did by itself; '' where it is not known.
    """

    namespace: str
    version: int
    batch: int | None = None
    store: str = ""
    began_at: datetime.datetime | None = None
    seconds: float = 0.0
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    bytes: int = 0
    retries: int = 0
    trace: tuple[PhaseTime, ...] = ()
    steps: dict[str, tuple[int, float]] = dataclasses.field(default_factory=dict)
    ties: dict[str, int] = dataclasses.field(default_factory=dict)
    staged_by: str = ""
    applied_by: str = ""

    def __repr__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        took = f", {sum(self.rows.values()):,} rows in {self.seconds:.3f} s" if self.began_at else ""
        return f"<Commit of version {self.version} of {self.namespace}{batch}{took}>"

    def _repr_html_(self) -> str:
        phases = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.phases.items())
        return html_table(
            [
                *(("namespace", self.namespace), ("version", self.version), ("batch", self.batch)),
                *(("began at", self.began_at), ("rows", counted(self.rows) if self.rows else None)),
                *(("seconds", f"{self.seconds:.3f}"), ("phases", phases or None)),
                *(("staged by", self.staged_by or None), ("applied by", self.applied_by or None)),
            ]
        )


class Observer:
    """A subscriber; a subclass overrides the events it wants. May be called from several threads;
    must be quick.
    """

    def opened(self, namespace: str, stores: Sequence[str]) -> None:
        """Receive a new sink, with the names of its stores: its counters begin at 0."""

    def committed(self, commit: Commit) -> None:
        """Receive a version that became visible."""

    def failed(self, commit: Commit, error: BaseException) -> None:
        """Receive a batch that failed; ``commit`` has the phases that it completed."""

    def phase(self, at: Labels, name: str, seconds: float) -> None:
        """Receive the end of a phase, of a commit or in parallel to them (``retire``)."""

    def count(self, what: Count, at: Labels, amount: int, kind: str) -> None:
        """Receive an increase of a counter; ``kind`` is the phase of a retry, the name of an alarm, the
        reason of a move.
        """

    def level(self, what: Gauge, at: Labels, value: float) -> None:
        """Receive a gauge's current value; NaN: not known any more."""

    def read(self, at: Labels, seconds: float, error: str) -> None:
        """Receive the end of a reader's call on a table; ``error`` is the error's class, '' for none."""

    def seen(self, at: Labels, version: int) -> None:
        """Receive the visible version that a reader read."""

    def closed(self, namespace: str) -> None:
        """Receive the end of a driver: its gauges are not valid any more."""


observers: tuple[Observer, ...] = ()
_lock = threading.Lock()


def add(observer: Observer) -> None:
    """Add an observer. Repeatable."""
    global observers  # noqa: PLW0603 - one for the process, as Python's loggers are
    with _lock:
        if observer not in observers:
            observers = (*observers, observer)


def remove(observer: Observer) -> None:
    """Remove an observer. Repeatable."""
    global observers  # noqa: PLW0603 - see add
    with _lock:
        observers = tuple(each for each in observers if each is not observer)


def observed() -> bool:
    """Return whether there are observers: values that cost a request are read only then."""
    return bool(observers)


def tell(call: Callable[[Observer], None]) -> None:
    """Notify every observer; an observer's error never affects the observed work."""
    for observer in observers:
        try:
            call(observer)
        except Exception:
            logger.exception("%s failed; the observed work continues", type(observer).__name__)


def count(what: Count, at: Labels, amount: int = 1, kind: str = "") -> None:
    """Increase a counter."""
    if amount:
        tell(lambda observer: observer.count(what, at, amount, kind))


def level(what: Gauge, at: Labels, value: float) -> None:
    """Set a gauge."""
    tell(lambda observer: observer.level(what, at, value))


@contextlib.contextmanager
def timed(at: Labels, phase: str) -> Iterator[None]:
    """Time a phase in parallel to the commits."""
    began = time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - began
        tell(lambda observer: observer.phase(at, phase, took))


class Reading:
    """A timer of one call of a reader; a context manager."""

    __slots__ = ("_at", "_began")

    def __init__(self, namespace: str, table: str) -> None:
        self._at = Labels(namespace, table=table)

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took, error = time.perf_counter() - self._began, "" if kind is None else kind.__name__
        tell(lambda observer: observer.read(self._at, took, error))


def seen(namespace: str, version: int) -> None:
    """Report that a reader saw a newer version than before."""
    tell(lambda observer: observer.seen(Labels(namespace), version))


# -- context fields of log records -----------------------------------------------------------------


class LogContext(Protocol):
    """A thread's position: the fields of its log records besides their message."""

    @property
    def namespace(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def phase(self) -> str | None: ...


class LogPlace(NamedTuple):
    """A ``LogContext`` that does not change."""

    namespace: str
    version: int | None = None
    batch: int | None = None
    phase: str | None = None


FIELDS = ("namespace", "version", "batch", "phase")
_place: contextvars.ContextVar[LogContext | None] = contextvars.ContextVar("tidegate_place", default=None)


@contextlib.contextmanager
def log_context(place: Any) -> Iterator[None]:
    """Add the place's fields to this thread's log records during the block; None: keep the outer ones."""
    if place is None or not all(hasattr(place, field) for field in FIELDS):
        yield
        return
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def _with_fields(record: logging.LogRecord) -> bool:
    place = _place.get()
    for field in FIELDS:
        if not hasattr(record, field):
            setattr(record, field, getattr(place, field, None))
    return True


logger.addFilter(_with_fields)
logging.getLogger("tidegate.kafka").addFilter(_with_fields)
