"""The actors of a simulation: a query's drivers, its tasks, and readers.

Drivers call production's ``open_namespace`` and ``commit`` and nothing below them. After each error it is
checked that what the error proves is true.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from simulation.invariants import History, Staged, Violation, require
from simulation.plays.expiring_tables import ExpiringTables
from simulation.plays.pipelines import Pipelines
from simulation.plays.second_store import AT, FIRST, SECOND, SecondStore, follow_on
from simulation.plays.state_hosts import StateHosts
from simulation.plays.world import Actor, TaskLostError, VirtualClock, World
from support.faulty import FaultyLog, FaultyStore
from tidegate.committers.apply import apply
from tidegate.committers.background.follower import Follower
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import (
    ConfigError,
    ConflictError,
    FencedError,
    LineageError,
    OutcomeUnknownError,
    SnapshotExpiredError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.options import WAL_RETAIN_APPLIES, Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.cache import CacheSpec
from tidegate.sinks.cache.in_flight import ALL_VISIBLE, InFlightVersions
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store
from tidegate.testing.arrow_barrier import ArrowBarrier
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View, replay_of, same_barrier
from tidegate.wal.record import BatchOrigin, DecidedVersion
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import StageSpec

KEY_GROUPS = 4
LINEAGE = "query-1"
TABLES = ("aircraft", "airports", "marker")
TRIMS_AFTER_S = 0.001
KEYS = tuple(b"k%d" % number for number in range(5))
FOLLOWS_TO_THE_END = 20
"""The steps of a follower where nothing fails: more than versions can be decided."""
Commit = Callable[[ArrowBarrier], DecidedVersion]
LEASE_S = 600.0
"""The lease of a simulated reader: as long as the options let a lease hold."""


class Query:
    """A Spark query as its drivers see it: the coming batches, and the checkpoint."""

    def __init__(self, world: World, history: History) -> None:
        self.world, self.history = world, history
        self.batches = world.chance.randint(1, 3)
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.errors: Counter[str] = Counter()
        self.replans = world.chance.random() < 0.05
        self.second: SecondStore | None = None
        self.hosts: StateHosts | None = None
        self.pipelines: Pipelines | None = None
        self.expiring: ExpiringTables | None = None
        self.drops_tables = False
        self.times_to_live: dict[str, Mapping[str, float]] = {}
        """By writer id, each driver's times to live by table."""
        self.trims = world.chance.random() < 0.3
        """The log is cut and trimmed as early as possible; then all clocks agree, as trimming requires."""

    def plan(self, batch_id: int) -> BatchOrigin:
        """Return the batch's origin; its offsets are noted before it first runs.

        Rarely the checkpoint is an older copy, and the batch is planned again (T5).
        """
        self.offsets.setdefault(batch_id, f"offsets-{batch_id}")
        if self.replans and self.world.chance.random() < 0.2:
            self.offsets[batch_id] = f"offsets-{batch_id}-{self.world.chance.randrange(100)}"
        return BatchOrigin(LINEAGE, 0, batch_id, self.offsets[batch_id])

    def restore_checkpoint(self) -> None:
        """Restore the newest checkpoint, as an operator does after LineageError."""
        self.replans = False
        for fact in self.history.facts:
            if isinstance(fact.origin, BatchOrigin):
                self.offsets[fact.origin.batch_id] = fact.origin.fingerprint

    def rows(self, batch_id: int) -> dict[str, dict[bytes, bytes | None]]:
        """Choose some rows; a batch that runs again may have others (T6), or none (T7)."""
        chance = self.world.chance
        if chance.random() < 0.1:
            return {}
        rows: dict[str, dict[bytes, bytes | None]] = {}
        for table in TABLES:
            if chance.random() < 0.7:
                keys = chance.sample(KEYS, chance.randint(0, len(KEYS)))
                rows[table] = {key: None if chance.random() < 0.2 else b"%d" % batch_id for key in keys}
        return rows

    def drops(self, tables: Collection[str]) -> frozenset[str]:
        """Choose existing tables that the batch drops."""
        if not self.drops_tables:
            return frozenset()
        return frozenset(table for table in sorted(tables) if self.world.chance.random() < 0.5)

    def driver(self, actor: Actor) -> Coordinator:
        """Make a new driver of this query, in the actor's process."""
        chance = self.world.chance
        chosen: dict[str, Any] = {
            "key_groups": KEY_GROUPS,
            "decide_deadline_s": chance.choice([0.1, 2.0]),
            "apply_deadline_s": chance.choice([0.5, 5.0]),
            "driver_apply_max_changes": chance.choice([0, 5_000]),
            "frame_bytes": chance.choice([40, 100_000]),
            "parallelism": chance.randint(1, 3),
            "summary_every": 1 if self.trims else 500,
        }
        log, store = FaultyLog(self.history.log, actor), FaultyStore(self.history.store, actor)
        skew_us = chance.randint(-2_000_000, 2_000_000)
        clock = VirtualClock(self.world, 0 if self.trims else skew_us)
        times: Mapping[str, float] = {}
        if self.expiring is not None:
            times = self.expiring.times_to_live()
            chosen["ttl"] = times
            clock = clock if self.trims else self.expiring.clock(self.world, skew_us)
        endpoints = Endpoints("simulated", "memory://simulated", "memory://simulated")
        if self.second is not None:
            endpoints = dataclasses.replace(endpoints, store_name=FIRST, also=(AT,))
            chosen["keep_versions"] = chance.randint(1, 2)
        driver = Coordinator(endpoints, log, store, Options(**chosen), clock)
        self.times_to_live[driver.writer] = times
        driver.apply_on_executors = lambda works: self._apply_on_executors(actor, works)
        return driver

    def _apply_on_executors(self, driver: Actor, works: Sequence[apply.ApplyWork]) -> None:
        def body(work: apply.ApplyWork) -> Any:
            return lambda task: apply.do(
                work, FaultyLog(self.history.log, task), FaultyStore(self.history.store, task)
            )

        try:
            self.world.run_tasks(f"{driver.name}/apply", [body(work) for work in works], faulty=driver.faulty)
        except TaskLostError as error:
            raise StoreUnavailableError(str(error)) from error


