"""A whole run: cells of a seeded schedule, ``jobs`` at a time, within a limit. A run can be resumed.

>>> from tidegate.torture.run import torture
>>> report = torture("file:///tmp/w", "sqlite:///tmp/s", cells=3)  # doctest: +SKIP
>>> report.totals.all_proven  # doctest: +SKIP
True
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import itertools
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.base.urls import redact
from tidegate.errors import ConfigError
from tidegate.testing.conformance.program import words_of
from tidegate.testing.process import forked
from tidegate.torture import schedule
from tidegate.torture.cell import jobs as cell_jobs
from tidegate.torture.cell.cell import drop_namespace, is_left_behind, run_cell
from tidegate.torture.cell.cluster import end_all, read_plan
from tidegate.torture.cell.setting import Setting, Stopped, Unanswered, namespace_of
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.faults import FAULTS, SPARK, TOPOLOGY
from tidegate.torture.driver.workloads import WORKLOADS
from tidegate.torture.outcome import PROVEN, Outcome, Totals, read_outcomes, whole_lines
from tidegate.torture.schedule import Cell, Environment, Skipped
from tidegate.torture.spark_app.pool import PRELOADED, SparkApps, check_pyspark

CELL_S, SPARK_CELL_S, DURATION_S = 60.0, 180.0, 60.0
JOBS = 2
JOBS_MAX = 16
HISTORIES_BYTES = 4 * 2**30
"""Size limit of a run's histories. Above it, histories of proven cells are not kept."""
RUN_FILE, OUTCOMES_FILE, NAMESPACES_FILE = "run.json", "outcomes.jsonl", "namespaces.txt"

