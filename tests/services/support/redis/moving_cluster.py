"""A query on a Redis Cluster whose slots move and whose primaries fail over, with the log trimmed.

    tools/run python tests/services/support/redis/moving_cluster.py --moves 500 --failovers 20

The script starts a Cluster of three primaries and their replicas. One thread commits batches as fast as it
can, with the background work of a query (heartbeat, repair, retirement). After each version the log is
trimmed to the versions that are still readable: no repair can put back what was merged before. Another
thread moves slots of the namespace, cancels every second move half-way, and fails primaries over: planned,
or with ``--kills`` by SIGKILL. Readers compare each snapshot with what was put in. The script prints what
was done and seen. Its exit code is 1 when a snapshot was torn, anything was lost, or the query had to be
started again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tidegate
from services.support.redis.cluster import RedisCluster
from services.support.redis.query import Query
from services.support.workloads.query import KEEP_NOTHING_S, KEY_GROUPS, LINEAGE, Content, _plain
from support.driver_process import rows_of
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.repair import repair
from tidegate.errors import TidegateError
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.sinks.redis.keys import header_key, meta_key, slot_of
from tidegate.sinks.redis.upkeep.rebuild import Rebuild
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.process.driver import make_trimmer
from tidegate.torture.driver.redis_topology import Cluster
from tidegate.torture.history.repairs import put_back_in
from tidegate.wal.file.log import FileLog

SEED = 7
KEPT_TRUTHS = 200
"""Of so many versions readers can be told what they hold."""
HELD_S, BETWEEN_S, POLL_S = 0.1, 0.1, 0.005
RESTARTS_MAX = 5
"""A query that had to be started again so often is lost for good."""
JOIN_S, AGED_S = 120.0, 10.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is done. ``kills``: so many of the failovers are by SIGKILL."""

    moves: int
    failovers: int
    kills: int = 0
    rows: int = 1_000
    readers: int = 2
    heartbeat_s: float = 0.5
    keep_versions: int = 2
    settle_s: float = 30.0


class Truth:
    """What each version holds, from the batches alone."""

    def __init__(self, rows: int) -> None:
        self._rows, self._state = rows, dict[str, dict[bytes, bytes]]()
        self._kept: dict[int, Content] = {}

    def put(self, batch_id: int) -> dict[str, dict[bytes, bytes | None]]:
        """The rows of the next batch; its version is known from here on."""
        changes = rows_of(SEED, batch_id, self._rows)
        for table, rows in changes.items():
            state = self._state.setdefault(table, {})
            for key, value in rows.items():
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        self._kept[batch_id + 1] = {table: dict(rows) for table, rows in self._state.items()}
        self._kept.pop(batch_id + 1 - KEPT_TRUTHS, None)
        return changes

    def at(self, version: int) -> Content:
        return self._kept[version]


