"""Where schedules of random repairs begin: namespaces on a real Redis, each with its dictionary.

All Redis-specific preparation of ``random_repairs.py``: keys are dumped once and restored for each schedule.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar
from unittest import mock

from services.support.redis.server import RedisServer
from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.repair.lost_groups import Source
from tidegate.committers.steps.retire import retire_up_to
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.records import CatalogEntry, ReadAt
from tidegate.sinks.redis.client.servers import Idle, Node
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.process.driver import make_trimmer
from tidegate.testing.store.harness import runs_of
from tidegate.wal.frame import Run
from tidegate.wal.memory_log import MemoryLog

KEY_GROUPS, VISIBLE, KEPT = 2, 5, 2
EMPTIED = VISIBLE - 1
"""The version at which table u is emptied."""
KEYS = [b"k%d" % at for at in range(8)]
TABLES = ("t", "u")
SETTINGS = {
    "appendonly": "no",
    "hash-max-listpack-entries": "0",
    "enable-debug-command": "local",
}


class Past(Clock):
    """An hour ago: blobs that are staged now are old enough to be trimmed."""

    def now_us(self) -> int:
        return super().now_us() - 3_600_000_000


class Start:
    """A namespace with ``VISIBLE`` versions, some of them merged, and one or two that are to come."""

    def __init__(self, server: RedisServer, number: int) -> None:
        chance = random.Random(number)
        self.name, self.trimmed, self.last = f"s{number}", number % 2 == 1, VISIBLE + 1 + number // 4 % 2
        self.log = MemoryLog(self.name, self.name, clock=Past())
        self.versions: dict[int, dict[str, dict[bytes, bytes]]] = {0: {table: {} for table in TABLES}}
        self.changes: dict[int, dict[str, dict[bytes, bytes | None]]] = {}
        self.server = server
        driver = self.driver()
        open_namespace(driver, "lineage")
        for version in range(1, VISIBLE + 1):
            self._commit(driver, version, chance)
            if version >= VISIBLE - number // 2 % 2:  # else the newest layer is still to be merged
                retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
        if self.trimmed:
            retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
            driver.clock.sleep(0.01)
            make_trimmer(driver, 0.002).trim(driver.decisions.view, driver.clock.now_us())
        self.reach = driver.store.pointer().horizon if self.trimmed else 1
        self.kept = self._dump()
        for entry in driver.store.catalog():
            assert all(
                at.start in (0, 1) or at.start == start_of(table, entry.version)
                for table, at in entry.tables.items()
            )
        for version in range(VISIBLE + 1, self.last + 1):
            self._commit(driver, version, chance)
        self.epoch = driver.epoch
        driver.store.close()

    def driver(self, clock: Clock | None = None) -> Coordinator:
        options = Options(
            key_groups=KEY_GROUPS, keep_versions=KEPT, apply_deadline_s=30.0, summary_every=1, parallelism=1
        )
        store = RedisStore(self.server.url, self.name, timeout_s=600.0)
        where = Endpoints(self.name, f"memory://{self.name}", self.server.url)
        return Coordinator(
            where, MemoryLog(self.name, self.name, clock=Past()), store, options, clock or Clock()
        )

    def opened(self, clock: Clock | None = None) -> Coordinator:
        """A driver with the epoch that is claimed."""
        driver = self.driver(clock)
        driver.decisions.catch_up()
        driver.decisions.epoch = self.epoch
        return driver

    def _commit(self, driver: Coordinator, version: int, chance: random.Random) -> None:
        starts = frozenset({"u"}) if version == EMPTIED else frozenset[str]()
        rows = {table: self._rows(version, chance) for table in TABLES}
        state = {
            table: {} if table in starts else dict(of) for table, of in self.versions[version - 1].items()
        }
        for table, changes in rows.items():
            for key, value in changes.items():
                state[table].pop(key, None)
                if value is not None:
                    state[table][key] = value
        self.versions[version], self.changes[version] = state, rows
        origin = batch("lineage", version - 1)
        commit(driver, ArrowBarrier(driver.log, rows, origin, KEY_GROUPS, parallelism=1, starts=starts))

    @staticmethod
    def _rows(version: int, chance: random.Random) -> dict[bytes, bytes | None]:
        """Of all keys at times, so that a layer becomes the base."""
        keys = KEYS if chance.random() < 0.3 else chance.sample(KEYS, chance.randrange(1, 5))
        deletes = version > 1 and chance.random() < 0.6
        return {key: None if deletes and chance.random() < 0.4 else b"%d" % version for key in keys}

    def _dump(self) -> dict[bytes, bytes]:
        with self.server.client(decode_responses=False) as client:
            return {key: client.dump(key) for key in client.keys(f"*{self.name}*")}


class Copy(Source):
    """The dictionary, as the source of a repair: the visible version."""

    where = "the dictionary"

    def __init__(self, start: Start) -> None:
        self._start = start

    @contextlib.contextmanager
    def hold(self, driver: Coordinator) -> Iterator[CatalogEntry]:
        visible = driver.store.pointer().visible
        (entry,) = driver.store.catalog(visible, visible)
        yield entry

    def runs(self, entry: CatalogEntry, groups: Collection[int], key_groups: int) -> Iterator[Run]:
        for run in runs_of(self._start.versions[entry.version], key_groups):
            if run.group in groups:
                yield run


def start_of(table: str, version: int) -> int:
    """The version since which the table was not emptied."""
    return EMPTIED if table == "u" and version >= EMPTIED else 1


def scanned(store: RedisStore, table: str, group: int, version: int) -> dict[bytes, bytes]:
    """The rows of a key group."""
    rows: dict[bytes, bytes] = {}
    for found in store.scan(ReadAt(table, version, start_of(table, version)), group):
        rows.update(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
    return rows


def in_group(rows: Mapping[bytes, bytes], group: int) -> dict[bytes, bytes]:
    return {key: value for key, value in rows.items() if key_group(key, KEY_GROUPS) == group}


def _one_process_per_id(info: bytes) -> tuple[bytes, bytes]:
    """A failover is to another process, which this server is not."""
    server = info.partition(b"master_replid:")[2].split()[0]
    return server, server + b":0"


class SharedNode(Node):
    """Takes over the connections of schedules before; each store learns the server's id by itself."""

    idle: ClassVar[Idle] = Idle()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._idle, self.ready = self.idle, True

    def close(self) -> None:
        """Others use them."""


@contextlib.contextmanager
def small_steps() -> Iterator[None]:
    """Merge a row or two a call, look at headers each time, take a failover for one to another process."""
    with (
        mock.patch("tidegate.sinks.redis.client.servers.Node", SharedNode),
        mock.patch("tidegate.sinks.redis.upkeep.merge.MERGE_ROWS", 1),
        mock.patch("tidegate.sinks.redis.upkeep.merge.LOOK_S", 0.0),
        mock.patch("tidegate.sinks.redis.namespace.process_in", _one_process_per_id),
    ):
        yield
