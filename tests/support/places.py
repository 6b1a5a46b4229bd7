"""Namespaces to work on: in memory with their coordinators, and in files as a reader finds them."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import tidegate
from support.faulty import FaultyLog, FaultyStore
from tidegate.base.clock import Clock
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.store_list import add_to_list
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import LoadOrigin

KEY_GROUPS = 4

# -- in memory ----------------------------------------------------------------------------------------


def new_place() -> str:
    """Return a name under which neither log nor store has anything in memory."""
    return uuid.uuid4().hex


def driver_at(
    place: str,
    kind: Callable[[str, str], Any] = MemoryStore,
    names: Sequence[str] = ("a",),
    *,
    namespace: str = "n",
    log: Any = None,
    port: Any = None,
    clock: Clock | None = None,
    **options: Any,
) -> Coordinator:
    """Make a coordinator that is not open. With a port, its log and store are faulty ones behind it."""
    stores = [
        StoreRef(name, f"memory://{place}{'-' + name if number else ''}") for number, name in enumerate(names)
    ]
    where = Endpoints.of(namespace, f"memory://{place}", stores)
    log, store = log or MemoryLog(place, namespace), kind(place, namespace)
    if port is not None:
        log, store = FaultyLog(log, port), FaultyStore(store, port)
    defaults = {"key_groups": KEY_GROUPS, "apply_deadline_s": 20.0}
    return Coordinator(where, log, store, Options(**defaults | options), clock or Clock())


def barrier_of(driver: Coordinator, batch_id: int, rows: Mapping[bytes, bytes | None] | None = None) -> Any:
    """Make the barrier of a batch: table ``t``, by default with 20 keys whose value is the batch."""
    rows = {b"%d" % key: b"%d" % batch_id for key in range(20)} if rows is None else rows
    return ArrowBarrier(driver.log, {"t": rows}, batch("q", batch_id), KEY_GROUPS)


def opened(place: str, versions: int = 1, **how: Any) -> Coordinator:
    """Open a coordinator for query ``q`` and commit some versions; ``how`` is for `driver_at`."""
    driver = driver_at(place, **how)
    open_namespace(driver, "q")
    for batch_id in range(versions):
        commit(driver, barrier_of(driver, batch_id))
    return driver


def to_fill(driver: Coordinator) -> Follower:
    """Add an empty store ``b`` to the list of stores, and return the follower that has to fill it."""
    store = MemoryStore(new_place(), "n")
    follower = follower_for(driver, StoreRef("b", store.where), store, fill_first=True)
    commit(driver, ArrowBarrier(driver.log, {"t": {}}, LoadOrigin("listed"), KEY_GROUPS))
    add_to_list(driver.decisions, "a")
    add_to_list(driver.decisions, "b")
    return follower


def fails(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises the error, to be put in place of a method."""

    def call(*_: object, **__: object) -> Any:
        raise error

    return call


def appended_nothing(
    driver: Coordinator, call: Callable[[], object], error: type[Exception], words: str
) -> None:
    """Assert that the call is refused, and that the log has no new record."""
    before = [entry.content for entry in driver.log.decisions()]
    with pytest.raises(error, match=words):
        call()
    assert [entry.content for entry in driver.log.decisions()] == before


# -- in files -----------------------------------------------------------------------------------------


def silence_writer(store: Path, namespace: str = "flights") -> None:
    """Remove the heartbeat from a SQLite store, as if its writer had ended long ago."""
    with contextlib.closing(sqlite3.connect(store / namespace / "meta.sqlite")) as connection:
        connection.execute("UPDATE pointer SET heartbeat_us = NULL")
        connection.commit()


def stored_rows(
    url: str, namespace: str = "flights", key_groups: int = 8
) -> tuple[int, dict[tuple[str, bytes], bytes]] | None:
    """Return the visible version of a store and its rows as stored, or None before there is one."""
    with contextlib.closing(open_store(url, namespace)) as store:
        if store.identity() is None or not (visible := store.pointer().visible):
            return None
        (entry,) = store.catalog(visible, visible)
        return visible, {
            (table, key): value
            for table, at in entry.tables.items()
            for group in range(key_groups)
            for rows in store.scan(ReadAt(table, visible, at.start), group)
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }


def rows_by_table(url: str, namespace: str = "flights", version: int | None = None) -> dict[str, Any]:
    """Return the rows of every table at a version, as a reader gets them."""
    with tidegate.connect(url, namespace) as gate, gate.snapshot(version=version) as snapshot:
        return {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}
