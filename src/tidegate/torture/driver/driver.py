"""A driver without Spark, in a process of its own, that commits a workload and suffers one fault.

It takes the steps of every driver: open, then for each batch stage, decide, apply, publish. Batches replay as
Spark's do: offsets are noted in the checkpoint's folder before a batch runs, its commit after it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import tidegate
from tidegate.base import failpoints
from tidegate.base.decoders import json_decoder
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.pipeline import Pipeline
from tidegate.committers.commit import InFlight, commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.recover import recover
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import FencedError, LineageError, StoreNotVerifiedError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import ALL_VISIBLE
from tidegate.sinks.open_store import open_store
from tidegate.sinks.store import Store
from tidegate.testing.arrow_barrier import batch
from tidegate.testing.process.driver import (
    Checkpoint,
    make_driver_of,
    make_trimmer,
    pipeline_of,
)
from tidegate.torture.driver import timeouts
from tidegate.torture.driver.barriers import WorkloadBarrier, reader_of
from tidegate.torture.driver.faults import Disturber, Strike
from tidegate.torture.driver.full_disk import folder_of
from tidegate.torture.driver.side_work import (
    FOLLOWS,
    PIPELINES,
    REPAIRS,
    TIDIES,
    Second,
    age,
    put_back_everything,
    with_second,
)
from tidegate.torture.driver.tcp_proxy import TcpProxy, proxied, server_of
from tidegate.torture.driver.workloads import changes_of, keys_read
from tidegate.torture.history.events import (
    Asked,
    Connected,
    Destroyed,
    Done,
    Fault,
    Looked,
    Offered,
    Opened,
    Raised,
    Returned,
)
from tidegate.torture.history.files import Recorder
from tidegate.torture.history.repairs import MendingNotes, mending_noted
from tidegate.wal.fold import replay_of
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

AGAIN_S = 0.05
LIVES_MAX = 5
"""The largest number of opens of a driver that fails."""
FAILED = 70
"""The exit code after an exception that the fault itself raised."""
IN_FLIGHT = 2
"""The value of ``commit_in_flight``, where commits are pipelined."""
MOST_LAYERS = 2
"""The number of versions that a lease may lag behind the visible one, where old ones are retired."""
KEEP_LOG_S, KEEP_LOG_CLOCK_S = 0.001, 7_200.0
"""Retention of the log where it is cut; where a clock steps, it is longer than the clock may be off."""
AGED_BATCHES = 4
"""The number of batches of an old namespace. All but the last are retired, and trimmed from the log."""


class Where(msgspec.Struct, frozen=True):
    """The location of a cell's namespace, and the options of its clients."""

    wal: str
    store: str
    namespace: str
    wal_options: dict[str, Any] = {}
    store_options: dict[str, Any] = {}
    allow_unsafe: bool = False
    second: str = ""
    """The second store's URL, in cells that add one."""

    def open_log(self) -> Log:
        return open_log(self.wal, self.namespace, self.wal_options)

    def open_store(self) -> Store:
        return open_store(self.store, self.namespace, self.store_options)

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[Log, Store]]:
        """Open the log and the store while the block runs."""
        with contextlib.closing(self.open_log()) as log, contextlib.closing(self.open_store()) as store:
            yield log, store


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one driver process.

    ``folder`` is the history's, ``name`` the process's in it. It runs until ``batches`` batches are done.
    ``goes_on``: after an error it opens again, in the same process. ``side_work``: its background work.
    ``clocks_step``: the clock of some driver of the cell steps. ``reopen_at``: it opens again before that
    batch. ``salt``: selects the rows. ``ages``: it turns a new namespace into an old one. ``keeps``: its
    ``keep_versions``, where it retires. ``servers_change``: when the store refuses because a server changed,
    it opens again, as a restarted query does.
    """

    where: Where
    folder: str
    name: str
    checkpoint: str
    seed: str
    workloads: tuple[str, ...]
    batches: int
    lineage: str
    key_groups: int
    parallelism: int
    frame_bytes: int
    deadline_s: float
    salt: int = 0
    fault: str = ""
    failpoint: str = ""
    nth: int = 1
    taken_over: bool = False
    goes_on: bool = False
    side_work: str = ""
    clocks_step: bool = False
    reopen_at: int = 0
    ages: bool = False
    keeps: int = 1
    servers_change: bool = False

    @property
    def retires(self) -> bool:
        return self.ages or self.side_work == TIDIES


def main(plan_json: str) -> int:
    """Run the driver; return 0, or the exit code of the error that ended it."""
    plan = json_decoder(Plan).decode(plan_json)
    with (
        Recorder(Path(plan.folder), plan.name, role="driver") as recorder,
        mending_noted(recorder, plan.where.namespace) as mending,
    ):
        return Torture(plan, recorder, mending).run()


def exit_code_of(error: BaseException) -> int:
    """Return FAILED when the fault itself raised it, here or in the background; else the error's code."""
    if isinstance(error, TidegateError) and not isinstance(error.__cause__, FailpointError):
        return timeouts.exit_code_of(error)
    return FAILED


