"""Reading from anywhere: ``connect`` and the gate it gives. Needs neither Spark nor Java.

>>> import tidegate
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://client", store="memory://client")  # three batches of a writer
>>> gate = tidegate.connect("memory://client", namespace="flights")
>>> gate.version()
3
>>> gate.table("aircraft").get("N14228")
{'carrier': 'UA', 'flights': 2}
>>> with gate.snapshot(version=2) as snap:
...     snap.table("aircraft").get_many(["N14228", "N24211", "N0"])
{'N14228': {'carrier': 'UA', 'flights': 2}, 'N24211': {'carrier': 'UA', 'flights': 1}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.clock import Clock
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    VersionRegressedError,
    WaitTimeoutError,
)
from tidegate.options import redact
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import CatalogEntry, Pointer
from tidegate.snapshot import Held, Reader, Result, Snapshot, Table, expired, moment, no_version_yet
from tidegate.values import EPOCH
from tidegate.wal.record import BatchOrigin, ImportOrigin, LoadOrigin, Origin

if TYPE_CHECKING:
    from typing_extensions import Self

LEASE_S = 60.0
"""So long a version stays held without a sign of life from the snapshot's process, unless asked otherwise."""
LEASE_MAX_S = 86_400.0
WAIT_FIRST_S, WAIT_MOST_S = 0.001, 0.05
TRIES = 5
"""So often a read of the newest version starts over when that version is retired under it."""


@dataclasses.dataclass(frozen=True, slots=True)
class VersionInfo:
    """One visible version: where it comes from, when, and how many changes it made per table.

    ``batch`` is Spark's batch id, None when the version is not a micro-batch; ``origin`` says
    what it is in words. Times are UTC: ``decided_at`` by the writer's clock, ``published_at``
    by the store's.
    """

    version: int
    batch: int | None
    origin: str
    decided_at: datetime.datetime
    published_at: datetime.datetime
    changes: dict[str, int]


def connect(
    url: str, namespace: str, options: Mapping[str, Any] | None = None, *, clock: Clock | None = None
) -> Gate:
    """A gate to one namespace in the store at ``url``; ``options`` are the store client's own.

    Nothing is written. ConfigError: the URL or an option does not fit, or there is no such
    namespace. StoreUnavailableError: no answer.

    >>> connect("memory://nowhere", namespace="flights")
    Traceback (most recent call last):
    tidegate.errors.ConfigError: there is no namespace 'flights' in store memory://nowhere...
    """
    if not isinstance(url, str):
        raise ConfigError(f"the store's URL is {url!r}; it must be text, as in sqlite:///path")
    clock = clock or Clock()
    store = open_store(url, namespace, options, clock)
    try:
        identity = store.identity()
        if identity is None:
            raise ConfigError(
                f"there is no namespace {namespace!r} in store {redact(url)}: check both; a query with"
                " tidegate's VersionedSink makes it at its first batch, and so does"
                f" `tidegate init --namespace {namespace} --store {redact(url)} --wal URL`"
            )
        if identity.format != 1:
            raise ConfigError(
                f"{store.where} has format {identity.format}, this release knows format 1: upgrade tidegate"
            )
        return Gate(Reader(store, identity, clock))
    except BaseException:
        store.close()
        raise


