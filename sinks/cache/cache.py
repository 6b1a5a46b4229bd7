"""The cache of state on a host: rows that its tasks read from the store or wrote, by version.

The executors of a host share, per version and run of a task::

    <version>-<token>.index    a file: which pieces that run held for its key groups, oldest first, per table
    <version>-<run>-<n>        pieces: rows, in memory or on a disk; see pieces.py, runs.py
    <version>-<run>.read       a file: pieces with what a first stage read, for the task that keeps

Files and pieces are written once and never changed. A task

1. **opens**: from the indexes whose link holds at its base version (``sinks/cache/links.py``: the
   only rule) it takes the entries of its own key groups; after a rescale several may serve it, or
   none. If there is none, it takes those of an earlier version, and catches up by the frames of the
   versions since (``sinks/cache/in_flight.py``);
2. **reads**: keys that are in no piece are read from the store, and kept;
3. **keeps**: when its frames are durable in the log, it writes one more index, under its own link,
   of what it had, read and wrote. The decision log determines whether that link ever holds.

Then it deletes what no version needs. Nothing here is needed: if anything fails in the folder, the
task continues without a cache, and warns once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.local_dir import LocalDir
from tidegate.errors import CorruptError, TidegateError
from tidegate.sinks.cache.buffer.policy import Reason
from tidegate.sinks.cache.compaction import cut, evict, merge, merge_from, newest, without_expired
from tidegate.sinks.cache.in_flight import NOT_BEHIND, Behind, EarlierLinks, VersionFrames
from tidegate.sinks.cache.index import Index, TableRuns, index_name, read_index, version_of, write_index
from tidegate.sinks.cache.links import Link
from tidegate.sinks.cache.lookup import Hashes
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.cache.runs import Answers, PieceRef, Run, places_of, rows_of
from tidegate.wal.staging.acks import StateReads
from tidegate.wal.value_flags import DELETE

logger = logging.getLogger("tidegate")

FOLDER = "state"
READ = ".read"
"""The suffix of the files by which a first stage hands over what it read."""
RUNS_MAX = 12
"""The most runs of a table; above that all are merged."""
MEMORY_BYTES = 8 * 1024 * 1024
"""The most new bytes in memory before they are written."""
PIECE_BYTES_MIN = 128 * 1024
PIECES = 32
"""A task's room holds about this number of pieces: eviction is by piece."""

TROUBLE = (OSError, CorruptError, pa.ArrowException)
"""The errors of a folder that is full, read-only, gone or damaged."""

ReadChanges = Callable[[Sequence[VersionFrames]], Iterator[tuple[str, int, Any]]]
"""Reads (table, version, rows) of the changes of the task's key groups, the oldest version first."""
Ask = Callable[[Any], Any]
"""Returns stored values, from the store, of the keys of these rows: null where there is none."""


@dataclasses.dataclass
class _Fresh:
    """New knowledge of this task about a table: rows in memory, and runs flushed when they were many.

    ``crowded``: the oldest of these runs were evicted, since the new ones alone exceed the room.
    """

    rows: list[Any] = dataclasses.field(default_factory=list)
    bytes: int = 0
    runs: list[Run] = dataclasses.field(default_factory=list)
    crowded: bool = False


@dataclasses.dataclass
class _Table:
    """One table in this task: its start, the runs that hold at the base version, and what is new.

    Rows that were read hold at the base version, rows that were written after it: so the order is
    runs, read, written.
    """

    start: int
    runs: list[Run] = dataclasses.field(default_factory=list)
    caught_up: _Fresh = dataclasses.field(default_factory=_Fresh)
    read: _Fresh = dataclasses.field(default_factory=_Fresh)
    written: _Fresh = dataclasses.field(default_factory=_Fresh)

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)


@dataclasses.dataclass(frozen=True)
class CacheSpec:
    """A task's parameters for the cache. Plain data that travels to tasks.

    ``links`` are those that hold at ``base_version``, ``starts`` the tables' starts there.
    ``bytes_max`` is the most that all tasks of a host may keep together; with 0 the folder is not
    used. ``behind`` are caches of earlier versions, and how they catch up. ``decided_at_us`` is the
    time of the base version's decision. ``first_start`` is the start of a table that the base version lacks:
    changes before it are those of a dropped table of its name.
    """

    base_version: int
    links: tuple[Link, ...]
    starts: Mapping[str, int]
    key_groups: int
    bytes_max: int
    behind: Behind = NOT_BEHIND
    decided_at_us: int = 0
    first_start: int = 0

    @property
    def every_link(self) -> tuple[Link, ...]:
        """The links whose caches may still be used."""
        return *self.links, *(link for earlier in self.behind.earlier for link in earlier.links)