@dataclasses.dataclass
class SimulatedBarrier(ArrowBarrier):
    """A barrier whose tasks are actors. Every try of a task has values of its own (T2, T3)."""

    query: Query = dataclasses.field(kw_only=True)
    actor: Actor = dataclasses.field(kw_only=True)
    told: CacheSpec | None = None
    in_flight: InFlightVersions | None = None
    times_to_live: Mapping[str, float] = dataclasses.field(default_factory=dict)
    attempts: list[str] = dataclasses.field(default_factory=list)

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        self.attempts.append(spec.attempt)
        if self.query.pipelines is not None and (self.in_flight is not None or self.needs_visible_base):
            versions = self.in_flight or ALL_VISIBLE
            self.query.pipelines.read_state(self.actor, base_version, versions, spec.at_us, KEY_GROUPS)
        given: dict[str, ArrowBarrier] = {}

        def body(task: int) -> Any:
            return lambda actor: self._stage_task(actor, task, spec, given)

        name = f"{self.actor.name}/stage"
        bodies = [body(task) for task in range(self.parallelism)]
        acks: list[Ack] = self.query.world.run_tasks(name, bodies, faulty=self.actor.faulty)
        rows: dict[str, dict[bytes, bytes]] = {table: {} for table in self.rows}
        for ack in acks:
            for _, number, key, value in given[ack.task_attempt].changes(ack.task):
                table = spec.tables[number]
                rows[table][key] = self._as_it_lies(table, value, spec.at_us)
        self.query.history.staged[spec.attempt] = Staged(
            self.origin, rows, self.starts, self.drops, spec.at_us
        )
        return acks

    def _as_it_lies(self, table: str, value: bytes, at_us: int) -> bytes:
        if value == b"-" or table not in self.times_to_live:
            return value
        expiry_us = at_us + int(self.times_to_live[table] * 1e6)
        return b"e" + expiry_us.to_bytes(8, "big") + value[1:]

    def _stage_task(self, actor: Actor, task: int, spec: StageSpec, given: dict[str, ArrowBarrier]) -> Ack:
        task_attempt = self.clock.new_id()
        own = b"-" + task_attempt[:6].encode()
        rows = {
            table: {key: None if value is None else value + own for key, value in changes.items()}
            for table, changes in self.rows.items()
        }
        mine = given[task_attempt] = ArrowBarrier(
            self.log, rows, self.origin, self.key_groups, self.parallelism
        )
        log = FaultyLog(self.query.history.log, actor)
        cache = None
        if self.query.hosts is not None and self.told is not None:
            run = f"{spec.attempt}-{task_attempt}"
            cache = self.query.hosts.opened(spec, self.told, task, self.parallelism, run, log)
            store = FaultyStore(self.query.history.store, actor)
            cache.read(store, self.in_flight or ALL_VISIBLE, log)
        ack = stage_task(
            mine.batches(task),
            spec,
            log,
            task=task,
            task_attempt=task_attempt,
            host=actor.name,
            watch=None if cache is None else cache.watch,
        )
        if cache is not None:
            cache.keep(ack)
        return ack


