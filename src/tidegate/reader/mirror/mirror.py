"""A mirror, as ``Gate.mirror`` returns it: whole tables of a namespace in this process.

It is first read whole, under a lease. From then on a thread moves it: it reads the rows by which the
newest version differs from the mirror's, and makes the next content beside the present one. One assignment
then replaces the content as a whole (I1). So readers take no lock, and a view never changes.

>>> import tidegate
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://mirror", store="memory://mirror")
>>> gate = tidegate.connect("memory://mirror", namespace="flights")
>>> with gate.mirror(["airports"]) as mirror:
...     mirror.table("airports").get("JFK")
{'departures': 1, 'delay': -1.0}
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.base.extras import require_arrow
from tidegate.base.names import listed
from tidegate.base.text import html_table
from tidegate.errors import (
    ConfigError,
    CorruptError,
    SnapshotExpiredError,
    StoreLostError,
    StoreRemovedError,
    StoreUnavailableError,
    TidegateError,
    VersionRegressedError,
    WaitTimeoutError,
)
from tidegate.reader import rules
from tidegate.reader.mirror.view import MirroredTable, MirrorView, TableContent, bytes_of, content_of, size_of
from tidegate.reader.snapshot import Snapshot
from tidegate.sinks.diff import differences_of_groups, untouched
from tidegate.sinks.rules.reads import windows

if TYPE_CHECKING:
    from typing_extensions import Self


logger = logging.getLogger("tidegate")

BYTES_MAX = 256 * 1024 * 1024
LOOK_S = 0.25
"""The longest time between two looks at the namespace; a store that notifies is faster."""
PAUSE_S = 0.2, 5.0
"""The pause after a failed look, doubled up to the second."""
FINAL = (ConfigError, CorruptError, StoreLostError, StoreRemovedError, VersionRegressedError)
"""Errors after which a mirror no longer follows its namespace, and refuses to be read."""


Switched = Callable[[MirrorView], None]
"""The function called with each new version of a mirror."""


class Followed(Protocol):
    """The calls of the gate that a mirror follows."""

    @property
    def namespace(self) -> str: ...

    def snapshot(self) -> Snapshot: ...

    def version(self) -> int: ...

    def wait_for(self, version: int, timeout: float) -> int: ...


class Mirror:
    """Whole tables of a namespace in this process's memory; ``Gate.mirror`` makes it. Thread-safe.

    Reads do no I/O and take no lock, so that coroutines may call them as well as threads. They go on
    while the store does not answer: ``age_s`` and ``error`` report that. An error that no repetition
    mends (the namespace was dropped or went back, the tables outgrew ``bytes_max``) ends the mirror, and each
    later read raises it. It is a context manager. A forked child needs a mirror of its own.
    """

    def __init__(
        self, gate: Followed, tables: Iterable[str], bytes_max: int, on_version: Switched | None
    ) -> None:
        require_arrow("a mirror")
        self._wanted = [tables] if isinstance(tables, str) else listed(set(tables))
        if not self._wanted:
            raise ConfigError("a mirror needs the names of its tables, as in gate.mirror(['users'])")
        rules.check_whole_number("bytes_max", bytes_max)
        self._gate, self._bytes_max, self._on_version = gate, bytes_max, on_version
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failed: TidegateError | None = None
        self.error: TidegateError | None = None
        """Why the last look at the store failed; None: it did not."""
        self.moves, self.full_reads = 0, 0
        """How often the mirror moved by changes, and how often it was read whole."""
        self._snapshot: Snapshot = gate.snapshot()
        self._looked_at = time.monotonic()
        try:
            for name in self._wanted:
                self._snapshot.table(name)  # ConfigError: it does not exist
            self._view = self._read_whole(self._snapshot)
        except BaseException:
            self._snapshot.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="tidegate-mirror", daemon=True)
        self._thread.start()

    # -- reads -----------------------------------------------------------------------------------------

    def view(self) -> MirrorView:
        """Return the present content, for several reads at one version.

        Raises: the error that ended the mirror.
        """
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        return self._view

    def table(self, name: str) -> MirroredTable:
        """Return a table, which is read at the mirror's version at each call. Raises: as ``MirrorView``."""
        self.view().content_of(name)
        return MirroredTable(self, name)

    def tables(self) -> list[str]:
        """List the mirrored tables that the version has."""
        return self.view().tables()

    @property
    def version(self) -> int:
        """The version of the content."""
        return self.view().version

    @property
    def age_s(self) -> float:
        """The seconds since the content was last known to be the newest version's."""
        return time.monotonic() - self._looked_at

    @property
    def size(self) -> int:
        """The bytes of memory that the rows count for, to compare with ``bytes_max``."""
        return self.view().size

    def wait_for(self, version: int, timeout: float = 30.0) -> int:
        """Wait until the mirror has this version or a later one; return which.

        Raises: WaitTimeoutError: not within ``timeout`` seconds. The error that ended the mirror.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._view.version >= version, timeout)
        reached = self.version
        if reached < version:
            raise WaitTimeoutError(
                f"the mirror has version {reached} after {timeout} s, not {version}"
                + (f": {self.error}" if self.error else "; wait longer, or look whether a writer is running")
            )
        return reached

    # -- moves: in the mirror's thread -----------------------------------------------------------------

    def _follow(self) -> None:
        pause = PAUSE_S[0]
        while not self._closing.is_set():
            try:
                self._look()
            except FINAL as error:
                self._end(error)
                return
            except TidegateError as error:
                self.error = error
                self._closing.wait(pause)
                pause = min(2 * pause, PAUSE_S[1])
            except Exception:
                logger.exception("the mirror of %s ended", self._gate)
                self._end(ConfigError("the mirror ended with an unexpected error, which is in the log"))
                return
            else:
                pause = PAUSE_S[0]

    def _look(self) -> None:
        """Wait for a newer version, at most ``LOOK_S``, and move to it."""
        view = self._view
        try:
            self._gate.wait_for(view.version + 1, LOOK_S)
            asked_at = time.monotonic()
        except WaitTimeoutError:
            asked_at = time.monotonic()
            is_newest = self._gate.version() == view.version and self._gate.namespace == view.namespace
        else:
            is_newest = False
        if not is_newest and not self._closing.is_set():
            self._move()
        self._looked_at, self.error = asked_at, None

    def _move(self) -> None:
        present, taken = self._snapshot, self._gate.snapshot()
        try:
            view = self._moved(present, taken)
        except BaseException:
            taken.close()
            raise
        self._snapshot = taken
        with self._changed:
            self._view = view
            self._changed.notify_all()
        with contextlib.suppress(StoreUnavailableError):
            present.close()
        self._tell(view)

    def _moved(self, present: Snapshot, taken: Snapshot) -> MirrorView:
        if taken.is_beside(present):
            with contextlib.suppress(SnapshotExpiredError):  # of one of them: then the newest is read whole
                view = self._by_changes(present, taken)
                self.moves += 1
                return view
        return self._read_whole(taken)

    def _by_changes(self, present: Snapshot, taken: Snapshot) -> MirrorView:
        before, after = present.side(), taken.side()
        contents: dict[str, TableContent] = {}
        same: frozenset[str] | None = None

        def check() -> None:
            before.check()
            after.check()

        for name in self._wanted:
            if after.entry is None or name not in after.entry.tables:
                continue  # dropped
            with taken.pin(name) as reader:
                old = self._view.contents.get(name)
                if old is None or old.view.stride != reader.view.stride or before.entry is None:
                    contents[name] = self._whole_table(reader, contents)
                    continue
                if same is None:
                    same = untouched(reader.store, before.entry, after.entry)
                if name in same:
                    contents[name] = old._replace(view=reader.view)
                    continue
                batches = differences_of_groups(
                    reader.store, name, reader.view.groups, before.entry, after.entry, check
                )
                changes = (
                    pair
                    for batch in batches
                    for pair in zip(*(batch.column(of).to_pylist() for of in ("key", "after")), strict=True)
                )
                contents[name] = old.moved(reader.view, changes)
                check()
                self._check_size(name, size_of(contents))
        return MirrorView(taken, contents)

    def _read_whole(self, snapshot: Snapshot) -> MirrorView:
        contents: dict[str, TableContent] = {}
        entry = snapshot.side().entry
        for name in self._wanted:
            if entry is not None and name in entry.tables:
                with snapshot.pin(name) as reader:
                    contents[name] = self._whole_table(reader, contents)
        self.full_reads += 1
        return MirrorView(snapshot, contents)

    def _whole_table(self, reader: Any, others: Mapping[str, TableContent]) -> TableContent:
        view, rows = reader.view, dict[bytes, bytes]()
        size = size_of(others)
        for groups in windows(view.groups):
            reader.check()
            for _, batch in reader.store.scan_groups(view.name, groups, view.version, view.start, view.at_us):
                reader.check()
                page = dict(zip(*(batch.column(of).to_pylist() for of in ("key", "value")), strict=True))
                rows |= page
                size += sum(bytes_of(key, value) for key, value in page.items())
                self._check_size(view.name, size)
        return content_of(view, rows.items(), len(rows))

    def _check_size(self, table: str, size: int) -> None:
        if size > self._bytes_max:
            raise ConfigError(
                f"the mirror of {', '.join(self._wanted)} of namespace {self._gate.namespace} takes more than"
                f" bytes_max, {self._bytes_max:,} bytes, with the rows of table {table}: raise it in"
                " gate.mirror, mirror fewer tables, or read this one through the gate"
            )

    def _tell(self, view: MirrorView) -> None:
        if self._on_version is not None:
            try:
                self._on_version(view)
            except Exception:
                logger.exception(
                    "on_version of the mirror of %s failed at version %s", self._gate, view.version
                )

    def _end(self, error: TidegateError) -> None:
        logger.error("the mirror of %s ended: %s", self._gate, error)
        with self._changed:
            self.error = self._failed = error
            self._changed.notify_all()
        self._give_back()

    def _give_back(self) -> None:
        with contextlib.suppress(TidegateError):
            self._snapshot.close()

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the thread and release the lease; views stay readable. Repeatable. The gate stays open."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        self._give_back()
        if self._failed is None:
            self._failed = ConfigError("this mirror was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mirror of {', '.join(self._wanted)} of {self._gate!r}, version {self._view.version}>"

    def _repr_html_(self) -> str:
        view = self._view
        return html_table(
            [
                *(("namespace", view.namespace), ("version", view.version), ("decided at", view.decided_at)),
                *(("tables", ", ".join(view.tables()) or "none"), ("bytes", f"{view.size:,}")),
                *(("age", f"{self.age_s:.1f} s"), ("error", self._failed or self.error)),
            ]
        )
