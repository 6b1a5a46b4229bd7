"""One cell: a driver with a fault, the processes that finish its work, concurrent readers, and the judge."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import LineageError
from tidegate.testing.process.forked import NO_ROOM, Forked
from tidegate.torture.cell import jobs, outside_reader, readers
from tidegate.torture.cell.cluster import LOST, Disturbance
from tidegate.torture.cell.expectations import Seen, moved_by_a_zombie, unfinished, unretired
from tidegate.torture.cell.jobs import Judged
from tidegate.torture.cell.outside_faults import GONE, Outside
from tidegate.torture.cell.setting import Setting, Stopped, Unanswered, Unfinished, namespace_of, where_of
from tidegate.torture.driver import driver
from tidegate.torture.driver.driver import AGED_BATCHES, FAILED
from tidegate.torture.driver.faults import CLOCK_STEPS_S, CLUSTER, EVICTIONS, KILLS, OUTSIDE, TOPOLOGY
from tidegate.torture.driver.side_work import FOLLOWS, TIDIES
from tidegate.torture.driver.timeouts import ERRORS, MORE_TIME, NAMES, reason
from tidegate.torture.driver.workloads import derived_of
from tidegate.torture.history.events import Asked, Done, Fault, Raised
from tidegate.torture.history.files import Recorder
from tidegate.torture.outcome import MISSED, PROVEN, UNPROVEN, VIOLATED, Finding, Outcome
from tidegate.torture.schedule import Cell, shape_of, workloads_of
from tidegate.torture.spark_app.pool import SparkApps, SparkDriver, lineage_in

LINEAGE, OTHER_LINEAGE = "query-1", "query-2"
DRIVER = "driver"
"""The prefix of drivers' names, each followed by its number."""
LOOK_S, AGAIN_S = 0.01, 0.5
DRIVER_PART = 3
"""The deadlines of a driver, to decide and to apply, are the cell's time divided by this."""
ENDS_WITH_ERROR = range(1, 19)
"""Exit codes of tidegate's errors: a driver whose work others took over may end with any of them."""
OUTPUT_BYTES = 1_500
Process = Forked | SparkDriver
NOT_DROPPED = "could not be dropped"


def run_cell(
    setting: Setting, cell: Cell, ending: threading.Event, applications: SparkApps | None = None
) -> Outcome:
    """Run a cell and judge it. On return its processes have ended and its namespace is dropped.

    ``applications``: those in which its drivers run. They may outlive the cell.

    Stopped: ``ending`` was set meanwhile; the same is true then.
    """
    began = time.monotonic()
    run = CellRun(setting, cell, ending, applications)
    judged = Judged()
    try:
        with run.ends_open():
            run.play()
        if run.unanswered:
            with run.ends_open():
                run.finish_at_last()
        with run.ends_open():
            judged = run.judge()
    finally:
        run.clean_up()
    findings = [*run.findings, *judged.findings]
    unproven = [*run.unproven, *judged.unproven]
    result = VIOLATED if findings else UNPROVEN if unproven else PROVEN if run.struck() else MISSED
    return Outcome(
        failpoint=cell.failpoint,
        fault=cell.fault,
        finish=cell.finish,
        round=cell.round,
        result=result,
        namespace=run.where.namespace,
        history=str(run.folder.relative_to(setting.folder)),
        seconds=round(time.monotonic() - began, 2),
        findings=tuple(findings),
        unproven=tuple(unproven),
        counts=judged.counts,
        errors=judged.errors,
    )