class Gate:
    """A namespace as a reader sees it: its newest visible version, and older ones still kept.

    Reads may come from several threads. It remembers the newest version it has seen and
    raises VersionRegressedError when the store shows an older one (I9). A context manager.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._seen = Pointer()
        self._entry: CatalogEntry | None = None

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._reader.identity.name

    @property
    def key_groups(self) -> int:
        """How many key groups the namespace was made with."""
        return self._reader.identity.key_groups

    def version(self) -> int:
        """The visible version; 0 before the first.

        VersionRegressedError: the store shows an older version than before, or another
        history. StoreUnavailableError: no answer.
        """
        return self._look().visible

    def tables(self) -> list[str]:
        """The names of the tables there are at the visible version."""
        pointer = self._look()
        return sorted(self._entry_of(pointer).tables) if pointer.visible else []

    def table(self, name: str) -> Table:
        """A table, read at the newest visible version each time.

        Several reads may see several versions: take a ``snapshot`` where they must fit together.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://table", store="memory://table")
        >>> legs = connect("memory://table", namespace="flights").table("legs")
        >>> legs.get(("EWR", 1545))
        {'dest': 'IAH'}
        >>> sorted(legs.scan())
        [(('EWR', 1545), {'dest': 'IAH'}), (('LGA', 1714), {'dest': 'IAH'})]
        """
        return Table(self, name)

    def snapshot(
        self,
        version: int | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> Snapshot:
        """One version for many reads: the newest, ``version``, or the newest decided by ``as_of``.

        The version is held until the snapshot is closed; use it as a context manager. Its lease
        is for ``lease_s`` seconds and renewed in the background: that is how long it outlives
        a reader that dies, and how long a store may be away before the snapshot refuses. The
        writer's ``max_lease_s`` and ``max_layers`` limit how long a version can be held.

        ConfigError: the version is not visible yet, or the arguments do not fit.
        SnapshotExpiredError: the version was retired.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://snapshot", store="memory://snapshot")
        >>> gate = connect("memory://snapshot", namespace="flights")
        >>> with gate.snapshot() as snap:
        ...     snap.version, snap.table("airports").scan().to_arrow().num_rows
        (3, 3)
        """
        if version is not None and as_of is not None:
            raise ConfigError("a snapshot takes a version or as_of, not both")
        _check_lease_s(lease_s)
        if as_of is not None:
            version = self._version_as_of(as_of)
        if version is not None:
            return self._pin(self._check_version(version), lease_s)
        return self._again(lambda: self._pin(self._look().visible, lease_s))

    def wait_for(self, version: int, timeout: float = 30.0) -> int:
        """Wait until ``version`` is visible; the visible version then, which may be a later one.

        WaitTimeoutError: it was not visible within ``timeout`` seconds.
        """
        _check_whole_number("version", version)
        clock = self._reader.clock
        end, pause = clock.monotonic() + timeout, WAIT_FIRST_S
        while (visible := self.version()) < version:
            left = end - clock.monotonic()
            if left <= 0:
                raise WaitTimeoutError(
                    f"version {version} of namespace {self.namespace} was not visible within {timeout} s, the"
                    f" visible version is {visible}: wait longer, or see with `tidegate status` whether a"
                    " writer is running"
                )
            clock.sleep(min(pause, left))
            pause = min(2 * pause, WAIT_MOST_S)
        return visible

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The visible versions that can still be read, oldest first; the newest ``limit`` of them.

        >>> from tidegate.testing.example import write_flights
        >>> write_flights(wal="memory://history", store="memory://history")
        >>> gate = connect("memory://history", namespace="flights")
        >>> [(info.version, info.batch, info.changes) for info in gate.history(limit=1)]
        [(3, 2, {'aircraft': 1, 'airports': 1})]
        """
        if limit is not None:
            _check_whole_number("limit", limit)
        visible = self._look().visible
        oldest = 0 if limit is None else visible - limit + 1
        return [_info(entry) for entry in self._reader.store.catalog(oldest, visible)]

    def close(self) -> None:
        """Release the connection; its tables and snapshots end with it. May be repeated."""
        if not self._reader.closed:
            self._reader.closed = True
            self._reader.renewals.close()
            self._reader.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Gate to {self._reader.store.where}>"

    # -- for tables: reads at the newest version ---------------------------------------------------

    def ask(self, table: str, question: Callable[[Held], Result]) -> Result:
        """For ``Table``: the answer of one read at the newest version."""

        def once() -> Result:
            pointer = self._look()
            if not pointer.visible:
                raise no_version_yet(self._reader.identity)
            entry = self._entry_of(pointer)
            return question(self._reader.held(entry, table, self._reader.check_open))

        return self._again(once)

    @contextlib.contextmanager
    def hold(self, table: str) -> Iterator[Held]:
        """For ``Scan``: the table at the newest version, under a lease of its own."""
        with self.snapshot() as snapshot, snapshot.hold(table) as held:
            yield held

    def _again(self, once: Callable[[], Result]) -> Result:
        """T28: the newest version was retired between looking and reading; look again."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(SnapshotExpiredError):
                return once()
        return once()

    # -- versions ----------------------------------------------------------------------------------

    def _look(self) -> Pointer:
        """The store's pointer, never older than what this gate has seen (I9).

        Compared with what was seen before the store was asked: another thread may see a newer
        one while this one waits for its answer.
        """
        self._reader.check_open()
        before = self._seen
        pointer = self._reader.store.pointer()
        if pointer.visible < before.visible:
            raise VersionRegressedError(
                f"{self._reader.store.where} shows version {pointer.visible}, this client has already seen"
                f" version {before.visible}: the store lost versions (an old copy, a failover). Restart the"
                " writer or run `tidegate recover`; connect again to read the older version knowingly"
            )
        if pointer.visible == before.visible and pointer.digest != before.digest:
            raise VersionRegressedError(
                f"{self._reader.store.where} shows version {pointer.visible} with digest {pointer.digest},"
                f" this client has seen it with digest {before.digest}: the store holds another history now;"
                " find out what replaced it, then connect again"
            )
        with self._lock:
            if pointer.visible > self._seen.visible:
                self._seen = pointer
        return pointer

    def _entry_of(self, pointer: Pointer) -> CatalogEntry:
        known = self._entry
        if known is None or (known.version, known.digest) != (pointer.visible, pointer.digest):
            known = self._reader.entry(pointer.visible)
            if known.digest != pointer.digest:
                raise CorruptError(
                    f"{self._reader.store.where}: version {pointer.visible} has digest {pointer.digest} in"
                    f" the pointer, {known.digest} in the catalog: restore the store from a copy"
                )
            self._entry = known
        return known

    def _check_version(self, version: int) -> int:
        _check_whole_number("version", version)
        visible = self._look().visible
        if version > visible:
            raise ConfigError(
                f"version {version} of namespace {self.namespace} is not visible yet, the visible version is"
                f" {visible}: wait_for({version}) waits for it"
            )
        return version

    def _version_as_of(self, as_of: datetime.datetime) -> int:
        _check_aware(as_of)
        us = (as_of - EPOCH) // datetime.timedelta(microseconds=1)
        entries = self._reader.store.catalog(0, self._look().visible)
        by_then = [entry.version for entry in entries if entry.decided_at_us <= us]
        if by_then:
            return by_then[-1]
        if not entries:
            raise no_version_yet(self._reader.identity)
        oldest = entries[0]
        first = f"version {oldest.version}, decided at {moment(oldest.decided_at_us).isoformat()}"
        if oldest.version == 1:
            raise ConfigError(
                f"namespace {self.namespace} had no version at {as_of.isoformat()}: {first}, is first"
            )
        raise SnapshotExpiredError(
            f"what was visible at {as_of.isoformat()} was retired: {first}, is the oldest that can be read;"
            " keep_versions at the writer says how many are kept"
        )

    def _pin(self, version: int, lease_s: float) -> Snapshot:
        """A snapshot of the version. The lease comes first, then the horizon is looked at: a store
        that cannot do both at once has announced the horizon before it looked for leases.
        """
        reader = self._reader
        held = reader.renewals.take(version, lease_s)
        try:
            horizon = self._look().horizon
            if horizon > version:
                raise expired(reader.store, version, horizon)
            return Snapshot(reader, reader.entry(version) if version else None, held)
        except BaseException:
            reader.renewals.give_back(held)
            raise


def _check_whole_number(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{what} is {value!r}; it must be a whole number, 1 or more")


def _check_aware(as_of: object) -> None:
    if not isinstance(as_of, datetime.datetime) or as_of.utcoffset() is None:
        raise ConfigError(
            f"as_of is {as_of!r}; it must be a datetime with a time zone, as in datetime.now(timezone.utc)"
        )


def _check_lease_s(lease_s: object) -> None:
    fits = isinstance(lease_s, int | float) and not isinstance(lease_s, bool)
    if not fits or not 0 < lease_s <= LEASE_MAX_S:  # type: ignore[operator]
        raise ConfigError(f"lease_s is {lease_s!r}; it must be seconds above 0, {LEASE_MAX_S:,.0f} at most")


def _info(entry: CatalogEntry) -> VersionInfo:
    origin = entry.origin
    return VersionInfo(
        entry.version,
        origin.batch_id if isinstance(origin, BatchOrigin) else None,
        _in_words(origin),
        moment(entry.decided_at_us),
        moment(entry.published_at_us),
        dict(entry.changes),
    )


def _in_words(origin: Origin) -> str:
    match origin:
        case BatchOrigin(batch_id=batch_id):
            return f"batch {batch_id}"
        case LoadOrigin(token=token):
            return f"load {token}"
        case ImportOrigin(digest=digest):
            return f"import {digest}"
        case _:
            return f"restore of version {origin.version}"
