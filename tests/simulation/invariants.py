"""The truth that a simulation knows, and the checks of the invariants against it.

``WatchedLog`` and ``WatchedStore`` report every effect on the log and on the store to ``History`` at the
moment it happens, whichever actor caused it and however late. ``History`` keeps its own account of what was
staged and decided, in plain dictionaries, and raises ``Violation`` with the invariant's name as soon as one
is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tidegate.base.clock import Clock
from tidegate.committers.apply import apply
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import CatalogEntry, Counts, ReadAt, Stamp
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.sinks.store import Store
from tidegate.wal.file.log import FileLog
from tidegate.wal.fold import Entry, View, fold_all, same_barrier
from tidegate.wal.frame import Chunk
from tidegate.wal.log import Appended, Log
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, Origin

Content = dict[str, dict[bytes, bytes]]
"""Live values by table and key."""

StoredRows = Mapping[str, Mapping[bytes, bytes]]
"""By table and key, in stored form: a flags byte, the expiry where there is one, the value; ``-`` deletes."""


class Violation(AssertionError):  # noqa: N818 - it is a finding, not a failure of the program
    """An invariant is broken. The message starts with its name; ``index`` is the schedule that broke it."""

    index: int | None = None


@dataclasses.dataclass(frozen=True)
class Staged:
    """The rows of one attempt, and the time of that attempt."""

    origin: Origin
    rows: StoredRows
    starts: frozenset[str]
    drops: frozenset[str]
    at_us: int


def require(invariant: str, holds: object, what: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(f"{invariant}: {what}")


class History:
    """The account of one schedule."""

    def __init__(self) -> None:
        self.staged: dict[str, Staged] = {}
        self.view = View()
        self.facts: list[DecidedVersion] = []
        self.rows: list[Content] = [{}]  # in stored form, expired ones among them
        self.contents: list[Content] = [{}]
        self.starts: list[dict[str, int]] = [{}]
        self.undecided: dict[str, str] = {}  # attempt -> the error that proved it
        self.writers: set[tuple[int, str]] = set()  # epoch and writer of every Open that counted
        self.claimed = 0
        self.visible = 0
        self.marked = 0
        self.fills: set[int] = set()
        """The version that a rebuild of the store fills, with every row that is there at it; 0: none."""
        self.in_flight_max = 1
        """The largest number of versions that may be decided and not visible."""
        self.log: WatchedLog
        self.store: WatchedStore

    @property
    def folded(self) -> Folded:
        if self.view.state is None:
            raise Violation("I10: there is no Genesis yet")
        return self.view.state

    # -- reported by the log ---------------------------------------------------------------------

    def appended(self, entry: Entry) -> None:
        """Take one more durable record."""
        before = self.view.state
        self.view = fold_all(self.view, [entry])
        state = self.view.state
        if before is not None and state is not None:
            require("fencing", state.epoch >= before.epoch, "the log's epoch went back")
        if state is not None:
            self.writers.add((state.epoch, state.writer))
        if state is not None and state.last_version > len(self.facts):
            self._decided(state, state.recent[-1])

    def _decided(self, state: Folded, fact: DecidedVersion) -> None:
        require("I7", fact.version == len(self.facts) + 1, f"version {fact.version} leaves a hole")
        for earlier in self.facts:
            twice = same_barrier(earlier.origin, fact.origin)
            require("I2", not twice, f"{fact.origin} made versions {earlier.version} and {fact.version}")
            later = earlier.decided_at_us < fact.decided_at_us
            require("decided_at", later, f"version {fact.version} has no later time than {earlier.version}")
        proof = self.undecided.get(fact.attempt)
        require("proof", proof is None, f"{proof} said {fact.attempt} is undecided; it is v{fact.version}")
        staged = self.staged.get(fact.attempt)
        require("I3", staged is not None, f"attempt {fact.attempt} was decided, nobody staged it")
        assert staged is not None
        require("I2", staged.origin == fact.origin, f"attempt {fact.attempt} was staged for another barrier")
        in_time = staged.at_us <= fact.decided_at_us
        require("decided_at", in_time, f"version {fact.version} was decided before its attempt began")
        base_us = self.facts[-1].decided_at_us if self.facts else 0
        require(
            "decided_at",
            base_us < staged.at_us,
            f"version {fact.version} is of an attempt from before its base",
        )
        self.facts.append(fact)
        waiting = len(self.facts) - self.visible
        require("I11", waiting <= self.in_flight_max, f"{waiting} versions are decided and not visible")
        self._check_durable(fact, staged)
        kept = {name: rows for name, rows in self.rows[-1].items() if name not in staged.drops}
        tables = {name: dict(rows) for name, rows in kept.items()}
        for name, changes in staged.rows.items():
            before = {} if name in staged.starts else tables.get(name, {})
            tables[name] = {key: row for key, row in {**before, **changes}.items() if row != b"-"}
        self.rows.append(tables)
        self.contents.append(live(tables, fact.decided_at_us))
        self.starts.append({name: at.start for name, at in state.tables.items()})

    def _check_durable(self, fact: DecidedVersion, staged: Staged) -> None:
        """Check I3: all that the decision names is in the log, and equals what the tasks were given."""
        manifest = apply.read_manifest(self.log, fact)
        found: dict[str, dict[bytes, bytes]] = {name: {} for name in manifest.tables}
        for work in apply.plan(manifest, fact, 1):
            for chunk in apply.chunks_of(work, self.log):
                for table, key, row in rows_in(chunk):
                    require("I3", key not in found[table], f"{table} {key!r} stands in two frames")
                    found[table][key] = row
        given = {name: dict(rows) for name, rows in staged.rows.items()}
        require("I3", found == given, f"version {fact.version}: the log has {found}, staged was {given}")

    # -- reported by the store -------------------------------------------------------------------

    def fact(self, version: int, invariant: str) -> DecidedVersion:
        """Return the decided fact of a version; Violation when there is none."""
        require(invariant, 1 <= version <= len(self.facts), f"version {version} is not decided")
        return self.facts[version - 1]

    def applying(self, stamp: Stamp, chunk: Chunk) -> None:
        """Check I5: only rows of the decided attempt, or of a fill, with the decision's timestamp."""
        fact = self.fact(stamp.version, "I5")
        same = stamp.decided_at_us == fact.decided_at_us
        require("I5", same, f"version {stamp.version} is applied with another timestamp")
        sources = [self.staged[fact.attempt].rows]
        if stamp.version in self.fills:  # also after its end: a request may arrive late
            sources.append(self.rows[stamp.version])
        for table, key, row in rows_in(chunk):
            own = any(rows.get(table, {}).get(key) == row for rows in sources)
            require("I5", own, f"{table} {key!r}={row!r} is no row of attempt {fact.attempt}")

    def claiming(self, before: int, after: int) -> None:
        require("I6", after >= before, f"the store's epoch went from {before} to {after}")
        self.claimed = max(self.claimed, after)

    def filling(self, version: int) -> None:
        """Check I7 when the store was marked for a fill: it shows nothing."""
        require("I7", not self.visible, f"a fill at version {version} begins above version {self.visible}")
        self.fact(version, "I5")
        self.marked = max(self.marked, version)
        self.fills.add(version)

    def filled(self, entries: Sequence[CatalogEntry], epoch: int) -> None:
        """Check I1, I6 and I7 when a rebuilt store shows its versions, all in one write."""
        first = entries[0].version
        require("I7", not self.visible, f"a fill ended above version {self.visible}")
        require("I7", first == self.marked, f"a fill ended at version {first}, {self.marked} is marked")
        self.visible, self.marked = first - 1, 0
        for entry in entries:
            self.flipped(entry, epoch)

    def flipped(self, entry: CatalogEntry, epoch: int) -> None:
        """Check I1, I6 and I7 at the very moment at which a flip took effect."""
        version = entry.version
        require("I7", version == self.visible + 1, f"visible went from {self.visible} to {version}")
        fact = self.fact(version, "I5")
        require("I6", epoch >= self.claimed, f"epoch {epoch} flipped v{version} after {self.claimed} claimed")
        told = entry.digest, entry.attempt, entry.origin, entry.decided_at_us
        same = told == (fact.digest, fact.attempt, fact.origin, fact.decided_at_us)
        require("I1", same, f"the flip of version {version} names another decision")
        self.visible, self.claimed = version, max(self.claimed, epoch)
        self.check_reads(version)

    def check_reads(self, version: int, store: Store | None = None) -> None:
        """Check I1: the store's answer at a visible version is the fold of the decided changes."""
        at_us = self.facts[version - 1].decided_at_us
        for table, start in self.starts[version].items():
            expected = self.contents[version].get(table, {})
            keys = sorted({key for rows in self.rows for key in rows.get(table, {})})
            values = (
                (store or self.store).get_many(ReadAt(table, version, start, at_us=at_us), keys).to_pylist()
            )
            found = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
            require("I1", found == expected, f"v{version}, {table}: {found} instead of {expected}")

    def check_scans(self, version: int, key_groups: int, store: Store | None = None) -> None:
        """Check I1 again, by scans, which also find keys that were never decided."""
        at_us = self.facts[version - 1].decided_at_us
        for table, start in self.starts[version].items():
            found: dict[bytes, bytes] = {}
            for group in range(key_groups):
                for batch in (store or self.store).scan(ReadAt(table, version, start, at_us=at_us), group):
                    found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
            expected = self.contents[version].get(table, {})
            require("I1", found == expected, f"v{version}, scan of {table}: {found} instead of {expected}")

    # -- reported by the actor that caught an error, or got an answer --------------------------------

    def proven_undecided(self, attempts: Iterable[str], error: str) -> None:
        """Check that these attempts are not decided, and expect it from now on: an error proved it."""
        for attempt in attempts:
            decided = [fact.version for fact in self.facts if fact.attempt == attempt]
            require("proof", not decided, f"{error} said {attempt} is undecided; it is version {decided}")
            self.undecided[attempt] = error

    def returned(self, origin: BatchOrigin, fact: DecidedVersion, *, visible: bool = True) -> None:
        """Check I2, I3 after a commit: the barrier is decided, once, and visible unless pipelined."""
        decided = self.fact(fact.version, "I2")
        require("I2", decided == fact, f"commit returned {fact}, the log has {decided}")
        require("I2", fact.origin == origin, f"commit of {origin} returned the version of {fact.origin}")
        shown = self.visible >= fact.version or not visible
        require("I3", shown, f"version {fact.version} returned, {self.visible} visible")

    def opened(self, last_version: int, epoch: int = 0) -> None:
        """Check I4, I6 after an open: all that it folded is visible, and its epoch is claimed."""
        claimed = self.store.pointer().epoch
        require("I6", claimed >= epoch, f"open returned at epoch {epoch}, the store has {claimed}")
        require(
            "I4", self.visible >= last_version, f"{last_version} versions decided, {self.visible} visible"
        )