def life(query: Query, actor: Actor, *, only_recover: bool = False) -> None:
    """Run one driver process: open, run the batches that the checkpoint does not have, until done or dead.

    After an error it opens again or ends; without faults an error ends it.
    """
    for _ in range(3):
        driver = query.driver(actor)
        try:
            _open(query, driver, None if only_recover else LINEAGE)
            _follow(query, driver, actor)
            if not only_recover:
                with _committing(query, driver, actor) as commit_one:
                    _run_batches(query, driver, actor, commit_one)
            return
        except TidegateError:
            if not actor.faulty or query.world.chance.random() < 0.4:
                raise
        driver.clock.sleep(query.world.chance.random())


def _follow(query: Query, driver: Coordinator, actor: Actor) -> None:
    """Start the thread that drives the second store, if there is one."""
    store = query.second
    if store is not None:
        steps = query.world.chance.randint(0, 6) if actor.faulty else FOLLOWS_TO_THE_END
        own = driver.copy()
        own.others = ()

        def body(thread: Actor) -> Follower:
            own.decisions.log = FaultyLog(query.history.log, thread)
            own.store = FaultyStore(query.history.store, thread)
            return follow_on(own, store, thread, steps)

        query.world.spawn(f"{actor.name}/second", body, faulty=actor.faulty)


def _open(query: Query, driver: Coordinator, lineage: str | None) -> None:
    try:
        open_namespace(driver, lineage)
    except TidegateError as error:
        query.errors[f"open {type(error).__name__}"] += 1
        _check_error(query, driver, error, driver.decisions.tried_epoch)
        raise
    query.history.opened(driver.folded.last_version, driver.epoch)


@contextlib.contextmanager
def _committing(query: Query, driver: Coordinator, actor: Actor) -> Iterator[Commit]:
    """Yield the function that commits a barrier: it waits for visibility, or is pipelined."""
    if query.pipelines is None:
        yield partial(commit, driver)
    else:
        with query.pipelines.beside(driver, actor) as pipeline:
            yield pipeline.commit


def _run_batches(query: Query, driver: Coordinator, actor: Actor, commit_one: Commit) -> None:
    batch_id = max(query.commits, default=-1) + 1
    while batch_id < query.batches:
        origin = query.plan(batch_id)
        try:
            fact = replay_of(driver.folded, origin)
            if fact is None:
                fact = _commit(query, driver, actor, origin, commit_one)
        except ConflictError:
            if query.world.chance.random() < 0.5:
                raise
            continue  # the same driver runs the batch again
        except LineageError:
            query.errors["replay LineageError"] += 1
            other = [f for f in query.history.facts if same_barrier(f.origin, origin) and f.origin != origin]
            require("I10", other, f"LineageError, but {origin} was not decided with another fingerprint")
            raise
        query.history.returned(origin, fact, visible=query.pipelines is None)
        actor.may_crash()
        query.commits.add(batch_id)
        batch_id += 1


def _commit(
    query: Query, driver: Coordinator, actor: Actor, origin: BatchOrigin, commit_one: Commit
) -> DecidedVersion:
    chance, epoch = query.world.chance, driver.epoch
    rows = query.rows(origin.batch_id)
    told = None if query.hosts is None else query.hosts.told(driver)
    in_flight, waits = None, told is not None
    if query.pipelines is not None:
        in_flight, waits = query.pipelines.reads_state(driver, cached=told is not None)
    barrier = SimulatedBarrier(
        driver.log,
        rows,
        origin,
        KEY_GROUPS,
        parallelism=chance.randint(1, 3),
        starts=frozenset(table for table in rows if chance.random() < 0.1),
        drops=query.drops(driver.folded.tables.keys() - rows.keys()),
        clock=driver.clock,
        query=query,
        actor=actor,
        told=told,
        in_flight=in_flight,
        needs_visible_base=waits,
        times_to_live=query.times_to_live.get(driver.writer, {}),
    )
    try:
        return commit_one(barrier)
    except TidegateError as error:
        query.errors[f"commit {type(error).__name__}"] += 1
        if isinstance(error, ConflictError | WalUnavailableError | TaskLostError):
            query.history.proven_undecided(barrier.attempts, type(error).__name__)
        if (
            query.pipelines is not None
            and driver.epoch == epoch
            and not isinstance(error, OutcomeUnknownError)
        ):
            query.history.proven_undecided(barrier.attempts, f"pipelined {type(error).__name__}")
        elif isinstance(error, StoreUnavailableError):
            decided = any(same_barrier(fact.origin, origin) for fact in query.history.facts)
            require("proof", decided, f"commit raised {error!r}, but {origin} is not decided")
        if query.pipelines is not None:
            epoch = query.pipelines.epoch_of(error, driver, epoch)
        if not isinstance(error, LineageError | TaskLostError):
            _check_error(query, driver, error, epoch)
        raise


