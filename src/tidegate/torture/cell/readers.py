"""Readers of every kind, concurrent with the drivers: the history notes what each of them saw.

``latest`` reads at the newest version each time. ``pinned`` opens snapshots, of old versions too, and reads
them twice. ``scan`` reads whole tables. ``aio`` does all of it with asyncio. ``behind`` reads without a lease
at a version that has been left behind. ``second`` is ``pinned`` on the second store, where there is one. Each
has its own client, on a thread of its own. At the end each reads once more.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import faulthandler
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import tidegate
import tidegate.aio
from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError, StoreUnavailableError, TidegateError
from tidegate.sinks.store import Store
from tidegate.testing.process.forked import DISK_FULL, NO_ROOM
from tidegate.torture.driver import workloads
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.side_work import SECOND
from tidegate.torture.driver.timeouts import HUNG
from tidegate.torture.driver.workloads import VALUE, decoded, encoded
from tidegate.torture.history.events import (
    Connected,
    Failed,
    Listed,
    Looked,
    Read,
    Scanned,
    SnapshotClosed,
    SnapshotOpened,
)
from tidegate.torture.history.files import Recorder, digest_of

LOOK_S = 0.01
"""The pause between two rounds of a reader."""
LAST_ROUND_S, LAST_TRIES = 20.0, 3
"""The timeout of a reader's last round, and the number of its tries when it is refused."""
NAME = "readers"
"""The name of their process."""
KINDS = ("latest", "pinned", "scan", "aio", "behind")
BEHIND_VERSIONS, BEHIND_S = 3, 1.5
"""The reader ``behind`` waits for this number of versions, but no longer than this time."""
REFUSED_MAX = 1_000
"""The largest number of connections that a reader makes after errors."""
VALUES_MAX = 40
"""The number of the last values seen of a base that are looked up as keys of its derived table."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a process of readers. It ends by itself after ``seconds_max``.

    ``derived``: derived tables by name, each with its base. ``behind`` reads none of them.
    ``reader``: the command of a reader of the user's own (``cell/outside_reader.py``).
    """

    where: Where
    folder: str
    name: str
    seed: str
    workloads: tuple[str, ...]
    seconds_max: float
    derived: dict[str, str] = {}
    reader: str = ""


KEYS: dict[str, list[str]] = {
    "bank": [f"a{number}" for number in range(workloads.ACCOUNTS)],
    "marker": [f"m{number}" for number in range(workloads.MARKERS)],
    "lists": [f"l{number}" for number in range(workloads.LISTS)],
    "churn": [f"d{number}" for number in range(workloads.CHURNED)],
    "counters": [f"c{number}" for number in range(workloads.COUNTERS)],
    "replaced": [f"r{number}" for number in range(workloads.REPLACED)],
}
"""All keys that a workload ever writes."""


