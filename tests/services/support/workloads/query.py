"""A query without Spark on a store that servers keep, and readers who look at it all along.

``redis/query.py`` and ``cassandra/query.py`` have what is of one kind of server. The log is files. Batch b
makes version b + 1 and nothing else does, and rows are a function of the batch id alone, so that a reader who
wrote neither can tell what each version must hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tidegate
from support.concurrency import WAIT_S
from support.driver_process import MARKER, MARKER_KEYS, expected_at, rows_of
from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
    StoreLostError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    TidegateError,
    VersionRegressedError,
)
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.fold import View, fold_all, replay_of
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

SEED, ROWS, KEY_GROUPS, LINEAGE = 5, 20, 8, "lineage"
AWAY_S, BACK_S, REQUEST_S = 1.5, 60.0, 15.0
"""Deadlines of a driver whose store stays away, of one whose store comes back, and of a store's call."""
KEEP_NOTHING_S = 0.002
"""What a trimmer is told: all that is not needed goes."""
MARKERS = [b"m%d" % at for at in range(MARKER_KEYS)]

Content = Mapping[str, Mapping[bytes, bytes]]


@functools.cache
def expected(version: int) -> Content:
    return expected_at(SEED, version, ROWS)


class Query:
    """One namespace. Each ``driver`` is a new one, as after a restart; ``run`` opens it and commits.

    ``clock`` is that of every driver from then on.
    """

    store_options: tuple[str, ...] = ("timeout_s",)
    """Which of a driver's options are its store's."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url, self.wal = url, f"file://{folder}/wal"
        self._folder = folder
        self.namespace = f"q{uuid.uuid4().hex[:12]}"
        self.options = {"timeout_s": REQUEST_S} | options
        self.clock = Clock()
        self._opened = contextlib.ExitStack()

    # -- what runs ----------------------------------------------------------------------------------

    def log(self) -> Log:
        made = open_log(self.wal, self.namespace)
        self._opened.callback(made.close)
        return made

    def store(self, url: str | None = None, **options: Any) -> Any:
        made = open_store(url or self.url, self.namespace, self.options | options)
        self._opened.callback(made.close)
        return made

    def driver(self, url: str | None = None, **options: Any) -> Coordinator:
        """A driver of its own, not open yet. ``timeout_s`` is the store's."""
        of_store = {name: options.pop(name) for name in self.store_options if name in options}
        given = {
            "key_groups": KEY_GROUPS,
            "frame_bytes": 400,
            "decide_deadline_s": BACK_S,
            "apply_deadline_s": BACK_S,
            "keep_versions": 3,
        }
        endpoints = Endpoints(self.namespace, self.wal, url or self.url)
        store = self.store(url, **of_store)
        return Coordinator(endpoints, self.log(), store, Options(**given | options), self.clock)

    def open(self, url: str | None = None, **options: Any) -> Coordinator:
        driver = self.driver(url, **options)
        open_namespace(driver, LINEAGE)
        return driver

    def run(self, batches: int, url: str | None = None, **options: Any) -> Coordinator:
        """A driver that starts anew: it opens and commits what is not decided yet."""
        driver = self.open(url, **options)
        self.commit(driver, *range(batches))
        return driver

    def commit(self, driver: Coordinator, *batch_ids: int) -> None:
        """Each batch once, as a query does it: one that was decided before is not run again."""
        for batch_id in batch_ids:
            origin = batch(LINEAGE, batch_id)
            if replay_of(driver.folded, origin) is None:
                rows = rows_of(SEED, batch_id, ROWS)
                commit(driver, ArrowBarrier(driver.log, rows, origin, KEY_GROUPS))

    def retire(self, driver: Coordinator) -> None:
        """As the background does it."""
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)

    def tidy(self, driver: Coordinator) -> None:
        """Retire, then trim all that nothing needs, however young: its files are made to look old."""
        folded_at_us = driver.clock.now_us()
        for segment in self._folder.rglob("*.seg"):
            os.utime(segment, (0, 0))
        self.retire(driver)
        options = dataclasses.replace(
            driver.options, wal_retain_s=KEEP_NOTHING_S, apply_deadline_s=KEEP_NOTHING_S / 10
        )
        Trimmer(driver.log, driver.store, options).trim(driver.decisions.view, folded_at_us)

    # -- what is true of it -----------------------------------------------------------------------------

    def check(self, versions: int, url: str | None = None) -> None:
        """I1 to I4: all versions decided once and visible, each with exactly its rows; ``verify`` agrees."""
        log, store = self.log(), self.store(url)
        state = fold_all(View(), log.decisions()).state
        assert state is not None
        assert [fact.origin.batch_id for fact in state.recent] == list(range(versions))
        pointer = store.pointer()
        assert pointer.visible == versions
        entries = store.catalog()
        assert [entry.version for entry in entries] == list(range(max(pointer.horizon, 1), versions + 1))
        oldest = self.oldest_read(store)
        for entry in entries:
            if entry.version >= oldest:
                assert found_at(store, entry.version) == expected(entry.version), entry.version
            else:
                with pytest.raises(SnapshotExpiredError):
                    found_at(store, entry.version)
        assert verify(log, store).findings == []
        assert not store.unverified()

    def oldest_read(self, store: Any) -> int:
        """Of the versions in the catalog, those below this one are refused."""
        return 0

    def close(self) -> None:
        self._opened.close()