def rows_in(chunk: Chunk) -> Iterable[tuple[str, bytes, bytes]]:
    """Yield a chunk's changes: table, key, and the stored row."""
    for run in chunk.runs:
        for key, row in zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True):
            yield run.table, key, row


def value_at(row: bytes, at_us: int) -> bytes | None:
    """Return the value that a stored row shows at a time, without the library, which is under test."""
    if row[:1] != b"e":
        return row[1:] if row[:1] == b"+" else None
    return row[9:] if at_us < int.from_bytes(row[1:9], "big") else None


def live(rows: StoredRows, at_us: int) -> Content:
    """Return the values that rows show at a time."""
    shown = {table: {key: value_at(row, at_us) for key, row in of.items()} for table, of in rows.items()}
    return {
        table: {key: value for key, value in of.items() if value is not None} for table, of in shown.items()
    }


class WatchedLog(Log):
    """A log that reports each durable record to a history. Mixed into a log that it watches."""

    history: History

    def append_decision(self, content: bytes) -> Appended:
        appended = super().append_decision(content)  # type: ignore[safe-super]
        self.history.appended(Entry(appended.position, appended.next_position, content))
        return appended


class WatchedStore(Store):
    """A store that reports each effect to a history. Mixed into a store that it watches."""

    history: History

    def claim(self, epoch: int, writer: str) -> int:
        before = self.pointer().epoch
        after = super().claim(epoch, writer)  # type: ignore[safe-super]
        self.history.claiming(before, after)
        return after

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        flipped = super().publish(entry, epoch)  # type: ignore[safe-super]
        if flipped:
            self.history.flipped(entry, epoch)
        return flipped

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        marked = super().begin_fill(entry, epoch)
        if marked:
            self.history.filling(marked)
        return marked

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        filled = super().publish_filled(entry, epoch, newer)
        if filled:
            self.history.filled([entry, *newer], epoch)
        return filled

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        for chunk in chunks:
            self.history.applying(stamp, chunk)
        super().apply(stamp, *chunks)  # type: ignore[safe-super]

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        self.history.fact(stamp.version, "I5")
        super().seal(stamp, counts)  # type: ignore[safe-super]


class WatchedMemoryLog(WatchedLog, MemoryLog):
    pass


class WatchedFileLog(WatchedLog, FileLog):
    pass


class WatchedMemoryStore(WatchedStore, MemoryStore):
    pass


class WatchedSqliteStore(WatchedStore, SqliteStore):
    pass


def watch(history: History, name: str, clock: Clock, folder: Path | None) -> None:
    """Give the history its log and its store: in memory, or in files in a folder."""
    if folder is None:
        history.log = WatchedMemoryLog(name, "n", clock=clock)
        history.store = WatchedMemoryStore(name, "n", clock)
    else:
        history.log = WatchedFileLog(folder / name / "wal", "n")
        history.store = WatchedSqliteStore(str(folder / name / "store"), "n", clock)
    history.log.history = history.store.history = history