class StateCache:
    """One task's view of its host's cache, at its base version. For one thread.

    No method raises for the state of the folder. ``run`` is a unique name of this run of the task.
    ``reads`` are all tables that it may read: its writes to them are kept from the first row on,
    because otherwise an earlier read would be taken for the last value.
    """

    def __init__(
        self,
        local: LocalDir,
        pieces: Pieces,
        spec: CacheSpec,
        groups: range,
        run: str,
        reads: Iterable[str],
        changes: ReadChanges = lambda _: iter(()),
    ) -> None:
        self._changes = changes
        self._local, self._spec, self._groups, self._run = local, spec, groups, run
        self._pieces = pieces
        self._tables: dict[str, _Table] = {name: self._new(name) for name in reads}
        self._opened: dict[str, Any] = {}
        self._placed: tuple[Any, Hashes] | None = None
        self._requests = np.zeros(spec.key_groups, np.int64)
        self._moved: dict[Reason, int] = {}
        self._written = 0
        self._room = 0
        self._hits = self._absent = self._misses = 0
        self._seconds = 0.0
        self._folder = local.shared(FOLDER) if spec.bytes_max else None
        self._wait = pieces.meter()
        with self._guarded():
            self._open()

    @property
    def counts(self) -> StateReads:
        """The reads so far, and the bytes that are held and were moved."""
        cached_bytes = sum(table.bytes for table in self._tables.values())
        moved = {str(reason): size for reason, size in self._moved.items()}
        return StateReads(self._hits, self._absent, self._misses, cached_bytes, self._seconds, moved=moved)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the namespace's pieces on this host's disks."""
        with contextlib.suppress(*TROUBLE):
            return 0 if self._folder is None else self._pieces.disk_bytes()
        return 0

    # -- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        """Take over what holds of this task's key groups at the base version."""
        names = self._names()
        for earlier in (EarlierLinks(self._spec.base_version, self._spec.links), *self._spec.behind.earlier):
            kept_links = [link for link in earlier.links if index_name(link) in names]
            latest = max((link.version for link in kept_links), default=0)
            kept_links = [link for link in kept_links if link.version == latest]
            self._room = self._room_beside(kept_links)
            mine = [link for link in kept_links if self._shares(link)]
            for link in mine:
                try:
                    self._take(read_index(self._path(index_name(link))))
                except TROUBLE as error:  # its key groups are read from the store; others hold
                    self._tell(error)
            if mine:
                self._catch_up(earlier.version)
                return

    def _shares(self, link: Link) -> bool:
        return bool(range(max(link.first_group, self._groups.start), min(link.end_group, self._groups.stop)))

    def _catch_up(self, version: int) -> None:
        """Add the changes since the version at which the runs hold: then they hold at the base version."""
        if version == self._spec.base_version:
            return
        try:
            for name, changed_at, rows in self._changes(self._spec.behind.after(version)):
                table = self._tables.setdefault(name, self._new(name))
                if changed_at >= table.start:
                    table.caught_up.rows.append(rows)
        except TidegateError as error:  # trimmed meanwhile, or the log is away: nothing of it holds
            logger.info("a cache of state at version %s is not used: %s", version, error)
            self._tables = {name: self._new(name) for name in self._tables}
        for table in self._tables.values():
            self._flush(table.caught_up)
            table.runs += table.caught_up.runs

    def _take(self, index: Index) -> None:
        for name, table in index.tables.items():
            if table.start != self._spec.starts.get(name):
                continue  # the table was emptied or dropped since
            mine = (run.within(self._groups) for run in table.runs)
            self._tables.setdefault(name, self._new(name)).runs += [run for run in mine if run.pieces]

    def _new(self, name: str) -> _Table:
        return _Table(self._spec.starts.get(name, self._spec.first_start))

    def _room_beside(self, kept_links: Sequence[Link]) -> int:
        """Return this task's share of the host's bytes, by its share of the key groups last cached here."""
        host_groups = {group for link in kept_links for group in link.groups} | set(self._groups)
        share = len(self._groups) / (len(host_groups) if kept_links else self._spec.key_groups)
        return int(self._spec.bytes_max * share)

    # -- reading --------------------------------------------------------------------------------

    def read(self, name: str, rows: Any, ask: Ask) -> Any:
        """Return stored values at the base version of the keys of these rows, aligned with them.

        Keys that are not cached are read from the store, all at once, and kept. ``ask``'s errors
        pass through. Before the first version there is no state, and the store is not read.
        """
        began = time.perf_counter()
        if not self._spec.base_version:
            return pa.nulls(len(rows), pa.binary())
        table = self._tables[name]
        self._requests += np.bincount(rows["g"].to_numpy(), minlength=len(self._requests))
        values = self._look_up(table.runs, rows)
        missing = pc.is_null(values)
        cached = pc.filter(values, pc.invert(missing))
        if len(cached) < len(rows):
            missed = rows.filter(missing)
            answers = pc.fill_null(ask(missed), DELETE)
            self._note(table.read, missed, answers)
            values = pc.replace_with_mask(values, missing, answers)
        absent = pc.sum(pc.equal(pc.binary_slice(cached, 0, 1), DELETE)).as_py() or 0
        self._hits += len(cached) - absent
        self._absent += absent
        self._misses += len(rows) - len(cached)
        self._seconds += time.perf_counter() - began
        return values

    def _look_up(self, runs: list[Run], rows: Any) -> Any:
        if not runs:
            return pa.nulls(len(rows), pa.binary())
        answers = Answers(self._places(rows), rows["k"].cast(pa.large_binary()))
        for place in reversed(range(len(runs))):
            if not answers.open.size:
                break
            try:
                answers.look_in(runs[place], self._piece)
            except TROUBLE as error:
                self._tell(error)
                # Below a lost run, an older run may have outdated values of its keys.
                del runs[: place + 1]
                break
        return answers.values()

    def _places(self, rows: Any) -> Hashes:
        """Return the rows' places. Keys that are read are written next, so they are hashed once."""
        if self._placed is None or not _same_keys(self._placed[0], rows):
            places = places_of(rows["g"].to_numpy(), rows["k"].cast(pa.large_binary()))
            self._placed = rows, places
        return self._placed[1]

    def _piece(self, ref: PieceRef) -> Any:
        if ref.name not in self._opened:
            self._opened[ref.name] = self._pieces.open(ref)
        return self._opened[ref.name]

    # -- keeping --------------------------------------------------------------------------------

    def wrote(self, name: str, rows: Any) -> None:
        """Note changes that are cut into this task's frames: columns ``g``, ``k``, ``v``."""
        if name in self._tables:
            self._note(self._tables[name].written, rows, rows["v"])

    def keep(self, link: Link) -> None:
        """Write the index of ``link``, once all its frames are durable in the log. It is valid if
        the link holds.
        """
        if self._folder is None or not self._tables:
            return
        with self._guarded():
            for table in self._tables.values():
                self._settle(table)
                self._merge(table)
            self._fit()
            tables = {name: TableRuns(t.start, tuple(t.runs)) for name, t in self._tables.items()}
            write_index(self._path(index_name(link)), Index(tables), self._run)
            self._sweep(link)
            self._opened.clear()  # so that spilled pieces leave memory at once
            self._moved = self._pieces.balance(self._requests, self._spec.base_version + 1, self._wait)

    def hand_over(self) -> None:
        """Leave this run's reads of the store to the run that keeps, of the same barrier and key groups.

        They hold at the base version, which is decided, whichever run read them and whatever
        happens to this one.
        """
        if self._folder is None:
            return
        with self._guarded():
            for table in self._tables.values():
                self._flush(table.read)
            read = {name: TableRuns(t.start, tuple(t.read.runs)) for name, t in self._tables.items()}
            if any(table_runs.runs for table_runs in read.values()):
                name = f"{self._spec.base_version + 1}-{self._run}{READ}"
                write_index(self._path(name), Index(read), self._run)
            self._opened.clear()

    def take_over(self, runs: str) -> None:
        """Take what runs with this prefix have handed over on this host."""
        before = f"{self._spec.base_version + 1}-{runs}"
        with self._guarded():
            for name in sorted(self._names()):
                if name.startswith(before) and name.endswith(READ):
                    with contextlib.suppress(*TROUBLE):  # it is read from the store again
                        for table, table_runs in read_index(self._path(name)).tables.items():
                            if table in self._tables and table_runs.start == self._tables[table].start:
                                self._tables[table].read.runs += table_runs.runs

    def _note(self, fresh: _Fresh, of: Any, values: Any) -> None:
        if self._folder is None:
            return
        rows = rows_of(self._places(of), of["k"], values)
        fresh.rows.append(rows)
        fresh.bytes += rows.nbytes
        if fresh.bytes >= MEMORY_BYTES:  # bounds memory (I11), and the disk too
            with self._guarded():
                self._flush(fresh)
                if sum(run.bytes for run in fresh.runs) > self._room:
                    fresh.runs, fresh.crowded = self._evicted(fresh.runs, self._room), True

    def _flush(self, fresh: _Fresh, *older: Any) -> None:
        """Write the rows as a new run, with ``older`` ones below them."""
        rows, fresh.rows, fresh.bytes = [*older, *fresh.rows], [], 0
        if rows:
            pieces = cut(newest(rows), self._piece_bytes)
            fresh.runs.append(self._run_of([self._write(piece) for piece in pieces]))

    def _settle(self, table: _Table) -> None:
        """Turn everything new into runs above those that held at the base version."""
        read, written = table.read, table.written
        if not read.runs and not written.runs:
            self._flush(written, *read.rows)
        else:
            self._flush(read)
            self._flush(written)
        older = table.runs + read.runs
        if written.crowded:  # an older value must not outlive a newer one
            self._discard(read.runs)
            older = []
        table.runs = older + written.runs

    def _run_of(self, pieces: list[PieceRef]) -> Run:
        return Run(self._groups.start, self._groups.stop, tuple(pieces))

    def _merge(self, table: _Table) -> None:
        first = merge_from([run.bytes for run in table.runs], RUNS_MAX)
        older, merged = table.runs[:first], table.runs[first:]
        if merged:
            rows_of_pieces = merge(merged, self._piece, self._piece_bytes)
            pieces = [self._write(without_expired(rows, self._spec.decided_at_us)) for rows in rows_of_pieces]
            table.runs = older + [self._run_of(pieces)] * bool(pieces)
            self._discard(merged)

    def _fit(self) -> None:
        """Evict down to this task's share of the bytes; each table in proportion to its size."""
        cached_bytes = sum(table.bytes for table in self._tables.values())
        if cached_bytes > self._room:
            for table in self._tables.values():
                table.runs = self._evicted(table.runs, self._room * table.bytes // cached_bytes)

    def _evicted(self, runs: list[Run], room: int) -> list[Run]:
        left = evict(runs, room)
        self._discard(runs, frozenset(piece.name for run in left for piece in run.pieces))
        return left

    def _write(self, rows: Any) -> PieceRef:
        self._written += 1
        return self._pieces.write(f"{self._mine}{self._written}", rows)

    @property
    def _mine(self) -> str:
        """The prefix of the names of the pieces that this run of the task writes."""
        return f"{self._spec.base_version + 1}-{self._run}-"

    @property
    def _piece_bytes(self) -> int:
        return max(PIECE_BYTES_MIN, self._room // PIECES)

    # -- the folder -----------------------------------------------------------------------------

    def _discard(self, runs: Iterable[Run], in_use: frozenset[str] = frozenset()) -> None:
        """Delete the pieces of these runs that this run of the task wrote itself, except those still held."""
        for name in {piece.name for run in runs for piece in run.pieces} - in_use:
            if name.startswith(self._mine):
                self._drop(name)

    def _sweep(self, mine: Link) -> None:
        """Delete indexes that can hold at no version any more, and pieces that no index names.

        The base version is decided: of the files for it or earlier versions only the links of the
        spec are needed. Files of later versions stay, for the tasks that work on them.
        """
        base = self._spec.base_version
        needed = {index_name(link) for link in (*self._spec.every_link, mine)}
        pieces: set[str] = set()
        for name in self._names():
            if name.endswith(".index"):
                if name not in needed and version_of(name) <= base:
                    self._path(name).unlink(missing_ok=True)
                    continue
                with contextlib.suppress(*TROUBLE):  # the task that uses it will warn
                    index = read_index(self._path(name))
                    pieces |= {p.name for t in index.tables.values() for r in t.runs for p in r.pieces}
            elif version_of(name) <= base:  # an unfinished index
                self._path(name).unlink(missing_ok=True)
        for name in self._pieces.names():
            if name not in pieces and version_of(name) <= base:
                self._drop(name)

    def _drop(self, piece: str) -> None:
        self._opened.pop(piece, None)
        self._pieces.drop(piece)

    def _names(self) -> set[str]:
        if self._folder is None:
            return set()
        return {path.name for path in self._folder.iterdir()}

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise FileNotFoundError(name)
        return self._folder / name

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Continue without a cache in this task if anything fails in the folder."""
        try:
            yield
        except TROUBLE as error:
            self._tell(error)
            self._folder = None
            self._tables = {name: self._new(name) for name in self._tables}

    def _tell(self, error: Exception) -> None:
        if isinstance(error, FileNotFoundError):  # expected after a kill, and where another process tidied
            logger.info("a part of the cache of state is gone, its rows are read from the store: %s", error)
        elif isinstance(error, OSError):
            self._local.failed(error)
        else:
            logger.warning("harmless: damaged cache of state, its rows are read from the store: %s", error)


def _same_keys(left: Any, right: Any) -> bool:
    return len(left) == len(right) and bool(left["k"].equals(right["k"]) and left["g"].equals(right["g"]))
