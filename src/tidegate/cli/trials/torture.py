"""``tidegate torture``: deliberate faults on the user's own log and store, and proof that nothing broke."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.cli.core.options import AllowUnsafe, Json, examples
from tidegate.cli.core.output import print_json, print_pairs
from tidegate.cli.inspect.doctor_servers import refuse_unusable
from tidegate.errors import TidegateError
from tidegate.options.durations import duration_us
from tidegate.torture.driver.faults import FAULTS
from tidegate.torture.driver.workloads import WORKLOADS

if TYPE_CHECKING:
    from rich.progress import Progress

    from tidegate.torture.outcome import Outcome
    from tidegate.torture.run import Asked, Report

EXAMPLES = examples(
    "tidegate torture --wal kafka://b1:9092,b2:9092 --store redis://cache:6379 --duration 10min",
    "tidegate torture --wal file:///tmp/w --store sqlite:///tmp/s --all --report /tmp/torture",
    "tidegate torture --wal file:///tmp/w --store sqlite:///tmp/s --seed 7 --only publish.before:kill:second",
)

# Unlike elsewhere not from the environment: its servers may be in use.
Wal = Annotated[str, typer.Option(metavar="URL", help="The log to torture: kafka://..., file:///path.")]
Store = Annotated[
    str,
    typer.Option(metavar="URL", help="The store to torture: redis://..., cassandra://..., sqlite:///path."),
]
WalConfig = Annotated[
    Path | None,
    typer.Option("--wal-config", metavar="FILE", help="The log's options: a file of name=value lines."),
]
StoreConfig = Annotated[
    Path | None,
    typer.Option("--store-config", metavar="FILE", help="The store's options: a file of name=value lines."),
]
ALL = "all by default"
Seed = Annotated[int | None, typer.Option(metavar="N", help="The schedule's seed; a random one by default.")]
Duration = Annotated[
    str | None, typer.Option(metavar="TIME", help="Start cells for this time: 60s, 10min, 1h. Default: 60s.")
]
Cells = Annotated[int | None, typer.Option(metavar="N", help="Run N cells instead.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="CELL", help="Run this cell: FAILPOINT:FAULT:FINISH[:ROUND]. Several times."),
]
Workloads = Annotated[
    str | None, typer.Option(metavar="NAMES", help=f"With commas, of: {', '.join(WORKLOADS)}; {ALL}.")
]
Faults = Annotated[
    str | None, typer.Option(metavar="NAMES", help=f"With commas, of: {', '.join(FAULTS)}; {ALL}.")
]
ReportAt = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A new folder for report and histories; a temporary one by default."),
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Go on with the run in this folder: cells that are done stay."),
]
Cluster = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A plan of your own faults: commands that disturb servers and network."
    ),
]
Topology = Annotated[
    bool,
    typer.Option(
        "--allow-topology-changes",
        help="Redis: slots may be moved, replicas attached and promoted; all is put back.",
    ),
]
Spark = Annotated[
    str,
    typer.Option(
        metavar="MASTER",
        help="Drivers are Spark applications, and lose executors, workers and shuffle files, too.",
    ),
]
Reader = Annotated[
    str,
    typer.Option(
        metavar="CMD",
        help="A reader of your own, in any language: it is driven in each cell, and judged, too.",
    ),
]
Jobs = Annotated[int | None, typer.Option(metavar="N", help="Cells at a time. Default: 2; with --spark 1.")]
CellDeadline = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="A cell that takes longer is ended. Default: 60s; with --spark 180s."),
]


def torture(  # noqa: PLR0913, PLR0917 - its options
    wal: Wal,
    store: Store,
    seed: Seed = None,
    duration: Duration = None,
    cells: Cells = None,
    only: Only = None,
    workloads: Workloads = None,
    faults: Faults = None,
    report: ReportAt = None,
    resume: Resume = None,
    cluster: Cluster = None,
    allow_topology_changes: Topology = False,
    spark: Spark = "",
    reader: Reader = "",
    jobs: Jobs = None,
    cell_deadline: CellDeadline = None,
    wal_config: WalConfig = None,
    store_config: StoreConfig = None,
    *,
    whole: Annotated[bool, typer.Option("--all", help="Run the whole crash table once.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not drop the namespaces.")] = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Break things on purpose, in namespaces of its own, and prove that every promise held.

    Drivers commit workloads whose truth is known, without Spark or as Spark applications, and are disturbed
    at named places of the protocol: killed, stopped and woken, their replies lost, late or doubled. Readers
    look on all along. Each history is judged against what was put in. Nothing but namespaces named
    torture-... is touched, and they are dropped in the end, also after Ctrl-C.

    Exit code 0 when every cell is proven, 1 when one is not, 2 when it could not begin.
    """
    from tidegate.torture.report.report import write
    from tidegate.torture.run import torture as run

    of_wal, of_store = wal_options(wal_config), _to_make(store) | store_options(store_config)
    refuse_unusable(wal, store, of_wal, of_store)
    with _shown(quiet=json) as shown:
        done = run(
            wal,
            store,
            seed=seed,
            duration_s=None if duration is None else _seconds("--duration", duration),
            cells=cells,
            whole=whole,
            only=only or (),
            workloads=WORKLOADS if workloads is None else _names(workloads),
            faults=None if faults is None else _names(faults),
            folder=report,
            resume=resume,
            jobs=jobs,
            spark=spark,
            reader=reader,
            cell_s=None if cell_deadline is None else _seconds("--cell-deadline", cell_deadline),
            keep=keep,
            cluster=cluster,
            topology=allow_topology_changes,
            wal_options=of_wal,
            store_options=of_store,
            allow_unsafe=allow_unsafe,
            progress=shown.cell,
            begun=shown.begun,
        )
    as_json, as_html = write(done)
    if json:
        print_json({**_facts(done), "report": str(as_html), "json": str(as_json)})
    else:
        _tell(done, as_html)
    if not done.all_proven:
        raise typer.Exit(TidegateError.exit_code)