@dataclasses.dataclass
class Seen:
    """What was done, and what came of it."""

    versions: int = 0
    moves: int = 0
    cancelled: int = 0
    planned: int = 0
    killed: int = 0
    snapshots: int = 0
    reads: int = 0
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    episodes_s: list[float] = dataclasses.field(default_factory=list)
    slowest_read_s: float = 0.0
    restarts: list[str] = dataclasses.field(default_factory=list)
    put_back: list[int] = dataclasses.field(default_factory=list)
    put_back_visible: list[int] = dataclasses.field(default_factory=list)
    """Of versions whose commit had returned before the repair began."""
    returned: int = 0
    violations: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Nothing was torn or lost, and the query ran through."""
        return not self.violations and not self.restarts

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"versions              {self.versions:,} in {self.seconds:,.0f} s"
        yield f"slot moves            {self.moves:,}, {self.cancelled:,} of them cancelled half-way"
        yield f"failovers             {self.planned} planned, {self.killed} by SIGKILL"
        yield f"snapshots judged      {self.snapshots:,}"
        refused = ", ".join(f"{name} {number:,}" for name, number in sorted(self.refused.items())) or "none"
        yield f"single reads          {self.reads:,}; the slowest took {self.slowest_read_s:.2f} s"
        yield f"refused               {refused}"
        if self.episodes_s:
            times = sorted(self.episodes_s)
            p99 = times[min(int(len(times) * 0.99), len(times) - 1)]
            yield (
                f"refused for           {len(times):,} times: median {times[len(times) // 2]:.2f} s,"
                f" p99 {p99:.2f} s, longest {times[-1]:.2f} s, {sum(times):.1f} s together"
            )
        visible = f"{len(self.put_back_visible)} of versions that were visible {self.put_back_visible[:20]}"
        yield f"put back by repairs   {len(self.put_back):,} times a version, {visible}"
        yield f"query started again   {len(self.restarts)} times"
        yield from (f"  {text}" for text in self.restarts)
        yield f"violations            {len(self.violations)}"
        yield from (f"  {text}" for text in self.violations[:20])


class Notes(logging.Handler):
    """Counts what repairs put back. Each repair runs in one thread, which logs what it puts back."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen, self._began = seen, threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if (found := put_back_in(record)) is not None:
            self._seen.put_back.append(found[0])
            if found[0] <= self._began.returned:
                self._seen.put_back_visible.append(found[0])

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take notes."""
        begin, logger = Rebuild.begin, logging.getLogger("tidegate")

        def noted(rebuild: Rebuild) -> None:
            self._began.returned = self._seen.returned
            begin(rebuild)

        logger.addHandler(self)
        try:
            with mock.patch.object(Rebuild, "begin", noted):
                yield
        finally:
            logger.removeHandler(self)


class Run:
    """The query, what is done to its store, and its readers, until all changes are made."""

    def __init__(self, cluster: RedisCluster, query: Query, plan: Plan) -> None:
        self.seen = Seen()
        self._cluster, self._query, self._plan = cluster, query, plan
        self._truth = Truth(plan.rows)
        self._changed, self._ended = threading.Event(), threading.Event()

    def run(self) -> Seen:
        """Start, change, settle, and compare log and store at the end."""
        began = time.monotonic()
        with Notes(self.seen).taken():
            driver = self._open()
            self._commit(driver)
            works = [self._change, self._poll, *[self._judge] * self._plan.readers]
            threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
            for thread in threads:
                thread.start()
            self._write(driver)
            self._ended.set()
            for thread in threads:
                thread.join(JOIN_S)
                if thread.is_alive():
                    self.seen.violations.append("a thread hangs")
            self._compare()
        self.seen.seconds = time.monotonic() - began
        return self.seen

    def _open(self) -> Coordinator:
        plan = self._plan
        return self._query.open(heartbeat_s=plan.heartbeat_s, keep_versions=plan.keep_versions)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a thread that ends is a finding of its own
            self.seen.violations.append(f"{work.__name__}: {type(error).__name__}: {error}"[:600])
            self._changed.set()

    # -- the query ----------------------------------------------------------------------------------

    def _commit(self, driver: Coordinator) -> None:
        """The next batch, once; then the log is trimmed to what the readable versions need."""
        batch_id = driver.folded.last_version
        if batch_id + 1 > self.seen.versions:
            self._rows = self._truth.put(batch_id)
            self.seen.versions = batch_id + 1
        commit(driver, ArrowBarrier(driver.log, self._rows, batch(LINEAGE, batch_id), KEY_GROUPS))
        self.seen.returned = batch_id + 1

    def _write(self, driver: Coordinator) -> None:
        """Batch after batch; a query that fails is started again, and that is a finding."""
        while not self._changed.is_set():
            with self._background(driver) as background:
                try:
                    while not self._changed.is_set():
                        self._commit(driver)
                        background.published()
                        with contextlib.suppress(TidegateError):  # as in the background: tried again
                            self._trim(driver)
                    return
                except TidegateError as error:
                    self._note_restart(error)
            driver = self._started_again(driver)

    def _trim(self, driver: Coordinator) -> None:
        """Trim all that the readable versions do not need. Files are made some seconds old, and no older: the
        background trims too, by an older view of the log.
        """
        folded_at_us, old = driver.clock.now_us(), time.time() - AGED_S
        assert isinstance(driver.log, FileLog)
        for segment in driver.log.folder.rglob("*.seg"):
            os.utime(segment, (old, old))
        make_trimmer(driver, KEEP_NOTHING_S).trim(driver.decisions.view, folded_at_us)

    def _note_restart(self, error: TidegateError) -> None:
        self.seen.restarts.append(f"version {self.seen.versions}: {type(error).__name__}: {error}"[:600])
        if len(self.seen.restarts) >= RESTARTS_MAX:
            self._changed.set()

    def _started_again(self, before: Coordinator) -> Coordinator:
        while not self._changed.is_set():
            try:
                return self._open()
            except TidegateError as error:
                self._note_restart(error)
        return before

    @contextlib.contextmanager
    def _background(self, driver: Coordinator) -> Iterator[Background]:
        background = Background(
            driver.log, driver.store, driver.options, lambda: driver.epoch, way=driver.priority
        )
        try:
            yield background
        finally:
            background.stop()

    def _compare(self) -> None:
        """When all is quiet nothing is missing: a repair mends nothing, and log and store agree."""
        end = time.monotonic() + self._plan.settle_s
        while True:
            try:
                driver = self._query.open()
                mended = repair(driver)
                break
            except TidegateError as error:
                if time.monotonic() > end:
                    self.seen.violations.append(f"the end: {type(error).__name__}: {error}"[:600])
                    return
        pointer = driver.store.pointer()
        found = [f"{each.where}: {each.found}" for each in verify(driver.log, driver.store).findings]
        if mended:
            found.append(f"a repair in quiet put back {mended}")
        if pointer.visible != driver.folded.last_version:
            found.append(f"{driver.folded.last_version} versions are decided, {pointer.visible} visible")
        self.seen.violations += [f"the end: {text}" for text in found]
        with self._gate() as gate, gate.snapshot() as snapshot:
            self._judge_one(snapshot)

    # -- readers ------------------------------------------------------------------------------------------

    def _gate(self) -> Any:
        return tidegate.connect(self._query.url, self._query.namespace, self._query.options)

    def _judge(self) -> None:
        """Snapshots of the newest version: all rows, by key and scanned."""
        while not self._ended.is_set():
            try:
                with self._gate() as gate:
                    while not self._ended.is_set():
                        with gate.snapshot() as snapshot:
                            self._judge_one(snapshot)
            except TidegateError as error:
                self._refuse(error)

    def _judge_one(self, snapshot: Any) -> None:
        wanted = self._truth.at(snapshot.version)
        for table, rows in wanted.items():
            found = _plain(dict(snapshot.table(table).scan()))
            some = list(rows)[:50]
            by_key = _plain(snapshot.table(table).get_many(some))
            if found != rows or by_key != {key: rows[key] for key in some}:
                missing, strange = len(rows.keys() - found.keys()), len(found.keys() - rows.keys())
                text = f"version {snapshot.version}, table {table}: {missing} rows missing, {strange} strange"
                self.seen.violations.append(f"{text}, {len(rows)} in all")
        self.seen.snapshots += 1

    def _refuse(self, error: TidegateError) -> None:
        name = type(error).__name__
        self.seen.refused[name] += 1
        if name in ("WalGapError", "CorruptError", "ConfigError"):
            self.seen.violations.append(f"a reader was told: {name}: {error}"[:600])

    def _poll(self) -> None:
        """One key after the other, many times a second: how long a reader is refused."""
        chance, refused_at = random.Random(SEED), 0.0
        keys = [(table, list(rows)) for table, rows in self._truth.at(1).items()]
        while not self._ended.is_set():
            with contextlib.suppress(TidegateError), self._gate() as gate:
                while not self._ended.is_set():
                    table, some = chance.choice(keys)
                    began = time.monotonic()
                    try:
                        gate.table(table).get(chance.choice(some))
                    except TidegateError as error:
                        self._refuse(error)
                        refused_at = refused_at or began
                    else:
                        ended = time.monotonic()
                        self.seen.reads += 1
                        self.seen.slowest_read_s = max(self.seen.slowest_read_s, ended - began)
                        if refused_at:
                            self.seen.episodes_s.append(ended - refused_at)
                            refused_at = 0.0
                    time.sleep(POLL_S)
        if refused_at:
            self.seen.episodes_s.append(time.monotonic() - refused_at)

    # -- what is done to the store ------------------------------------------------------------------------

    def _change(self) -> None:
        """Slots move, one after the other; failovers come evenly between the moves."""
        chance, plan = random.Random(SEED), self._plan
        name = self._query.namespace
        slots = [slot_of(key) for key in (meta_key(name), *(header_key(name, n) for n in range(KEY_GROUPS)))]
        every = max(plan.moves // max(plan.failovers, 1), 1)
        try:
            with contextlib.closing(Cluster(settings_of(self._query.url, {}))) as topology:
                for at in range(plan.moves):
                    if self._changed.is_set():
                        return
                    self._move(topology, chance, chance.choice(slots), cancelled=at % 2 == 1)
                    if at % every == every - 1 and self.seen.planned + self.seen.killed < plan.failovers:
                        self._fail_over(chance)
                    time.sleep(chance.uniform(0, BETWEEN_S))
        finally:
            self._changed.set()

    def _move(self, topology: Cluster, chance: random.Random, slot: int, *, cancelled: bool) -> None:
        source = topology.owner_of(slot)
        to = chance.choice([shard.address for shard in topology.shards() if shard.address != source])
        topology.begin_move(slot, source, to)
        keys = len(topology.keys_in(slot, source))
        topology.move_keys(slot, source, to, chance.randrange(keys + 1))
        time.sleep(chance.uniform(0, HELD_S))
        (topology.cancel_move if cancelled else topology.end_move)(slot, source, to)
        self.seen.moves += 1
        self.seen.cancelled += cancelled

    def _fail_over(self, chance: random.Random) -> None:
        cluster = self._cluster
        cluster.wait_ready()
        primary = chance.choice(cluster.primaries())
        (replica,) = cluster.replicas_of(primary)
        if self.seen.killed < self._plan.kills:
            primary.kill()
            cluster.promote(replica)
            self.seen.killed += 1
        else:
            cluster.promote(replica)
            self.seen.planned += 1
        cluster.heal()


def run(folder: Path, plan: Plan) -> Seen:
    """All of it, on a Cluster of its own."""
    with RedisCluster(folder) as cluster:
        query = Query(cluster.url, folder, timeout_s=15.0)
        try:
            return Run(cluster, query, plan).run()
        finally:
            query.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--moves", type=int, default=500)
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--kills", type=int, default=0, help="so many of the failovers by SIGKILL")
    parser.add_argument("--rows", type=int, default=1_000, help="upserts per batch and table")
    parser.add_argument("--readers", type=int, default=2)
    args = parser.parse_args(argv)
    plan = Plan(args.moves, args.failovers, args.kills, args.rows, args.readers)
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        seen = run(Path(folder), plan)
    print("\n".join(seen.lines()))
    return 0 if seen.whole else 1


if __name__ == "__main__":
    sys.exit(main())
