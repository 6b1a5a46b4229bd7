"""The checks of a log and a store after a crash, by a reader that wrote neither.

They are for the workload of ``support.driver_process``. Rows are read with plain SQL, and through the store.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from support.driver_process import MARKER, expected_at
from tidegate.committers.apply.apply import chunks_of, plan, read_manifest
from tidegate.committers.operations.verify import verify
from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry, ReadAt
from tidegate.sinks.store import Store
from tidegate.wal.fold import View, fold_all
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Folded

SEED, ROWS, NAMESPACE = 3, 12, "crash"


class SweepError(AssertionError):
    """An invariant that did not hold."""


class Left(NamedTuple):
    """The remains of a dead driver: whether there is a namespace, its versions, attempts and segments."""

    made: bool
    visible: int
    decided: int
    attempts: dict[int, str]
    segments: frozenset[str]


def require(name: str, true: bool, found: object) -> None:
    if not true:
        raise SweepError(f"{name}: {found}")


class Elsewhere(NamedTuple):
    """A log that is not in files: its options, and a function that lists the segments of its change-log."""

    options: Mapping[str, Any]
    segments: Callable[[], frozenset[str]]


@contextlib.contextmanager
def _opened(wal: str, store: str, elsewhere: Elsewhere | None) -> Iterator[tuple[Log, Store]]:
    with contextlib.ExitStack() as closing:
        log = open_log(wal, NAMESPACE, elsewhere.options if elsewhere else None)
        closing.callback(log.close)
        kept = open_store(store, NAMESPACE)
        closing.callback(kept.close)
        yield log, kept


def check(wal: str, store: str, elsewhere: Elsewhere | None = None, in_flight: int = 1) -> Left:
    """Check I1, I2, I7 and I8 for every reader, and that the log has what is still needed of it (I4).

    ``in_flight``: the largest number of versions that may be decided and not visible.
    """
    with _opened(wal, store, elsewhere) as (log, kept):
        state = fold_all(View(), log.decisions()).state
        pointer = kept.pointer() if kept.identity() else None
        visible, horizon = (pointer.visible, pointer.horizon) if pointer else (0, 0)
        facts = {fact.version: fact for fact in state.recent} if state else {}
        decided = state.last_version if state else 0
        for version, fact in facts.items():
            require("I2", getattr(fact.origin, "batch_id", None) == version - 1, fact)
        waiting = decided - visible
        require("I5, I7", 0 <= waiting <= in_flight, f"visible {visible}, decided {decided}")
        if state:
            _check_log(log, state, horizon)
        entries = kept.catalog() if visible else []
        require("I7", [e.version for e in entries] == list(range(max(horizon, 1), visible + 1)), entries)
        for entry in entries:
            fact = facts[entry.version]
            require("I6", (entry.digest, entry.attempt) == (fact.digest, fact.attempt), (entry, fact))
            _check_version(kept, entry)
        _check_expired(kept, horizon)
        attempts = {version: fact.attempt for version, fact in facts.items()}
        segments = elsewhere.segments() if elsewhere else _segments(wal)
        return Left(state is not None, visible, decided, attempts, segments)


def check_end(
    wal: str, store: str, versions: int, left: Left | None, elsewhere: Elsewhere | None = None
) -> None:
    """Check after the last batch that nothing decided is lost, nothing doubled, nothing left over."""
    now = check(wal, store, elsewhere)
    require("I4", (now.visible, now.decided) == (versions, versions), now)
    for version, attempt in (left.attempts if left else {}).items():
        # A trimmed log still knows the recent versions: its first record is a Summary.
        require("I4", now.attempts.get(version) == attempt, (version, attempt, now.attempts))
    with _opened(wal, store, elsewhere) as (log, kept):
        horizon = kept.pointer().horizon
        report = verify(log, kept)
    require("verify", not report.findings, report.findings)
    require("I11", horizon == versions - 1, f"horizon {horizon} after {versions} versions")
    garbage = _retired_rows(store, horizon)
    require("I11", not garbage, f"rows that no reader can ask for: {garbage}")
    orphans = (left.segments & now.segments) if left else frozenset()
    kept_attempts = set(now.attempts.values())
    orphans = frozenset(name for name in orphans if name.partition("-")[0] not in kept_attempts)
    require("I11", not orphans, f"orphans that no trim dropped: {sorted(orphans)}")


def _check_log(log: Log, state: Folded, horizon: int) -> None:
    """Check that every manifest and frame is readable that readers' versions and unpublished ones need."""
    for fact in state.recent:
        if fact.version >= horizon:
            manifest = read_manifest(log, fact)
            for work in plan(manifest, fact, 1):
                for _ in chunks_of(work, log):
                    pass


def _check_version(store: Store, entry: CatalogEntry) -> None:
    expected = expected_at(SEED, entry.version, ROWS)
    require("I1", set(entry.tables) == set(expected), entry)
    identity = store.identity()
    groups = identity.key_groups if identity else 0
    for table in entry.tables:
        found: dict[bytes, bytes] = {}
        for group in range(groups):
            for rows in store.scan(entry.read_at(table), group):
                found.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        require("I1", found == expected[table], f"version {entry.version}, table {table}: {found}")
        keys = sorted(expected[table])
        got = store.get_many(entry.read_at(table), keys).to_pylist()
        require("I1", got == [expected[table][key] for key in keys], f"get_many at version {entry.version}")


def _check_expired(store: Store, horizon: int) -> None:
    if horizon > 1:
        try:
            got = store.get_many(ReadAt(MARKER, horizon - 1), [b"m0"]).to_pylist()
        except SnapshotExpiredError:
            return
        raise SweepError(f"I8: version {horizon - 1} was answered below the horizon {horizon}: {got}")


# -- without the library --------------------------------------------------------------------------


def _segments(wal: str) -> frozenset[str]:
    folder = Path(urlsplit(wal).path) / NAMESPACE / "changelog"
    return frozenset(path.name for path in folder.glob("*.seg"))


def _retired_rows(store: str, horizon: int) -> list[Any]:
    """List rows under the horizon that a newer row under the horizon replaced, and delete markers there."""
    garbage: list[Any] = []
    for path in sorted((Path(urlsplit(store).path) / NAMESPACE).glob("shard-*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 't\\_%' ESCAPE '\\'")
            for (table,) in tables.fetchall():
                sql = f"""SELECT kg, key, version, value FROM "{table}" AS row WHERE version <= :horizon AND (
                    substr(value, 1, 1) IN (x'2d', x'64') OR EXISTS (SELECT 1 FROM "{table}" AS newer WHERE
                    newer.kg = row.kg AND newer.key = row.key AND newer.version > row.version
                    AND newer.version <= :horizon))"""
                rows = connection.execute(sql, {"horizon": horizon}).fetchall()
                garbage += [(path.name, table, *row) for row in rows]
    return garbage
