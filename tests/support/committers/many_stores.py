"""A log with many stores for tests, each store with a port of its own."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from support.clocks import HandClock
from support.driver_process import expected_at, rows_of
from support.faulty import FaultyStore
from tidegate.committers.background.follower import followers_of
from tidegate.committers.background.membership import add_store
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import StoreUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Summary, decode_record

SEED, ROWS, KEY_GROUPS = 5, 12, 4
DAY_US = 86_400 * 1_000_000


class Port:
    """Notes the calls of one store; takes it down; does something before the n-th call of a name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.down = False
        self.does: dict[str, list[Any]] = {}

    def before(self, name: str, does: Callable[[], Any], nth: int = 1) -> None:
        self.does[name] = [nth, does]

    def call(self, call: Any, effect: Callable[[], Any]) -> Any:
        if self.down:
            raise StoreUnavailableError("the store is down")
        if call.name in self.does:
            self.does[call.name][0] -= 1
            if self.does[call.name][0] == 0:
                self.does.pop(call.name)[1]()
        self.calls.append((call.name, call.shown) if call.writes else (call.name,))
        return effect()

    def published(self) -> list[int]:
        return [
            int(shown[1:].split()[0]) for name, *rest in self.calls if name == "publish" for shown in rest
        ]


class Place:
    """A log and stores by name; each store of kind memory or sqlite, behind a port of its own."""

    def __init__(self, kind: str, folder: Path, **options: Any) -> None:
        self.name, self.kind, self.folder = uuid.uuid4().hex, kind, folder
        self.clock = HandClock(1_800_000_000_000_000, tick_us=1)
        self.ports: dict[str, Port] = {}
        defaults: dict[str, Any] = {"key_groups": KEY_GROUPS, "summary_every": 3, "keep_versions": 2}
        self.options = Options(**defaults | options)
        self.wal = f"memory://{self.name}" if kind == "memory" else f"file://{folder}/wal"

    def at(self, name: str) -> StoreRef:
        url = f"memory://{self.name}-{name}" if self.kind == "memory" else f"sqlite://{self.folder}/{name}"
        return StoreRef(name, url)

    def store(self, at: StoreRef) -> Any:
        port = self.ports.setdefault(at.name, Port())
        return FaultyStore(open_store(at.url, "n", None, self.clock), port)

    def driver(self, names: Iterable[str]) -> Coordinator:
        stores = [self.at(name) for name in names]
        where = Endpoints.of("n", self.wal, stores)
        log = open_log(self.wal, "n")
        return Coordinator(where, log, self.store(stores[0]), self.options, self.clock)

    def opened(self, *names: str) -> tuple[Coordinator, Any]:
        driver = self.driver(names)
        open_namespace(driver, "query-1")
        return driver, self.followers(driver)

    def followers(self, driver: Coordinator) -> Any:
        return followers_of(driver, open_one=self.store)

    def write(self, driver: Coordinator, versions: int = 1) -> int:
        for _ in range(versions):
            last = driver.folded.last_batch
            batch_id = last[1] + 1 if last else 0
            rows = rows_of(SEED, batch_id, ROWS)
            commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", batch_id), KEY_GROUPS))
        return driver.folded.last_version

    def check(self, name: str) -> int:
        """What a reader finds is exactly the batches up to the visible version (I1); that version."""
        store = open_store(self.at(name).url, "n", None, self.clock)
        with contextlib.closing(store):
            pointer = store.pointer()
            for entry in store.catalog():
                if entry.version >= pointer.horizon:
                    assert found_at(store, entry) == expected_at(SEED, entry.version, ROWS), entry.version
            return pointer.visible

    def add(self, name: str, there: Iterable[str] = ("a",)) -> Any:
        driver = self.driver(there)
        assert driver.decisions.catch_up() is not None
        follower = add_store(driver, self.at(name), self.store(self.at(name)))
        while not follower.step():
            pass
        return follower


def found_at(store: Any, entry: CatalogEntry) -> dict[str, dict[bytes, bytes]]:
    return {
        table: {
            key: value
            for group in range(KEY_GROUPS)
            for rows in store.scan(entry.read_at(table), group)
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
        for table, at in entry.tables.items()
    }


def trimmed(place: Place, driver: Coordinator, *others: object) -> int:
    """Trim with every store, a day later; the first record's version that is left in the log."""
    stores = {at.name: place.store(at) for at in driver.endpoints.also}
    trimmer = Trimmer(
        driver.log, driver.store, place.options, place.clock, stores, driver.endpoints.stores[0].name
    )
    view = catch_up(View(), driver.log)
    # Decisions are old when the log was read long after them.
    place.clock.advance(2 * 86_400)
    place.write(driver)
    view = catch_up(view, driver.log)
    trimmer.trim(view, place.clock.now_us())
    record = decode_record(next(driver.log.decisions()).content, "first")
    return record.state.last_version if isinstance(record, Summary) else 0


def retired(driver: Coordinator, store: Any) -> None:
    retire_up_to(driver.log, store, driver.folded, driver.options, lambda: False)