def main(plan_json: str) -> int:
    """Read until SIGTERM, then once more; return an exit code.

    0: well. 1: a reader ended by an unexpected error. HUNG: a last round did not end. NO_ROOM: the disk of
    the history is full.
    """
    plan = json_decoder(Plan).decode(plan_json)
    ending, died, signals = threading.Event(), list[int](), list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    with Recorder(Path(plan.folder), plan.name, role="reader") as recorder:
        threads = [
            threading.Thread(target=_run, args=(kind, plan, recorder, ending, died), name=kind, daemon=True)
            for kind in (*KINDS, *((SECOND,) if plan.where.second else ()))
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + plan.seconds_max
        while not signals and time.monotonic() < end:
            time.sleep(LOOK_S)  # a signal may interrupt another thread, and a wait would continue
        ending.set()
        for thread in threads:
            thread.join(LAST_ROUND_S)
        if any(thread.is_alive() for thread in threads):
            faulthandler.dump_traceback(sys.stdout, all_threads=True)
    return min(died) if died else HUNG if any(thread.is_alive() for thread in threads) else 0


def _run(kind: str, plan: Plan, recorder: Recorder, ending: threading.Event, died: list[int]) -> None:
    try:
        if kind == "aio":
            asyncio.run(AsyncReader(plan, recorder, ending).run())
        else:
            Reader(kind, plan, recorder, ending).run()
    except BaseException as error:
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        died.append(NO_ROOM if full else 1)
        raise


class Notes:
    """Notes of both kinds of readers in the history, and their choice of what to read."""

    def __init__(self, kind: str, plan: Plan, recorder: Recorder, ending: threading.Event) -> None:
        self.kind, self.plan, self.recorder, self.ending = kind, plan, recorder, ending
        self.chance = random.Random(f"{plan.seed}-{kind}")
        self.client = 0
        self.tables = [*plan.workloads, *plan.derived]
        self._values = {table: collections.deque([""], VALUES_MAX) for table in self.tables}
        self.last = self.through = False
        self._tries_left, self._refusals_left = LAST_TRIES, REFUSED_MAX

    def another_round(self) -> bool:
        """Return True until the end is requested, and once more after that."""
        self.through = self.last
        self.last = self.ending.is_set()
        return not self.through

    def connects_again(self) -> bool:
        """Return whether to connect another client: the last round is not done yet."""
        if self.ending.is_set():
            self._tries_left -= 1
        self.last = False
        return not self.through and self._tries_left >= 0 and self._refusals_left > 0

    def refused(self, error: TidegateError, began: int) -> None:
        """Note an error that ended a client, unless there is no namespace yet, or no server."""
        if isinstance(error, StoreUnavailableError) or (isinstance(error, ConfigError) and not self.client):
            return
        self._refusals_left -= 1
        self.failed(self.kind, error, began)

    def connected(self) -> None:
        self.client = self.recorder.number()
        where = self.plan.where
        store = SECOND if self.kind == SECOND else ""
        self.recorder.note(
            Connected(client=self.client, namespace=where.namespace, store=store, kind=self.kind)
        )

    def looked(self, version: int, began: int) -> None:
        self.recorder.note(Looked(client=self.client, version=version, began=began))

    def failed(self, what: str, error: TidegateError, began: int, snapshot: int = 0) -> None:
        """Note an error of a reader. One before the first read is of a client that never reads."""
        if not self.client:
            self.connected()
        self.recorder.note(
            Failed(
                client=self.client,
                what=what,
                error=type(error).__name__,
                began=began,
                snapshot=snapshot,
                text=str(error)[:300],
            )
        )

    def asked(self, table: str) -> list[Any]:
        """Choose the keys of one look-up: all, or some. Those of a derived table are values of its base."""
        base = self.plan.derived.get(table)
        keys = KEYS[table] if base is None else list(dict.fromkeys(self._values[base]))
        if self.chance.random() < 0.5:
            keys = self.chance.sample(keys, min(3, len(keys)))
        return [key.encode() for key in keys] if base is None else keys

    def _noted(self, table: str, rows: dict[Any, Any]) -> dict[str, Any]:
        """Return rows as the history has them. Keys are bytes, those of derived tables texts."""
        values = {_text(key): _value(value) for key, value in rows.items()}
        self._values[table].extend(encoded(value).decode() for value in values.values())
        return values

    def read(self, table: str, keys: list[Any], rows: dict[Any, Any], began: int, snapshot: int = 0) -> None:
        values = self._noted(table, rows)
        absent = sorted(_text(key) for key in keys if key not in rows)
        event = Read(
            client=self.client, table=table, began=began, snapshot=snapshot, found=values, absent=absent
        )
        self.recorder.note(event)

    @contextlib.contextmanager
    def held(self, snapshot: int, version: int, began: int, requested: int = 0) -> Iterator[None]:
        """Note that a snapshot is open while the block runs, and closed unless it raised."""
        event = SnapshotOpened(
            client=self.client, snapshot=snapshot, version=version, began=began, asked=requested
        )
        self.recorder.note(event)
        yield
        self.recorder.note(SnapshotClosed(client=self.client, snapshot=snapshot))

    def chosen_tables(self) -> list[str]:
        return self.chance.sample(self.tables, min(3, len(self.tables)))

    def scanned(self, table: str, rows: dict[Any, Any], began: int, snapshot: int = 0) -> None:
        content = self._noted(table, rows)
        digest = digest_of(content.items())
        self.recorder.note(
            Scanned(
                client=self.client,
                table=table,
                began=began,
                rows=digest.rows,
                digest=digest.text(),
                snapshot=snapshot,
                content=content,
            )
        )


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def _value(value: Any) -> Any:
    """Decode the value of a table of bytes, or of one that Spark wrote; given as the bytes, or as a row."""
    if isinstance(value, dict) and value.keys() == {"value"}:
        value = value["value"]
    row = value if isinstance(value, dict) else decoded(value)
    of_spark = isinstance(row, dict) and row.keys() == {VALUE}
    return decoded(row[VALUE]) if of_spark else row


class Reader(Notes):
    """A thread that reads with ``tidegate.connect``."""

    def run(self) -> None:
        """Connect one client after another, until the last round is done."""
        round_of: Callable[[Any], None] = {
            "latest": self._latest,
            "pinned": self._pinned,
            "scan": self._scan,
            "behind": self._behind,
            SECOND: self._pinned,
        }[self.kind]
        while self.connects_again():
            began = self.recorder.now()
            try:
                if self.kind == "behind":
                    self._one_store(round_of)
                else:
                    self._one_client(round_of)
            except TidegateError as error:
                self.refused(error, began)
            self.ending.wait(LOOK_S)

    def _one_client(self, round_of: Callable[[Any], None]) -> None:
        where = self.plan.where
        url, options = where.store, where.store_options
        if self.kind == SECOND:
            url, options = where.second, {}
        with tidegate.connect(url, where.namespace, options) as gate:
            while not gate.version():  # nothing can be read yet
                if self.ending.wait(LOOK_S):
                    return
            self.connected()
            while self.another_round():
                round_of(gate)
                self.ending.wait(LOOK_S)

    def _one_store(self, round_of: Callable[[Any], None]) -> None:
        where = self.plan.where
        with contextlib.closing(where.open_store()) as store:
            while store.identity() is None or not store.pointer().visible:
                if self.ending.wait(LOOK_S):
                    return
            self.connected()
            while self.another_round():
                round_of(store)
                self.ending.wait(LOOK_S)

    def _behind(self, store: Store) -> None:
        """Read as a reader that pauses between two requests: its version may be retired meanwhile (T28)."""
        number, began = self.recorder.number(), self.recorder.now()
        version = store.pointer().visible
        entries = store.catalog(version, version)
        if not entries:
            return  # it was retired already
        self.recorder.note(SnapshotOpened(client=self.client, snapshot=number, version=version, began=began))
        end = time.monotonic() + BEHIND_S
        while store.pointer().visible < version + BEHIND_VERSIONS and time.monotonic() < end:
            if self.ending.wait(LOOK_S):
                break
        for table in self.plan.workloads:
            if table not in entries[0].tables:
                continue
            keys, began = self.asked(table), self.recorder.now()
            try:
                values = store.get_many(entries[0].read_at(table), keys).to_pylist()
            except tidegate.SnapshotExpiredError as error:
                self.failed("get_many", error, began, number)
                continue
            rows = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
            self.read(table, keys, rows, began, number)
        self.recorder.note(SnapshotClosed(client=self.client, snapshot=number))

    def _latest(self, gate: Any) -> None:
        began = self.recorder.now()
        self.looked(gate.version(), began)
        table = self.chance.choice(self.tables)
        keys, began = self.asked(table), self.recorder.now()
        self.read(table, keys, gate.table(table).get_many(keys), began)

    def _scan(self, gate: Any) -> None:
        table, began = self.chance.choice(self.tables), self.recorder.now()
        self.scanned(table, dict(gate.table(table).scan()), began)

    def _pinned(self, gate: Any) -> None:
        version, began = None, self.recorder.now()
        if self.chance.random() < 0.3:
            versions = [info.version for info in gate.history()]
            self.recorder.note(Listed(client=self.client, versions=versions, began=began))
            version, began = self.chance.choice(versions), self.recorder.now()
        number = self.recorder.number()
        try:
            with gate.snapshot(version) as snap, self.held(number, snap.version, began, version or 0):
                self._look_twice(snap, number)
        except tidegate.SnapshotExpiredError as error:
            self.failed("snapshot", error, began, number)

    def _look_twice(self, snap: Any, number: int) -> None:
        for _ in range(2):
            for table in self.chosen_tables():
                keys, began = self.asked(table), self.recorder.now()
                if self.chance.random() < 0.5:
                    self.read(table, keys, snap.table(table).get_many(keys), began, number)
                else:
                    self.scanned(table, dict(snap.table(table).scan()), began, number)
            self.ending.wait(LOOK_S)


class AsyncReader(Notes):
    """An event loop that reads with ``tidegate.aio.connect``."""

    def __init__(self, plan: Plan, recorder: Recorder, ending: threading.Event) -> None:
        super().__init__("aio", plan, recorder, ending)

    async def run(self) -> None:
        while self.connects_again():
            began = self.recorder.now()
            try:
                await self._one_client()
            except TidegateError as error:
                self.refused(error, began)
            await asyncio.sleep(LOOK_S)

    async def _one_client(self) -> None:
        where = self.plan.where
        async with await tidegate.aio.connect(where.store, where.namespace, where.store_options) as gate:
            while not await gate.version():
                if self.ending.is_set():
                    return
                await asyncio.sleep(LOOK_S)
            self.connected()
            while self.another_round():
                began = self.recorder.now()
                self.looked(await gate.version(), began)
                await self._snapshot(gate)
                await asyncio.sleep(LOOK_S)

    async def _snapshot(self, gate: Any) -> None:
        number, began = self.recorder.number(), self.recorder.now()
        try:
            async with gate.snapshot() as snap:
                with self.held(number, snap.version, began):
                    for table in self.chosen_tables():
                        keys, began = self.asked(table), self.recorder.now()
                        if self.chance.random() < 0.5:
                            self.read(table, keys, await snap.table(table).get_many(keys), began, number)
                        else:
                            rows = {key: value async for key, value in snap.table(table).scan()}
                            self.scanned(table, rows, began, number)
        except tidegate.SnapshotExpiredError as error:
            self.failed("snapshot", error, began, number)