def _check_error(query: Query, driver: Coordinator, error: TidegateError, epoch: int) -> None:
    """Check I10: only errors that belong here, and FencedError only when another driver was above this one.

    A late Open of this driver's own may be above that one by now.
    """
    history = query.history
    if isinstance(error, FencedError):
        pointer = history.store.pointer()
        above = any(other > epoch and writer != driver.writer for other, writer in history.writers)
        claimed = pointer.epoch > epoch and pointer.writer != driver.writer
        require("proof", above or claimed, f"FencedError at epoch {epoch}, but nobody is above: {error}")
    elif not isinstance(
        error, ConflictError | OutcomeUnknownError | StoreUnavailableError | WalUnavailableError
    ):
        raise Violation(f"I10: {type(error).__name__} cannot be: {error}")


def retire_on(query: Query, actor: Actor) -> None:
    """Move the horizon, drop the rows below it, and trim the log, as a driver does in the background."""
    log, store = FaultyLog(query.history.log, actor), FaultyStore(query.history.store, actor)
    clock, view = VirtualClock(query.world), View()
    options = Options(
        key_groups=KEY_GROUPS,
        keep_versions=query.world.chance.randint(1, 2),
        summary_every=1,
        wal_retain_s=TRIMS_AFTER_S,
        apply_deadline_s=TRIMS_AFTER_S / WAL_RETAIN_APPLIES,
    )
    others = {} if query.second is None else {SECOND: FaultyStore(query.second, actor)}
    trimmer = Trimmer(log, store, options, clock, others, FIRST)
    for _ in range(query.world.chance.randint(1, 5)):
        clock.sleep(query.world.chance.random())
        try:
            folded_at_us = clock.now_us()
            view = catch_up(view, log)
            if view.state is not None and store.identity() is not None:
                retire_up_to(log, store, view.state, options, lambda: False)
                if query.trims:
                    trimmer.trim(view, folded_at_us)
        except (StoreUnavailableError, WalUnavailableError):
            continue


def retire_all(query: Query) -> None:
    """Retire everything left, when nothing fails any more."""
    history, options = query.history, Options(key_groups=KEY_GROUPS, keep_versions=1)
    retire_up_to(history.log, history.store, history.folded, options, lambda: False)


# -- readers ----------------------------------------------------------------------------------------


def read_on(query: Query, actor: Actor) -> None:
    """Poll a few times as a client: what it sees is whole, does not change, never goes back."""
    store, clock, seen = FaultyStore(query.history.store, actor), VirtualClock(query.world), 0
    for _ in range(query.world.chance.randint(2, 6)):
        clock.sleep(query.world.chance.random())
        try:
            visible = store.pointer().visible
            require("I9", visible >= seen, f"{actor.name} saw version {seen}, now {visible}")
            seen = visible
            if visible:
                _read_version(query, store, clock.new_id(), query.world.chance.randint(1, visible))
        except StoreUnavailableError:
            continue
        except ConfigError:
            require("I10", seen == 0, "the namespace is gone")


def _read_version(query: Query, store: Store, lease_id: str, version: int) -> None:
    history, asked_at = query.history, query.world.now
    try:
        store.lease(Lease(lease_id, version), LEASE_S)
    except SnapshotExpiredError:
        retired = version < history.store.pointer().horizon
        require("I8", retired, f"no lease on version {version}, which was not retired")
        return
    try:
        _read_leased(query, store, version)
    except SnapshotExpiredError as error:
        over = query.world.now - asked_at >= LEASE_S
        require("I8", over, f"version {version} was taken from under a lease that holds: {error}")
    store.release(lease_id)


def _read_leased(query: Query, store: Store, version: int) -> None:
    history = query.history
    entries = store.catalog(version, version)
    if not entries:
        raise SnapshotExpiredError(f"version {version} has no catalog entry")
    require(
        "I1", [entry.version for entry in entries] == [version], f"version {version} has no catalog entry"
    )
    for _ in range(2):  # I8: the same answer, both times
        for table, at in sorted(entries[0].tables.items()):
            values = store.get_many(
                ReadAt(table, version, at.start, at_us=entries[0].decided_at_us), KEYS
            ).to_pylist()
            found = {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}
            expected = history.contents[version].get(table, {})
            require("I1", found == expected, f"reader at v{version}, {table}: {found}, not {expected}")
