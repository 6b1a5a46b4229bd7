"""A mirror, as ``Gate.mirror`` returns it: whole tables of a namespace in this process, or in its file.

It is first read whole, under a lease. From then on a thread moves it: it reads the rows by which the
newest version differs from the mirror's, and makes the next content beside the present one. One assignment
then replaces the content as a whole (I1). A view never changes. The content is in memory (``memory.py``) or
in a file (``file.py``), behind the interface of ``place.py``.

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
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.base.extras import require_arrow
from tidegate.base.names import listed
from tidegate.base.steps import not_run
from tidegate.base.text import brief, html_table
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
    StoreUnavailableError,
    TidegateError,
    VersionRegressedError,
    WaitTimeoutError,
    proven_final,
)
from tidegate.reader import rules
from tidegate.reader.mirror.file import FilePlace
from tidegate.reader.mirror.memory import MemoryPlace
from tidegate.reader.mirror.place import Draft, Place
from tidegate.reader.mirror.reading import FORKED
from tidegate.reader.mirror.view import At, MirrorReads, MirrorView
from tidegate.reader.snapshot import Snapshot
from tidegate.reader.table import TableReader
from tidegate.sinks.diff import differences_of_groups, untouched
from tidegate.sinks.rules.reads import windows
from tidegate.sinks.rules.version_ref import Version, VersionRef, number_of

if TYPE_CHECKING:
    from typing_extensions import Self


logger = logging.getLogger("tidegate")

BYTES_MAX = 256 << 20
FILE_BYTES_MAX = 16 << 30
LOOK_S = 0.25
"""The longest time between two looks at the namespace; a store that notifies is faster."""
PAUSE_S = 0.2, 5.0
"""The pause after a failed look, doubled up to the second."""

PathLike = str | os.PathLike[str]
Switched = Callable[[MirrorView], None]
"""The function called with each new version of a mirror."""


class Followed(Protocol):
    """The calls of the gate that a mirror follows."""

    @property
    def namespace(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def connected_as(self) -> str: ...

    def snapshot(self, version: int | None = None) -> Snapshot: ...

    def version(self) -> int: ...

    def wait_for(self, version: Version, timeout: float) -> int: ...

    def close(self) -> None: ...


def at_of(snapshot: Snapshot) -> At:
    """Return the version of a snapshot."""
    entry = snapshot.side().entry
    if entry is None:
        return At(snapshot.namespace, snapshot.uuid, version=0, digest="", decided_at_us=0)
    return At(snapshot.namespace, snapshot.uuid, entry.version, entry.digest, entry.decided_at_us)


class Mirror(MirrorReads):
    """Whole tables of a namespace, in memory or in a file. ``Gate.mirror`` makes it. Thread-safe.

    Reads go on while the store does not answer, refuses the login or has lost the namespace: ``age_s`` and
    ``error`` report that. Only an error that is proven ``final`` ends the mirror, and each later read raises
    it: another namespace has the name, the store was removed, went back or is damaged, the tables outgrew
    ``bytes_max``. It is a context manager. A forked child needs a mirror of its own: each read says so.
    """

    def __init__(
        self,
        gate: Followed,
        tables: Iterable[str],
        *,
        path: PathLike | None = None,
        bytes_max: int | None = None,
        on_version: Switched | None = None,
        owns_gate: bool = False,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        require_arrow("a mirror")
        self._wanted = rules.tables_of(tables) if isinstance(tables, str) else listed(rules.tables_of(tables))
        if not self._wanted:
            raise ConfigError("a mirror needs the names of its tables, as in gate.mirror(['users'])")
        if bytes_max is None:
            bytes_max = BYTES_MAX if path is None else FILE_BYTES_MAX
        rules.check_whole_number("bytes_max", bytes_max)
        if on_version is not None and not callable(on_version):
            raise ConfigError(f"on_version is {brief(on_version)}; it must be a function of a MirrorView")
        self._gate, self._owns_gate, self._bytes_max = gate, owns_gate, bytes_max
        self._on_version, self._is_changed = on_version, changed
        self._place: Place = MemoryPlace()
        if path is not None:
            self._place = FilePlace(path, gate.connected_as, gate.uuid, self._wanted)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failed: TidegateError | None = None
        self._failed_look: TidegateError | None = None
        self._process = os.getpid()
        self.moves, self.full_reads = 0, 0
        """How often the mirror moved by changes, and how often it was read whole."""
        self._snapshot: Snapshot | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the tables whole, or take over what the file has; then follow. Raises: as ``Gate.mirror``."""
        try:
            age_s = self._place.open()
            self._looked_at = time.monotonic() - (age_s or 0.0)
            if age_s is None:
                self._read_first()
            self._view = self._place.view()
            self._check_size("the rows that are in its file", self._view.size)
            self._check_open()
            self._thread = threading.Thread(target=self._follow, name="tidegate-mirror", daemon=True)
            self._thread.start()
        except BaseException:
            self._release()
            raise

    def _read_first(self) -> None:
        taken = self._snapshot = self._gate.snapshot()
        for name in self._wanted:
            taken.table(name)  # ConfigError: it does not exist
        self._make(None, taken)

    # -- reads -----------------------------------------------------------------------------------------

    def view(self) -> MirrorView:
        if self._failed is not None or os.getpid() != self._process:
            raise (self._failed or self._forked()).with_traceback(None)
        return self._view

    @property
    def error(self) -> TidegateError | None:
        """Why the last look at the store failed; None: it did not."""
        return self._failed_look if os.getpid() == self._process else self._forked()

    def _forked(self) -> ConfigError:
        """Build the error for a forked child, which does not have the thread that follows."""
        return proven_final(ConfigError(f"{self._gate!r}: {FORKED}"))

    @property
    def age_s(self) -> float:
        """The seconds since the content was last known to be the newest version's.

        After a restart it counts from the file's note of that time, which may be a minute older, by this
        machine's clock.
        """
        return time.monotonic() - self._looked_at

    def wait_for(self, version: Version, timeout: float = 30.0) -> int:
        """Wait until the mirror has this version or a later one; return which.

        ``version`` as ``Gate.wait_for``. Raises: WaitTimeoutError: not within ``timeout`` seconds.
        VersionRegressedError: it is of another history. The error that ended the mirror.
        """
        rules.awaited(version, None, timeout)
        self.view()  # before the lock, which a forked child may have taken over
        with self._changed:
            end = min(timeout, threading.TIMEOUT_MAX)
            self._changed.wait_for(lambda: self._failed or self.has_reached(version), end)
        if not self.has_reached(version):
            raise self.waited(version, timeout)
        return self.compared(version)

    def has_reached(self, version: Version) -> bool:
        """Whether the content is of this version or of a later one, or never will be. Raises: as ``view``."""
        mark = self.view().at
        other = isinstance(version, VersionRef) and version.uuid not in ("", mark.uuid)
        return bool(self._gate.uuid) if other else mark.version >= number_of(version)

    def compared(self, version: Version) -> int:
        """Compare a version with the content's, or with the store's, if that answers; return the content's.

        Raises: VersionRegressedError: it is of another history (I12).
        """
        view = self.view()
        rules.check_ref(version, f"the mirror of namespace {self._gate.namespace}", view.at.uuid)
        if isinstance(version, VersionRef):
            with contextlib.suppress(StoreUnavailableError):
                self._gate.wait_for(version, 0.0)
        return view.version

    def waited(self, version: Version, timeout: float) -> TidegateError:
        """Build the error of a wait that has run out. Raises: as ``compared``."""
        view = self.view()
        rules.check_ref(version, f"the mirror of namespace {self._gate.namespace}", view.at.uuid)
        return WaitTimeoutError(
            f"the mirror has version {view.version} after {timeout} s, not {number_of(version)}"
            + (f": {self.error}" if self.error else "; wait longer, or look whether a writer is running")
        )

    # -- moves: in the mirror's thread -----------------------------------------------------------------

    def _follow(self) -> None:
        pause = PAUSE_S[0]
        while not self._closing.is_set():
            try:
                self._look()
            except TidegateError as error:
                if error.final:
                    if not self._closing.is_set():
                        self._end(error)
                    return
                self._failed_look = error
                self._closing.wait(pause)
                pause = min(2 * pause, PAUSE_S[1])
            except Exception:
                logger.exception("the mirror of namespace %s ended", self._gate.namespace)
                self._end(ConfigError("the mirror ended with an unexpected error, which is in the log"))
                return
            else:
                pause = PAUSE_S[0]

    def _look(self) -> None:
        """Wait for a newer version, at most ``LOOK_S``, and move to it."""
        is_newest, asked_at = self._is_newest()
        if not is_newest and not self._closing.is_set():
            self._move()
        if self._closing.is_set():
            return
        self._place.checked()
        self._looked_at, self._failed_look = asked_at, None

    def _is_newest(self) -> tuple[bool, float]:
        """Return whether the content is the newest version's, and since when that is known."""
        mark = self._view.at
        if self._snapshot is None:  # of a file
            return False, time.monotonic()
        with contextlib.suppress(WaitTimeoutError):
            self._gate.wait_for(mark.version + 1, LOOK_S)
            return False, time.monotonic()
        asked_at = time.monotonic()
        return self._gate.version() == mark.version and self._gate.namespace == mark.namespace, asked_at

    def _move(self) -> None:
        taken = self._gate.snapshot()
        try:
            present = self._present(taken)
            if present is not taken:
                self._make(present, taken)
            view = self._place.view()
        except BaseException:
            taken.close()
            raise
        is_new, before, self._snapshot = view is not self._view, self._snapshot, taken
        with self._changed:
            self._view = view
            self._changed.notify_all()
        self._is_changed()
        if before is not None:
            with contextlib.suppress(StoreUnavailableError):
                before.close()
        if is_new:
            self._tell(view)

    def _present(self, taken: Snapshot) -> Snapshot | None:
        """Return a snapshot of the content's version, ``taken`` if it is that one; None: it is gone.

        Raises: VersionRegressedError: the store has an older version, or another history (I9).
        """
        mark, newest, snapshot = self._place.at, at_of(taken), self._snapshot
        if mark is not None and mark.uuid != newest.uuid and newest.version == 0:
            raise StoreUnavailableError(
                f"namespace {newest.namespace} has no visible version yet: the mirror keeps version"
                f" {mark.version} of {mark.namespace} until then"
            )
        if mark is None or (snapshot is not None and at_of(snapshot) == mark):
            if snapshot is not None and taken.is_beside(snapshot):
                with contextlib.suppress(SnapshotExpiredError):  # then the tables are read whole
                    taken.check_follows(snapshot.ref)
            return snapshot
        if mark.uuid != newest.uuid and not self._gate.uuid:  # an alias names another namespace
            return None
        if mark.uuid != newest.uuid:
            other = (
                f"the mirror's file is of namespace {self._gate.namespace} ({mark.uuid}), and the one of this"
                f" name now is {newest.uuid}: give another path, or remove the file with its -wal and -shm"
            )
            raise proven_final(ConfigError(other))
        if newest.version < mark.version:
            raise self._regressed(mark, newest)
        if newest == mark:
            return taken
        try:
            older = self._gate.snapshot(version=mark.version)
        except SnapshotExpiredError:
            return None
        self._give_back()
        self._snapshot = older
        if at_of(older) != mark:
            raise self._regressed(mark, at_of(older))
        return older

    def _regressed(self, at: At, shown: At) -> VersionRegressedError:
        return VersionRegressedError(
            f"the mirror's file has version {at.version} of namespace {at.namespace} with digest {at.digest},"
            f" and {self._gate} shows version {shown.version} with digest {shown.digest}: the store lost"
            " versions, or holds another history now. Restart the writer or run `tidegate recover`; to read"
            " this store knowingly, remove the file with its -wal and -shm"
        )

    def _make(self, present: Snapshot | None, taken: Snapshot) -> None:
        """Make the content of ``taken``: by the changes since ``present``, or whole."""
        if present is not None and taken.is_beside(present):
            with contextlib.suppress(SnapshotExpiredError):  # of one of them: then the newest is read whole
                with self._place.draft() as draft:
                    self._change(draft, present, taken)
                    draft.finish(at_of(taken))
                self.moves += 1
                return
        with self._place.draft() as draft:
            for name in self._existing(taken):
                with contextlib.nullcontext(taken.reader(name)) as reader:
                    self._replace(draft, reader)
            draft.finish(at_of(taken))
        self.full_reads += 1

    def _existing(self, taken: Snapshot) -> list[str]:
        entry = taken.side().entry
        return [name for name in self._wanted if entry is not None and name in entry.tables]

    def _change(self, draft: Draft, present: Snapshot, taken: Snapshot) -> None:
        before, after = present.side(), taken.side()
        assert before.entry is not None, "version 0 has no tables"
        assert after.entry is not None, "version 0 has no tables"

        def check() -> None:
            self._check_open()
            before.check()
            after.check()

        same: frozenset[str] | None = None
        for name in self._existing(taken):
            with contextlib.nullcontext(taken.reader(name)) as reader:
                if draft.stride_of(name) != reader.view.at.stride:  # None: it is new
                    self._replace(draft, reader)
                    continue
                if same is None:
                    same = untouched(reader.store, before.entry, after.entry)
                if name in same:
                    draft.keep(reader.view)
                    continue
                of = name, reader.view.groups, before.entry, after.entry, check
                draft.change(reader.view, differences_of_groups(reader.store, *of))
                check()
                self._check_size(f"the rows of table {name}", draft.size)

    def _replace(self, draft: Draft, reader: TableReader) -> None:
        draft.replace(reader.view, self._pages(draft, reader))

    def _pages(self, draft: Draft, reader: TableReader) -> Iterator[tuple[int, Any]]:
        view = reader.view
        for groups in windows(view.groups):
            reader.check()
            for page in reader.store.scan_groups(view.at, groups):
                self._check_open()
                reader.check()
                yield page
                self._check_size(f"the rows of table {view.name}", draft.size)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise closed()

    def _check_size(self, rows: str, size: int) -> None:
        if size > self._bytes_max:
            too_large = (
                f"the mirror of {', '.join(self._wanted)} of namespace {self._gate.namespace} takes more than"
                f" bytes_max, {self._bytes_max:,} bytes, with {rows}: raise it in"
                " gate.mirror, mirror fewer tables, or read this one through the gate"
            )
            raise proven_final(ConfigError(too_large))

    def _tell(self, view: MirrorView) -> None:
        if self._on_version is not None:
            try:
                if kind := not_run(self._on_version(view)):
                    raise ConfigError(f"on_version is {kind}, and did not run: give a plain function")
            except BaseException:  # an exit, too, would end this thread without a word
                logger.exception(
                    "on_version of the mirror of %s failed at version %s", self._gate, view.version
                )

    def _end(self, error: TidegateError) -> None:
        logger.error("the mirror of %s ended: %s", self._gate, error)
        with self._changed:
            self._failed_look = self._failed = error
            self._changed.notify_all()
        self._is_changed()
        self._give_back()

    def _release(self) -> None:
        self._give_back()
        self._place.close()
        if self._owns_gate:
            self._gate.close()

    def _give_back(self) -> None:
        if self._snapshot is not None:
            with contextlib.suppress(TidegateError):
                self._snapshot.close()

    # -- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the thread, and release the lease and the file. Repeatable. The gate stays open.

        A move that has begun ends without effect. Views in memory stay readable, those in a file end. Waits
        for a version end. ``on_version`` may call it.
        """
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            self._failed = self._failed or closed()
            self._release()
            self._changed.notify_all()
        self._is_changed()

    def stop(self) -> None:
        """Ask the mirror to end, also its ``start``; ``close`` waits for that."""
        self._closing.set()

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


def closed() -> ConfigError:
    """Build the error for a mirror that was closed."""
    return proven_final(ConfigError("this mirror was closed"))