class Torture:
    """One process, with one or several lives of a driver."""

    def __init__(self, plan: Plan, recorder: Recorder, mending: MendingNotes) -> None:
        self._plan, self._recorder, self._mending = plan, recorder, mending
        self._proxy: TcpProxy | None = None
        strike = Strike(plan.fault, plan.failpoint, plan.nth, plan.taken_over)
        self._disturber = Disturber(strike, recorder, self._cut_network)
        self._calls: dict[str, tuple[int, bool]] = {}
        """By attempt: pipelined commits that are decided; their call, and whether the attempt is its own."""

    def run(self) -> int:
        """Commit every batch that is not done, in up to ``LIVES_MAX`` lives."""
        plan = self._plan
        if plan.fault:
            failpoints.listen(self._disturber.hit)
        code, end = 0, time.monotonic() + plan.deadline_s
        for life in itertools.count(1):
            try:
                with self._driver() as driver:
                    self._live(driver, f"{plan.name}.{life}")
                    self._disturber.is_through()
                code = 0
                break
            except (FailpointError, TidegateError) as error:
                print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201 - to the cell's folder
                code = exit_code_of(error)
                changed = plan.servers_change and code == StoreNotVerifiedError.exit_code
                again = time.monotonic() < end if changed else plan.goes_on and life < LIVES_MAX
                if not again or isinstance(error, FencedError | LineageError):
                    break
                time.sleep(AGAIN_S if changed else 0)
        return code

    # -- log, store, network ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _driver(self) -> Iterator[Coordinator]:
        plan, where = self._plan, self._plan.where
        options = Options(
            key_groups=plan.key_groups,
            parallelism=plan.parallelism,
            frame_bytes=plan.frame_bytes,
            driver_apply_max_changes=0,
            keep_versions=plan.keeps if plan.retires else None,
            max_layers=MOST_LAYERS if plan.retires else None,  # so that readers hold nothing back for long
            summary_every=1 if plan.retires else 500,
            commit_in_flight=IN_FLIGHT,
            decide_deadline_s=plan.deadline_s,
            apply_deadline_s=plan.deadline_s,
            allow_unsafe=where.allow_unsafe,
        )
        with contextlib.ExitStack() as closing:
            log = where.open_log()
            closing.callback(log.close)
            store = open_store(self._store_url(), where.namespace, where.store_options)
            closing.callback(store.close)
            closing.callback(self._disturber.do_late)
            if plan.fault:
                self._disturber.watch("log", log, folder_of(where.wal))
                self._disturber.watch("store", store, folder_of(where.store))
            endpoints = Endpoints(
                where.namespace, where.wal, where.store, where.wal_options, where.store_options
            )
            driver = make_driver_of(endpoints, log, store, options, self._disturber.clock)
            if where.second:
                second = open_store(where.second, where.namespace)
                closing.callback(second.close)
                if plan.fault:
                    self._disturber.watch("store", second, folder_of(where.second))
                with_second(driver, where.second)
                self._second = Second(driver, second, where.second)
            yield driver

    def _store_url(self) -> str:
        url, plan = self._plan.where.store, self._plan
        server = server_of(url)
        if not plan.fault.startswith("net-") or server is None:
            return url
        if self._proxy is None:
            late = plan.fault == "net-late"
            late_s = 0.0 if plan.taken_over else 2 * float(plan.where.store_options.get("timeout_s", 1.0))
            self._proxy = TcpProxy(server, late=late, late_s=late_s, strike=self._network_is_cut)
        return proxied(url, self._proxy.port)

    def _cut_network(self) -> None:
        if self._proxy is not None:
            self._proxy.disturb()

    def _network_is_cut(self) -> None:
        self._disturber.note("network")
        if self._plan.taken_over:
            failpoints.stop()

    # -- batches and background work --------------------------------------------------------------------

    def _live(self, driver: Coordinator, name: str) -> None:
        plan = self._plan
        self._open(driver, name)
        keep_s = KEEP_LOG_CLOCK_S if plan.clocks_step else KEEP_LOG_S
        checkpoint, trimmer = Checkpoint(Path(plan.checkpoint)), make_trimmer(driver, keep_s)
        pipeline = pipeline_of(driver, self._published) if plan.side_work == PIPELINES else None
        first = checkpoint.next_batch()
        for batch_id in range(first, plan.batches):
            self._heartbeat(driver)
            if batch_id and batch_id == plan.reopen_at:
                self._open(driver, name)
            self._one_batch(driver, name, batch_id, checkpoint.plan(batch_id), pipeline)
            if plan.side_work == TIDIES:
                with self._in_the_background("retire"):
                    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
            elif plan.side_work == FOLLOWS:
                self._second.step(batch_id + 1 - first, lambda: self._opened(driver, name))
            elif plan.side_work == REPAIRS:
                with self._in_the_background("repair", FencedError):
                    self._put_back_everything(driver)
            elif plan.ages and batch_id == plan.batches - 2:
                age(driver, trimmer)
            checkpoint.done(batch_id)
            if plan.side_work == TIDIES:
                with self._in_the_background("trim"):
                    trimmer.trim(driver.decisions.view, driver.clock.now_us())
        if pipeline is not None:
            pipeline.drain(plan.deadline_s)
        if plan.side_work == FOLLOWS:
            self._second.finish(plan.deadline_s, lambda: self._heartbeat(driver))

    def _heartbeat(self, driver: Coordinator) -> None:
        """Put back what changed servers may have lost, as a query does in the background."""
        self._mending.began = self._recorder.now()
        if self._plan.servers_change and driver.store.unverified():
            recover(driver)

    def _put_back_everything(self, driver: Coordinator) -> None:
        """Repair as if all rows were lost; the history notes them as destroyed."""
        last, groups = driver.folded.last_version, range(driver.folded.key_groups)
        rows = [Destroyed(version=old, key_group=group) for old in range(1, last + 1) for group in groups]
        self._recorder.note(Fault(kind="as if lost", target="all rows", destroys=rows))
        put_back_everything(driver)

    @contextlib.contextmanager
    def _in_the_background(self, command: str, *passing: type[TidegateError]) -> Iterator[None]:
        """Note a background command, whose errors fail no batch.

        A newer driver may have trimmed what the command reads. The command's error is noted in the history.
        FailpointError and ``passing`` are raised again; in a driver without a fault, so is an error of no
        answer in time.
        """
        recorder, call = self._recorder, self._recorder.number()
        passing = passing if self._plan.fault else (*passing, *timeouts.NO_ANSWER)
        recorder.note(Asked(call=call, namespace=self._plan.where.namespace, command=command))
        try:
            yield
        except (FailpointError, TidegateError) as error:
            recorder.note(Raised(call=call, error=type(error).__name__, text=str(error)[:500]))
            if isinstance(error, (FailpointError, *passing)):
                raise
        else:
            recorder.note(Done(call=call))

    def _published(self, done: InFlight) -> None:
        """Note that a commit returned once its version is visible: the promises hold only from then on."""
        call, own = self._calls.pop(done.decided.attempt, (0, False))
        if call:
            self._recorder.note(Returned(call=call, version=done.decided.version, own=own))
            read_own_commit(self._plan.where, self._recorder)

    def _open(self, driver: Coordinator, name: str) -> None:
        self._mending.began = self._recorder.now()
        open_namespace(driver, self._plan.lineage)
        self._opened(driver, name)

    def _opened(self, driver: Coordinator, name: str) -> None:
        where = self._plan.where
        self._recorder.note(Opened(driver=name, namespace=where.namespace, epoch=driver.epoch))

    def _one_batch(
        self, driver: Coordinator, name: str, batch_id: int, offsets: str, pipeline: Pipeline | None
    ) -> None:
        plan, recorder = self._plan, self._recorder
        origin = batch(plan.lineage, batch_id, offsets)
        if replay_of(driver.folded, origin) is not None:
            return
        changes = changes_of(plan.workloads, plan.seed, batch_id, plan.salt)
        in_flight = ALL_VISIBLE if pipeline is None else pipeline.in_flight_versions()
        versions = in_flight or ALL_VISIBLE
        barrier = WorkloadBarrier(
            driver.log,
            {change.table: {} for change in changes},
            origin,
            driver.folded.key_groups,
            parallelism=plan.parallelism,
            source_offsets=offsets,
            starts=frozenset(change.table for change in changes if change.replace),
            needs_visible_base=in_flight is None and any(keys_read(change) for change in changes),
            read_rows=reader_of(driver, changes, versions),
        )
        if plan.fault == "attempts":
            others = changes_of(plan.workloads, plan.seed, batch_id, plan.salt + 1)
            barrier.twice = reader_of(driver, others, versions)
        call = recorder.number()
        recorder.note(
            Offered(
                call=call,
                driver=name,
                namespace=plan.where.namespace,
                lineage=plan.lineage,
                batch=batch_id,
                fingerprint=offsets,
                changes=changes,
            )
        )
        try:
            decided = commit(driver, barrier) if pipeline is None else pipeline.commit(barrier)
        except (FailpointError, TidegateError) as error:
            recorder.note(Raised(call=call, error=type(error).__name__, text=str(error)[:500]))
            raise
        own = decided.attempt == barrier.attempt
        if pipeline is not None:
            self._calls[decided.attempt] = call, own
            return
        recorder.note(Returned(call=call, version=decided.version, own=own))
        read_own_commit(plan.where, recorder)


def read_own_commit(where: Where, recorder: Recorder) -> None:
    """Read your own commit: note what a client sees that asks after the commit has returned."""
    client = recorder.number()
    with tidegate.connect(where.store, where.namespace, where.store_options) as gate:
        recorder.note(Connected(client=client, namespace=where.namespace, kind="own"))
        began = recorder.now()
        recorder.note(Looked(client=client, version=gate.version(), began=began))