def put_back(log: pytest.LogCaptureFixture) -> set[int]:
    """The versions that repairs put back."""
    return {int(version) for version in re.findall(r"version (\d+) was put back", log.text)}


def found_at(store: Any, version: int) -> Content:
    """Every live row at a version: scanned, and the same asked for key by key."""
    (entry,) = store.catalog(version, version)
    content: dict[str, dict[bytes, bytes]] = {}
    for table, at in entry.tables.items():
        rows = content.setdefault(table, {})
        for group in range(KEY_GROUPS):
            for found in store.scan(ReadAt(table, version, at.start), group):
                rows.update(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
        values = store.get_many(ReadAt(table, version, at.start), list(rows)).to_pylist()
        assert values == list(rows.values())
    return content


# -- readers --------------------------------------------------------------------------------------------

ALLOWED = (StoreNotVerifiedError, StoreUnavailableError, SnapshotExpiredError, VersionRegressedError)
"""What a reader may be told while servers fail; all else is a fault."""


class Reader:
    """On a thread of its own: takes snapshots all along, holds each for some reads, and checks each whole.

    ``whole`` counts reads by version, ``refused`` errors by class. A snapshot that shows anything but the
    whole of its version, and an error that is not allowed, is the test's failure when the reader is left.
    """

    def __init__(self, query: Query, *allowed: type[TidegateError], url: str | None = None) -> None:
        self.whole: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()
        self._query, self._url = query, url or query.url
        self._allowed = (*ALLOWED, *allowed)
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> Reader:  # noqa: PYI034
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ending.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the reader hangs"
        if self._failure is not None:
            raise self._failure

    def wait_whole(self, version: int) -> None:
        """Return when a snapshot of this version, or of a later one, has been read whole once more."""
        before = self._at_least(version)
        end = time.monotonic() + WAIT_S
        with self._changed:
            while self._at_least(version) == before and self._failure is None:
                left = end - time.monotonic()
                assert left > 0, f"nobody read version {version}: {self.whole} {self.refused}"
                self._changed.wait(left)

    def _at_least(self, version: int) -> int:
        return sum(times for seen, times in self.whole.items() if seen >= version)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                with self._refusals(), self._gate() as gate:
                    while not self._ending.is_set():
                        with gate.snapshot() as snapshot:
                            for _ in range(3):
                                self._look(snapshot)
        except BaseException as failure:  # noqa: BLE001 - it is raised again where the reader is left
            self._failure = failure
            self._note()

    def _gate(self) -> Any:
        return tidegate.connect(self._url, self._query.namespace, self._query.options)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except self._allowed as refusal:
            self.refused[type(refusal).__name__] += 1

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _look(self, snapshot: Any) -> None:
        version = snapshot.version
        if version:
            check_snapshot(snapshot)
            self.whole[version] += 1
        self._note()


def check_snapshot(snapshot: Any) -> None:
    """All rows of the version, and no others: by key, and scanned."""
    wanted = expected(snapshot.version)
    marked = snapshot.table(MARKER).get_many(MARKERS)
    assert _plain(marked) == wanted[MARKER], (snapshot.version, marked)
    for table, rows in wanted.items():
        found = _plain(dict(snapshot.table(table).scan()))
        assert found == rows, (snapshot.version, table)


def _plain(rows: Mapping[bytes, Any]) -> dict[bytes, bytes]:
    return {key: value["value"] if isinstance(value, dict) else value for key, value in rows.items()}


class Held:
    """A snapshot that a reader keeps while servers fail: whole whenever it answers."""

    def __init__(self, query: Query, url: str | None = None) -> None:
        self._gate = tidegate.connect(url or query.url, query.namespace, query.options)
        self._snapshot = self._gate.snapshot()
        self.version = self._snapshot.version
        check_snapshot(self._snapshot)

    def look(self) -> str:
        """``"whole"``, or by what it was refused."""
        try:
            check_snapshot(self._snapshot)
        except (*ALLOWED, ConfigError, StoreLostError) as refusal:
            return type(refusal).__name__
        return "whole"

    def get_all(self) -> None:
        """Every row, and one that is not there, each by a call of its own."""
        for table, rows in expected(self.version).items():
            for key in (*rows, *(b"none %d" % number for number in range(100))):
                self._snapshot.table(table).get(key)

    def get_many(self) -> None:
        """The same, table by table."""
        for table, rows in expected(self.version).items():
            self._snapshot.table(table).get_many([*rows, *(b"none %d" % number for number in range(100))])

    def scan_all(self) -> None:
        """Every table, scanned."""
        for table in expected(self.version):
            dict(self._snapshot.table(table).scan())

    def close(self) -> None:
        with contextlib.suppress(TidegateError):
            self._snapshot.close()
        self._gate.close()


@contextlib.contextmanager
def held_snapshot(query: Query, url: str | None = None) -> Iterator[Held]:
    held = Held(query, url)
    try:
        yield held
    finally:
        held.close()