Progress = Callable[[Outcome], object]
"""Callback with the outcome of each cell that has ended."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a run, as the report's folder keeps them. URLs are without their passwords."""

    id: str
    wal: str
    store: str
    seed: int
    workloads: tuple[str, ...]
    faults: tuple[str, ...]
    only: tuple[str, ...] = ()
    started_us: int = 0
    spark: str = ""
    version: int = 1


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a run. ``totals`` also counts cells of the earlier runs that it resumes."""

    folder: Path
    asked: Asked
    totals: Totals
    skipped: list[Skipped]
    round_size: int
    seconds: float
    stopped: bool
    command: str
    limits: str = ""
    """The options of the whole run that ``command`` lacks: when it ends, and its cells at a time."""

    @property
    def all_proven(self) -> bool:
        """Whether every cell that was run is proven, and none was interrupted."""
        return self.totals.all_proven and not self.stopped


def torture(  # noqa: PLR0913 - its options
    wal: str,
    store: str,
    *,
    seed: int | None = None,
    duration_s: float | None = None,
    cells: int | None = None,
    whole: bool = False,
    only: Iterable[str] = (),
    workloads: Iterable[str] = WORKLOADS,
    faults: Iterable[str] | None = None,
    folder: Path | None = None,
    resume: Path | None = None,
    spark: str = "",
    reader: str = "",
    jobs: int | None = None,
    cell_s: float | None = None,
    keep: bool = False,
    cluster: Path | None = None,
    topology: bool = False,
    wal_options: Mapping[str, Any] | None = None,
    store_options: Mapping[str, Any] | None = None,
    allow_unsafe: bool = False,
    progress: Progress = lambda _: None,
    begun: Callable[[Asked, Path], object] = lambda *_: None,
) -> Report:
    """Torture log and store: faults at failpoints, concurrent readers, every history judged.

    The run uses only namespaces of its own, whose names begin with ``torture-`` and a random part. It drops
    them at the end, even after an error. It ends after ``duration_s`` (60 s unless another limit is given),
    after N ``cells``, after the ``whole`` table of cells once, or after the cells that ``only`` names.
    ``folder`` receives the histories and outcomes. ``resume`` is such a folder, whose cells are not run
    again. The same ``seed`` gives the same schedule. ``topology``: slots may be moved, and replicas promoted.
    ``cluster``: a plan of commands that disturb the servers and the network.
    ``spark``: the master of drivers that are Spark applications; then ``jobs`` is 1 by default, not 2, and
    ``cell_s`` 180 s, not 60 s. ``reader``: the command of a reader that is driven, too
    (``conformance/README.md``). ``begun`` is called with the parameters and the folder, before any cell.

    Processes are forked from a server that imports the main module: a script that calls this function has to
    do so under ``if __name__ == "__main__"``.

    ConfigError: an argument does not fit, or log and store cannot be opened; nothing was run.
    """
    workloads = tuple(workloads)
    jobs = (1 if spark else JOBS) if jobs is None else jobs
    cell_s = _cell_s(spark) if cell_s is None else cell_s
    changed = seed is not None or bool(only) or faults is not None or workloads != tuple(WORKLOADS)
    plan = () if cluster is None else read_plan(cluster, FAULTS, cell_s)
    known = (*FAULTS, *(fault.name for fault in plan))
    if resume is None:
        named = known if faults is None else faults
        spec = _new_run(wal, store, seed, workloads, named, only, spark, known)
    else:
        spec = _resumed(resume, wal, store, spark, changed=changed, folder=folder)
        if missing := sorted({*spec.faults} - {*known}):
            raise ConfigError(f"the run had the faults {', '.join(missing)}: give its --cluster again")
    _check_limits(duration_s, cells, jobs, cell_s)
    where = Where(wal, store, "", dict(wal_options or {}), dict(store_options or {}), allow_unsafe)
    _check_possible(spec.only, environment := _environment(where, spec, known, topology=topology))
    if spark:
        check_pyspark()
        if faults is not None:
            _check_faults(spec.faults, environment)
    if reader:
        words_of(reader)
    _check_reachable(where, spec)
    report_folder = resume or _report_folder(folder)
    setting = Setting(
        wal=wal,
        store=store,
        wal_options=where.wal_options,
        store_options=where.store_options,
        allow_unsafe=allow_unsafe,
        prefix=f"torture-{spec.id}",
        folder=str(report_folder),
        seed=spec.seed,
        workloads=spec.workloads,
        deadline_s=cell_s,
        plan=plan,
        cluster="" if cluster is None else str(cluster),
        keep=keep,
        spark=spark,
        reader=reader,
    )
    if resume is None:
        (report_folder / RUN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(spec)))
    limits = _Limits(duration_s, cells, whole=whole or bool(spec.only))
    with _locked(report_folder):
        end_all(plan)
        done = read_outcomes(report_folder / OUTCOMES_FILE)
        begun(spec, report_folder)
        return _Run(setting, spec, limits, jobs, progress, done, environment, topology=topology).run()


def _cell_s(spark: str) -> float:
    """Return the default deadline of a cell."""
    return SPARK_CELL_S if spark else CELL_S


def _resumed(resume: Path, wal: str, store: str, spark: str, *, changed: bool, folder: Path | None) -> Asked:
    """Return the parameters of an earlier run. ConfigError: other ones, or another folder, were given."""
    _refuse_changes(changed=changed, folder=folder)
    return _earlier_run(resume, wal, store, spark)


def _refuse_changes(*, changed: bool, folder: Path | None) -> None:
    """Refuse other parameters, or another folder, for a resumed run. ConfigError: there are some."""
    if changed:
        raise ConfigError("a run that is resumed keeps its seed, cells, faults and workloads: leave them out")
    if folder is not None:
        raise ConfigError("a run that is resumed is reported in its own folder: leave --report out")


def _new_run(
    wal: str,
    store: str,
    seed: int | None,
    workloads: Iterable[str],
    faults: Iterable[str],
    only: Iterable[str],
    spark: str,
    known: Collection[str] = tuple(FAULTS),
) -> Asked:
    return Asked(
        id=secrets.token_hex(4),
        wal=redact(wal),
        store=redact(store),
        seed=secrets.randbelow(2**31) if seed is None else seed,
        workloads=schedule.check_names("workload", workloads, WORKLOADS),
        faults=schedule.check_names("fault", faults, known),
        only=tuple(str(schedule.cell_of(text, known)) for text in only),
        started_us=time.time_ns() // 1_000,
        spark=spark,
    )


def _check_limits(duration_s: float | None, cells: int | None, jobs: int, cell_s: float) -> None:
    if duration_s is not None and duration_s <= 0:
        raise ConfigError(f"the duration is {duration_s}; it must be above 0 seconds")
    if cells is not None and cells < 1:
        raise ConfigError(f"cells is {cells}; it must be 1 or more")
    if not 1 <= jobs <= JOBS_MAX:
        raise ConfigError(f"jobs is {jobs}; it must be 1 to {JOBS_MAX}")
    if not 5 <= cell_s <= 3_600:
        raise ConfigError(f"a cell's deadline is {cell_s} s; it must be 5 to 3,600 seconds")


def _environment(where: Where, spec: Asked, known: Collection[str], *, topology: bool) -> Environment:
    """Collect what decides which faults are possible. Only requested faults of the topology are tried."""
    lacking: Mapping[str, str] = {}
    faults = {*spec.faults, *(schedule.cell_of(text, known).fault for text in spec.only)}
    if faults & {*TOPOLOGY} and "redis" in where.store.partition("+")[0].partition(":")[0]:
        from tidegate.torture.driver import redis_faults  # the Redis client may not be installed

        lacking = redis_faults.lacking(where, allowed=topology)
    logs_in = any(name in where.store_options for name in schedule.LOGINS)
    planned = tuple(fault for fault in known if fault not in FAULTS)
    return Environment(where.store, planned, logs_in, lacking, spec.spark)


def _check_faults(faults: Iterable[str], environment: Environment) -> None:
    """Check that each fault that was named is possible with this master. ConfigError: one is not."""
    for fault in faults:
        if fault in SPARK and (why := schedule.impossible(fault, environment)):
            raise ConfigError(f"the fault {fault} is not possible: {why}")


def _check_possible(only: Iterable[str], environment: Environment) -> None:
    """Check that each cell requested by name is possible. ConfigError: one is not."""
    for text in only:
        cell = schedule.cell_of(text, environment.planned)
        why = schedule.unreached(cell.failpoint, cell.fault, environment)
        if why := why or schedule.impossible(cell.fault, environment):
            raise ConfigError(f"{text} cannot be run: {why}")


def _check_reachable(where: Where, spec: Asked) -> None:
    """Check, before anything is written, that log and store answer: look for a namespace that does not exist.

    ConfigError: they do not answer, or they are in this process's memory, which other processes cannot see.
    """
    for url in (where.wal, where.store):
        if url.startswith("memory:"):
            raise ConfigError(f"{url}: drivers and readers are processes of their own; memory is not shared")
    name = f"torture-{spec.id}"
    with msgspec.structs.replace(where, namespace=name).opened() as (log, store):
        next(log.decisions(), None)
        store.identity()


def _report_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="tidegate-torture-"))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: name a new folder for the report, or use --resume")
    return folder


def _earlier_run(folder: Path, wal: str, store: str, spark: str) -> Asked:
    """Read the parameters of the run in this folder. ConfigError: there is no run, or it was elsewhere."""
    try:
        spec = json_decoder(Asked).decode((folder / RUN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{folder} is not the folder of a run: {error}") from None
    if (spec.wal, spec.store) != (redact(wal), redact(store)):
        raise ConfigError(
            f"the run in {folder} was on {spec.wal} and {spec.store}: resume it there, or start another one"
        )
    if spec.spark != spark:
        given = f"--spark {spec.spark}" if spec.spark else "no --spark"
        raise ConfigError(f"the run in {folder} was with {given}: resume it so, or start another one")
    return spec


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, because a second run in it would drop the namespaces of this one's cells.

    ConfigError: another process runs in this folder.
    """
    with (folder / RUN_FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process runs in {folder}: wait for its end, or end it first"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield


@dataclasses.dataclass(frozen=True)
class _Limits:
    duration_s: float | None
    cells: int | None
    whole: bool

    @property
    def seconds(self) -> float | None:
        """The time in which new cells are started; None: no limit."""
        if self.duration_s is None and self.cells is None and not self.whole:
            return DURATION_S
        return self.duration_s

    def options(self, only: tuple[str, ...]) -> str:
        """Return the limits as options of the command."""
        if only:
            return "".join(f" --only {cell}" for cell in only)
        duration = "" if self.seconds is None else f" --duration {self.seconds:g}s"
        cells = "" if self.cells is None else f" --cells {self.cells}"
        return f"{duration}{cells}{' --all' if self.whole else ''}"


class _Run:
    """The cells of a run, ``jobs`` at a time, until a limit is reached or the run is interrupted."""

    def __init__(
        self,
        setting: Setting,
        spec: Asked,
        limits: _Limits,
        jobs: int,
        progress: Progress,
        done: list[Outcome],
        environment: Environment,
        *,
        topology: bool,
    ) -> None:
        self._setting, self._asked, self._limits = setting, spec, limits
        self._jobs, self._progress = jobs, progress
        self._folder = Path(setting.folder)
        self._totals = Totals(done)
        self._done = {str(outcome.cell) for outcome in done}
        self._bytes = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._environment, self._topology = environment, topology
        self._applications: SparkApps | None = None
        if setting.spark:
            self._applications = SparkApps(setting.spark, self._folder / "spark")
        self._size = schedule.round_size(spec.faults, environment)
        self._skipped = schedule.skipped(spec.faults, environment)

    def run(self) -> Report:
        """Run the cells. Ctrl-C ends the running ones, and their namespaces are dropped."""
        setting = self._setting
        began, stopped = time.monotonic(), False
        forked.preload(
            *cell_jobs.preloaded(setting.wal, setting.store), *(PRELOADED if setting.spark else ())
        )
        forked.begin()
        self._drop_leftovers()
        pool = concurrent.futures.ThreadPoolExecutor(self._jobs, thread_name_prefix="cell")
        try:
            if self._applications is not None:
                self._applications.begin()
            self._all(pool, began)
        except (KeyboardInterrupt, SystemExit):
            stopped = True
        finally:
            self._ending.set()
            pool.shutdown(cancel_futures=True)
            if self._applications is not None:
                self._applications.close()
        spec = self._asked
        known = *FAULTS, *self._environment.planned
        faults = "" if spec.faults == known else f" --faults {','.join(spec.faults)}"
        loads = "" if spec.workloads == tuple(WORKLOADS) else f" --workloads {','.join(spec.workloads)}"
        unsafe = " --allow-unsafe" if setting.allow_unsafe else ""
        unsafe += " --allow-topology-changes" if self._topology else ""
        unsafe += f" --cluster {setting.cluster}" if setting.cluster else ""
        unsafe += " --reader CMD" if setting.reader else ""  # it may contain a password
        unsafe += f" --spark '{spec.spark}'" if spec.spark else ""
        unsafe += (
            "" if setting.deadline_s == _cell_s(spec.spark) else f" --cell-deadline {setting.deadline_s:g}s"
        )
        files = " --wal-config FILE" if setting.wal_options else ""
        files += " --store-config FILE" if setting.store_options.keys() - {"create"} else ""
        where = f"--wal {spec.wal} --store {spec.store}{files}"
        command = f"tidegate torture {where} --seed {spec.seed}{loads}{faults}{unsafe}"
        return Report(
            self._folder,
            spec,
            self._totals,
            self._skipped,
            self._size,
            time.monotonic() - began,
            stopped,
            command,
            f"{self._limits.options(spec.only)} --jobs {self._jobs}",
        )

    def _all(self, pool: concurrent.futures.Executor, began: float) -> None:
        chosen, running = self._chosen(), set[concurrent.futures.Future[None]]()
        limit_s, cell, alone = self._limits.seconds, next(chosen, None), False
        while True:
            over = limit_s is not None and time.monotonic() - began >= limit_s
            while not over and cell is not None and len(running) < self._jobs:
                if running and (alone or cell.alone):
                    break
                alone = cell.alone
                running.add(pool.submit(self._one, cell))
                cell = next(chosen, None)
            if not running:
                return
            finished, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                future.result()

    def _chosen(self) -> Iterator[Cell]:
        """Return the cells to run, without those that are done."""
        spec = self._asked
        if spec.only:
            every: Iterator[Cell] = (schedule.cell_of(text, self._environment.planned) for text in spec.only)
        else:
            every = schedule.cells(spec.seed, spec.faults, self._environment)
        if self._limits.whole and not spec.only:
            every = itertools.islice(every, self._size)
        left = (cell for cell in every if str(cell) not in self._done)
        return itertools.islice(left, self._limits.cells)

    def _one(self, cell: Cell) -> None:
        try:
            self._note_namespace(cell)
            outcome = run_cell(self._setting, cell, self._ending, self._applications)
        except Stopped:
            return
        with self._lock:
            outcome = self._kept(outcome)
            with (self._folder / OUTCOMES_FILE).open("ab") as file:
                file.write(msgspec.json.encode(outcome) + b"\n")
            self._totals.add(outcome)
            self._progress(outcome)

    def _kept(self, outcome: Outcome) -> Outcome:
        """Keep the history in the outcome, or delete it: proofs of a long run must not fill the disk."""
        folder = self._folder / outcome.history
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if outcome.result != PROVEN or self._bytes + size <= HISTORIES_BYTES:
            self._bytes += size
            return outcome
        shutil.rmtree(folder)
        return msgspec.structs.replace(outcome, history="")

    # -- remains of a run that was killed -----------------------------------------------------------------

    def _note_namespace(self, cell: Cell) -> None:
        with self._lock, (self._folder / NAMESPACES_FILE).open("a") as file:
            file.write(f"{namespace_of(self._setting, cell)}\n")

    def _drop_leftovers(self) -> None:
        """Drop the namespaces of cells that an earlier run began and did not drop."""
        path = self._folder / NAMESPACES_FILE
        if self._setting.keep or not path.exists():
            return
        dropped = {each.namespace for each in self._totals.outcomes if not is_left_behind(each)}
        namespaces = {line.decode().strip() for line in whole_lines(path)}
        for namespace in sorted(namespaces - dropped):
            try:
                problem = drop_namespace(self._setting, namespace, self._folder / "drop.txt")
            except Unanswered as why:
                problem = str(why)
            if problem:
                raise ConfigError(f"namespace {namespace} of the run before could not be dropped: {problem}")