class CellRun:
    """The processes of one cell, and the ends that each of them must reach."""

    def __init__(
        self, setting: Setting, cell: Cell, ending: threading.Event, applications: SparkApps | None
    ) -> None:
        self.findings: list[Finding] = []
        self.unproven: list[str] = []
        self.unanswered = False
        self._setting, self._cell, self._ending = setting, cell, ending
        self._applications = applications
        self._shape = shape_of(cell, setting.seed, spark=applications is not None)
        self._workloads = setting.workloads
        if applications is not None:
            self._workloads = workloads_of(cell, setting.seed, setting.workloads)
        self._end = time.monotonic() + setting.deadline_s
        self.folder = Path(setting.folder, "cells", str(cell).replace(":", "-"))
        if self.folder.exists():  # remains of a run that was interrupted
            shutil.rmtree(self.folder)
        self.work = self.folder / "work"
        self.checkpoint = self.work / "checkpoint"
        self.work.mkdir(parents=True)
        second = f"sqlite://{self.work.absolute()}/second" if cell.side_work == FOLLOWS else ""
        where = where_of(setting, namespace_of(setting, cell))
        self.where = msgspec.structs.replace(where, second=second)
        self._recorder = Recorder(self.folder, "run", role="run")
        self._processes: list[Process] = []
        self._drivers = 0
        self._aged = AGED_BATCHES if self._shape.old else 0
        self._batches = self._aged + self._shape.batches
        seed = f"{setting.seed}-{cell}"
        self._outside = Outside(self, cell.fault, seed) if cell.fault in OUTSIDE else None
        planned = [Disturbance(fault) for fault in setting.plan if fault.name == cell.fault]
        self._planned = planned[0] if planned else None
        self.where_json = _json(self.where)

    @property
    def _taken_over(self) -> bool:
        return self._cell.finish != "same"

    @property
    def _lost(self) -> bool:
        """Whether rows are gone that nobody can put back: reads of them are refused, to the end."""
        return self._outside is not None and self._outside.lost

    @property
    def _sleeps(self) -> bool:
        """Whether the disturbed driver stops itself, to be woken from here."""
        fault = self._cell.fault
        is_paused = self._taken_over and fault in ("late", "net-late", "net-lost")
        return is_paused or self._planned is not None or fault in ("stop", *OUTSIDE)

    @contextlib.contextmanager
    def ends_open(self) -> Iterator[None]:
        """Make the cell unproven if the block cannot be finished; end all its processes."""
        try:
            yield
        except Unfinished as why:
            self.unproven.append(str(why))
            self.unanswered |= isinstance(why, Unanswered)
        finally:
            self.end_all()

    # -- the play -------------------------------------------------------------------------------------

    def play(self) -> None:
        """Disturb a driver, finish the work that it left, and let the query continue to its end."""
        plan = readers.Plan(
            where=self.where,
            folder=str(self.folder),
            name=readers.NAME,
            seed=f"{self._setting.seed}-{self._cell}",
            workloads=self._workloads,
            derived={} if self._applications is None else derived_of(self._workloads),
            seconds_max=self._setting.deadline_s,
        )
        if self._shape.old:
            self.must_end(self._drive(ages=True), 0)
        looking = [self.start(readers.main, _json(plan), readers.NAME)]
        if self._setting.reader:
            own = msgspec.structs.replace(
                plan, name=outside_reader.NAME, derived={}, reader=self._setting.reader
            )
            looking.append(self.start(outside_reader.main, _json(own), own.name))
        first = self._drive(disturbed=True)
        if self._sleeps:
            self.until(first, self.struck, "did not reach its fault in time")
            if self._planned is not None:
                self._disturb_cluster(self._planned, first)
            elif self._outside is not None:
                self._outside.begin()
            self._finish()
            before = self.look()
            self.until_it_ends(first, signal.SIGCONT)
            if self._cell.finish == "claimed":
                self.findings += moved_by_a_zombie(before, self.look())
        else:
            self._wait(first)
            self._finish()
        self._check_first(first)
        if self._planned is not None:
            self._note_forgetting()
        if self._outside is not None:
            self._outside.end()
        self._batches += 1
        self.must_end(self._drive(), 0)
        if self._cell.fault.endswith("-checkpoint"):
            self._with_a_wrong_checkpoint()
            self._batches += 1
            self.must_end(self._drive(), 0)
        for process in looking:
            self.until_it_ends(process, signal.SIGTERM)
            self.must_end(process, 0)
        if self._cell.side_work == TIDIES and not self._lost:
            self.findings += unretired(self.look())

    def _finish(self) -> None:
        match self._cell.finish:
            case "second":
                shutil.rmtree(self.checkpoint / "commits", ignore_errors=True)
                self.must_end(self._drive(), 0)
            case "recover":
                self._recover()
            case "claimed":
                # The driver that claims is without Spark, and continues the lineage of the query.
                lineage = LINEAGE if self._applications is None else lineage_in(self.checkpoint)
                self.must_end(self._drive(dies_at="open.after_claim", lineage=lineage), -signal.SIGKILL)

    def _recover(self) -> None:
        """Run `tidegate recover`: if it ends well, all versions decided before it began are visible (I4)."""
        before, call = self.look(), self._recorder.number()
        self._recorder.note(Asked(call=call, namespace=self.where.namespace, command="recover"))
        process = self.start(jobs.recover, _json(self.where), "recover", str(self.folder), "recover")
        self._wait(process)
        # Without a namespace there is nothing to recover, and the command reports that.
        code = process.exit_code or 0
        if not code:
            self._recorder.note(Done(call=call))
        else:
            self._recorder.note(
                Raised(call=call, error=ERRORS.get(code, ""), text=last_output(process.output))
            )
        self.must_end(process, 0, 2)
        if code in (0, 2):
            self.findings += unfinished(before.decided, self.look())

    def finish_at_last(self) -> None:
        """Recover once more: a process without an answer may have left work, to be finished now (I4)."""
        self._end = max(self._end, time.monotonic() + self._setting.deadline_s / 2)
        last = "recover-last"
        self.must_end(self.start(jobs.recover, _json(self.where), last, str(self.folder), last), 0, 2)
        seen = self.look()
        self.findings += unfinished(seen.decided, seen)

    def look(self) -> Seen:
        result = self.work / "look.json"
        self.must_end(self.start(jobs.look, _json(self.where), "look", str(result)), 0)
        return json_decoder(Seen).decode(result.read_bytes())

    def _check_first(self, first: Process) -> None:
        """Check that the disturbed driver came to one of the ends that its fault allows."""
        if not self.struck():  # the cell is reported as missed; then the driver must have ended well
            self.must_end(first, 0)
        elif self._sleeps and self._taken_over:
            # Without an error when no work was left for it; the judge checks whether that is true.
            self.must_end(first, *ENDS_WITH_ERROR, 0)
        elif self._cell.fault in KILLS or (self._taken_over and self._cell.fault != "raise"):
            self.must_end(first, -signal.SIGKILL)
        elif self._cell.fault == "raise" and self._taken_over:
            self.must_end(first, FAILED)
        else:
            self.must_end(first, 0)

    def _with_a_wrong_checkpoint(self) -> None:
        """Run a driver whose batch ids go back, or restart: it must raise LineageError and change nothing."""
        wrong, lineage = self.work / "wrong-checkpoint", OTHER_LINEAGE
        if self._cell.fault == "old-checkpoint":
            lineage = LINEAGE
            (wrong / "offsets").mkdir(parents=True)
            for batch in range(1, self._batches):
                (wrong / "offsets" / str(batch)).write_text(f"offsets-planned-again-{batch}")
            (wrong / "commits").mkdir()
            (wrong / "commits" / "0").write_text("")
        self._recorder.note(Fault(kind=self._cell.fault, target="checkpoint"))
        self.must_end(self._drive(checkpoint=wrong, lineage=lineage), LineageError.exit_code)

    # -- processes ------------------------------------------------------------------------------------

    def _drive(
        self,
        *,
        disturbed: bool = False,
        ages: bool = False,
        checkpoint: Path | None = None,
        lineage: str = LINEAGE,
        dies_at: str = "",
    ) -> Process:
        """Start a driver: the one that makes an old namespace, the one with the fault, or a plain one.

        With ``dies_at`` it is one that dies at that failpoint.
        """
        cell, shape = self._cell, self._shape
        self._drivers += 0 if ages else 1
        where = self.where
        if disturbed and cell.fault.startswith("net-"):
            where = msgspec.structs.replace(where, store_options={**where.store_options, "timeout_s": 1.0})
        plan = driver.Plan(
            where=where,
            folder=str(self.folder),
            name=f"{DRIVER}-{self._drivers}",  # number 0 is of a driver that ends before the fault
            checkpoint=str(checkpoint or self.checkpoint),
            seed=f"{self._setting.seed}-{cell}",
            workloads=self._workloads,
            batches=self._aged if ages else self._batches,
            lineage=lineage,
            key_groups=shape.key_groups,
            parallelism=shape.parallelism,
            frame_bytes=shape.frame_bytes,
            deadline_s=self._setting.deadline_s / DRIVER_PART,
            salt=1 if cell.fault == "other-rows" and not disturbed else 0,
            fault="kill" if dies_at else "" if not disturbed else CLUSTER if self._planned else cell.fault,
            failpoint=dies_at or cell.failpoint,
            nth=1 if dies_at else shape.nth,
            taken_over=self._taken_over,
            goes_on=disturbed and not self._taken_over and cell.fault not in EVICTIONS,
            side_work="" if ages else cell.side_work,
            keeps=2 if cell.fault in EVICTIONS else 1,
            servers_change=cell.fault in TOPOLOGY or self._planned is not None,
            clocks_step=cell.fault in CLOCK_STEPS_S and not ages,
            reopen_at=self._aged + shape.reopen_at if disturbed and shape.reopen_at else 0,
            ages=ages,
        )
        if self._applications is None or dies_at:
            return self.start(driver.main, _json(plan), plan.name)
        self._check_ending()
        spark_driver = self._applications.start(plan, self.work / f"{plan.name}.txt")
        self._processes.append(spark_driver)
        return spark_driver

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise Stopped

    def start(self, work: Callable[..., int | None], plan: str, name: str, *more: str) -> Forked:
        self._check_ending()
        process = Forked(work, (plan, *more), self.work / f"{name}.txt")
        self._processes.append(process)
        return process

    def _left_s(self) -> float:
        self._check_ending()
        return max(self._end - time.monotonic(), 0.0)

    def _wait(self, process: Process) -> None:
        """Wait for the end of a process. Unfinished: the cell's time is over."""
        while not process.wait(min(self._left_s(), 0.5)):
            if not self._left_s():
                raise Unfinished(
                    f"{process.output.stem} did not end within the cell's {self._setting.deadline_s:.0f} s;"
                    f" {MORE_TIME}"
                )

    def must_end(self, process: Process, *codes: int) -> None:
        """Wait for its end. An exit code that is not expected ends the cell, and is a finding.

        Unanswered: the exit code reports that there was no answer in time; no finding then.
        """
        self._wait(process)
        refusals = self._outside.refusals if self._outside is not None else ()
        if process.exit_code in (*codes, *refusals):
            return
        if self._planned is not None and process.exit_code == GONE:
            raise Unfinished(f"{process.output.stem}: {LOST}")
        if process.exit_code in NAMES:
            raise Unanswered(reason(process.output.stem, process.exit_code, last_output(process.output)))
        if process.exit_code == NO_ROOM:
            error = (last_output(process.output).splitlines() or ["no room"])[-1]
            raise Unfinished(f"{process.output.stem} could not write its history: {error}; make room there")
        self.findings.append(
            Finding(
                rule="finish",
                invariant="I4",
                what=f"{process.output.stem} ended with exit code {process.exit_code}",
                expected="exit code "
                + ("of an error" if codes[:18] == tuple(ENDS_WITH_ERROR) else " or ".join(map(str, codes))),
                seen=last_output(process.output),
            )
        )
        raise Unfinished(f"the cell ended with {process.output.stem}")

    def until(self, process: Process, true: Callable[[], bool], problem: str) -> None:
        """Wait until a condition is true, or the process ended without it. Unfinished: neither in time."""
        while not true() and not process.wait(LOOK_S):
            if not self._left_s():
                raise Unfinished(f"{process.output.stem} {problem}; {MORE_TIME}")

    def could_be_done(self, process: Process, fault: str) -> None:
        """Wait for the end of a process that does a fault. Unfinished: it could not do it."""
        self._wait(process)
        if process.exit_code:
            raise Unfinished(f"{fault} could not be done to the store: {last_output(process.output)}")

    def until_it_ends(self, process: Process, number: int) -> None:
        """Send a signal until the process has ended: it may stop itself a moment after the first SIGCONT."""
        while not process.wait(0):
            process.send(number)
            if process.wait(min(AGAIN_S, self._left_s())):
                return
            if not self._left_s():
                raise Unfinished(f"{process.output.stem} did not end after {signal.Signals(number).name}")

    def _disturb_cluster(self, planned: Disturbance, first: Process) -> None:
        """Let the driver run on while the plan's fault lasts; it stops again if others take over then."""
        self._note_forgetting(lasts=True)

        def go_on(left_s: float) -> None:
            self._check_ending()
            first.send(signal.SIGCONT)
            if first.wait(min(AGAIN_S, left_s)):
                time.sleep(min(AGAIN_S, left_s))

        planned.hold(go_on, self._left_s())
        if self._taken_over:
            first.send(signal.SIGSTOP)

    def _note_forgetting(self, *, lasts: bool = False) -> None:
        """Note that servers may have lost acknowledged writes: the visible version may be an older one."""
        fault = Fault(kind=self._cell.fault, target="the user's cluster", forgets=True, lasts=lasts)
        self._recorder.note(fault)

    def struck(self) -> bool:
        """Return whether the fault happened."""
        paths = (self.folder / f"{name}.jsonl" for name in (f"{DRIVER}-1", f"{DRIVER}-1-task"))
        return any(path.exists() and b'"event":"fault"' in path.read_bytes() for path in paths)

    # -- the end --------------------------------------------------------------------------------------

    def end_all(self) -> None:
        """End all processes of the cell."""
        if self._planned is not None:
            self._planned.end()
        if self._outside is not None:
            self._outside.stop()
        for process in self._processes:
            if not process.wait(0):
                process.kill()
        outside_reader.end_left(self.work)
        self._recorder.close()

    def judge(self) -> Judged:
        """Judge history, log and store, or the part of them that answers."""
        self._end = max(self._end, time.monotonic() + self._setting.deadline_s / 2)
        result = self.work / "verdict.json"
        ended = [each.output.stem for each in self._processes if 0 <= (each.exit_code or 0) != NO_ROOM]
        whole = [name for name in ended if name.startswith(f"{DRIVER}-")]
        if not self._lost:
            whole += [name for name in (readers.NAME, outside_reader.NAME) if name in ended]
        plan = _json(self.where), "judge", str(self.folder), str(result), "lost" if self._lost else ""
        process = self.start(jobs.judge, *plan, *whole)
        with self.ends_open():
            self.must_end(process, 0)
        # The verdict on the history is written first: it holds even if log and store do not answer.
        return json_decoder(Judged).decode(result.read_bytes()) if result.exists() else Judged()

    def clean_up(self) -> None:
        """Drop the namespace, unless it is to be kept; add a finding if that fails."""
        self.end_all()
        for path in self.work.glob("*.properties"):  # remains of a command that was killed
            path.unlink()
        if self._setting.keep:
            return
        shutil.rmtree(self.work / "second", ignore_errors=True)
        what = f"namespace {self.where.namespace} {NOT_DROPPED}"
        try:
            problem = drop_namespace(self._setting, self.where.namespace, self.work / "drop.txt")
        except Unanswered as why:
            self.unproven.append(f"{what}: {why}")
        else:
            if problem:
                self.findings.append(Finding(rule="drop", invariant="", what=what, seen=problem))


def is_left_behind(outcome: Outcome) -> bool:
    """Return whether the cell's namespace still exists."""
    reasons = (*outcome.unproven, *(finding.what for finding in outcome.findings))
    return any(text.startswith(f"namespace {outcome.namespace} {NOT_DROPPED}") for text in reasons)


def drop_namespace(setting: Setting, namespace: str, output: Path) -> str:
    """Remove a namespace of this run from log and store, in a process; return '' or the problem.

    Unanswered: it had no answer in time; `tidegate drop`, or `--resume`, finishes it.
    """
    process = Forked(jobs.drop, (_json(where_of(setting, namespace)),), output)
    if not process.wait(setting.deadline_s):
        process.kill()
        raise Unanswered(f"not done within {setting.deadline_s:.0f} s; {MORE_TIME}")
    text, code = last_output(output), process.exit_code or 0
    if code in NAMES:
        raise Unanswered(reason("the drop", code, text))
    return f"exit code {code}: {text}" if code else ""


def last_output(path: Path) -> str:
    """Return the end of a process's output."""
    return path.read_text(errors="replace")[-OUTPUT_BYTES:].strip()


def _json(plan: msgspec.Struct) -> str:
    return msgspec.json.encode(plan).decode()