def _seconds(option: str, text: str) -> float:
    return duration_us(option, text) / 1e6


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _to_make(store: str) -> dict[str, Any]:
    """Return the options to create Cassandra's tables, which elsewhere only `tidegate init` does."""
    return {"create": True} if store.startswith("cassandra:") else {}


# -- output ---------------------------------------------------------------------------------------------


class _Shown:
    """The progress: a live line on a terminal; elsewhere a line now and then. Findings at once."""

    EVERY_S = 10.0

    def __init__(self, progress: Progress | None, *, quiet: bool) -> None:
        self._progress, self._quiet = progress, quiet
        self._task = progress.add_task("starting", total=None) if progress else None
        self._cells, self._not_proven = 0, 0
        self._told_at = time.monotonic()

    def begun(self, spec: Asked, folder: Path) -> None:
        print_message(
            f"log {spec.wal}, store {spec.store}, namespaces torture-{spec.id}-..., seed {spec.seed}"
        )
        print_message(f"histories and report: {folder}")

    def cell(self, outcome: Outcome) -> None:
        self._cells += 1
        if outcome.result != "proven":
            self._not_proven += 1
            self._tell_finding(outcome)
        text = f"{self._cells} cells, {self._not_proven} not proven; last {outcome.cell}"
        if self._progress and self._task is not None:
            self._progress.update(self._task, description=text)
        elif not self._quiet and time.monotonic() - self._told_at > self.EVERY_S:
            self._told_at = time.monotonic()
            print_message(text)

    def _tell_finding(self, outcome: Outcome) -> None:
        first = outcome.findings[0] if outcome.findings else None
        why = f"{first.invariant} {first.rule}: {first.what}" if first else "; ".join(outcome.unproven)
        text = f"{outcome.result}: {outcome.cell}: {why or 'the fault did not happen'}"
        if self._progress:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print_message(text)


@contextlib.contextmanager
def _shown(*, quiet: bool) -> Iterator[_Shown]:
    if quiet or not sys.stderr.isatty():
        yield _Shown(None, quiet=quiet)
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Shown(progress, quiet=quiet)


def _facts(done: Report) -> dict[str, Any]:
    from tidegate.torture.report.report import facts_of

    return {
        name: value
        for name, value in facts_of(done).items()
        if name not in ("asked", "outcomes", "not_proven")
    }


def _tell(done: Report, page: Path) -> None:
    from tidegate.torture.report.report import repeat_of, verdict_of

    totals, counts = done.totals, done.totals.counts
    print_pairs(
        [
            ("cells", ", ".join(f"{number:,} {name}" for name, number in sorted(totals.results.items()))),
            (
                "not run",
                f"{sum(skip.cells for skip in done.skipped):,} cells of a round; the report has the reasons",
            ),
            ("checked", ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))),
            ("seconds", f"{done.seconds:,.0f}"),
            ("seed", str(done.asked.seed)),
            ("report", str(page)),
        ]
    )
    for outcome in totals.wrong[:10]:
        print(f"{outcome.result}: {outcome.cell}\n  again: {repeat_of(done, outcome)}")
    print(verdict_of(done))
