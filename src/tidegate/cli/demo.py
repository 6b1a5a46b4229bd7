"""``tidegate demo``: the demo on real departures."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from tidegate.cli.common import Json, examples
from tidegate.cli.output import print_json, print_pairs
from tidegate.errors import ConfigError, TidegateError
from tidegate.options import redact

EXAMPLES = examples("tidegate demo", "tidegate demo --folder /tmp/departures")

# Unlike elsewhere not from the environment: what is meant there is no place for a demo's tables.
Wal = Annotated[str | None, typer.Option(metavar="URL", help="Another log than files in the folder.")]
Store = Annotated[str | None, typer.Option(metavar="URL", help="Another store than files in the folder.")]


def demo(
    wal: Wal = None,
    store: Store = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="An empty folder for it all; a temporary one by default."),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Stream real departures into versioned tables, with crashes.

    The driver is killed twice on purpose, while a reader checks every version against the
    input. Takes a minute or two. Needs Spark and Java: pip install 'tidegate[spark]', and see
    `tidegate doctor`. Exit code 1 when a promise did not hold.
    """
    run = _find_run()
    console = Console(stderr=True)
    with console.status("starting") as status:
        outcome = run(wal=wal, store=store, folder=folder, progress=_Teller(console, status))
    facts = {name: redact(v) if isinstance(v, str) else v for name, v in dataclasses.asdict(outcome).items()}
    if json:
        print_json(facts | {"right": outcome.right})
    else:
        print_pairs(_pairs(outcome))
        print("every promise held" if outcome.right else "NOT every promise held")
        print(f"look around: tidegate history --store {facts['store']} --namespace {outcome.namespace}")
    if not outcome.right:
        raise typer.Exit(TidegateError.exit_code)


def _pairs(outcome: Any) -> list[tuple[str, Any]]:
    return [
        ("folder", outcome.folder),
        ("rows", f"{outcome.rows:,} in {outcome.versions} versions, {outcome.seconds:.0f} s"),
        *(("driver killed", kill) for kill in outcome.kills),
        ("finished from the log", ", ".join(f"version {v}" for v in outcome.recovered) or "nothing"),
        ("reader", f"{outcome.snapshots_checked:,} snapshots of {outcome.versions_checked} versions checked"),
        ("torn or wrong", ", ".join(outcome.torn) or "none"),
    ]


def _find_run() -> Any:
    try:
        return importlib.import_module("tidegate.demo").run
    except ImportError as error:
        if error.name is None or error.name.startswith("tidegate"):
            raise
        raise ConfigError(f"the demo needs {error.name}: pip install 'tidegate[spark]'") from None


class _Teller:
    """Shows how far it is: a live line on a terminal, else a line per new version or event."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._told: tuple[int, str] | None = None

    def __call__(self, version: int, what: str) -> None:
        if self._console.is_terminal:
            self._status.update(f"version {version}: {what}")
            return
        told = version, what.partition(";")[0]
        if told != self._told:
            self._told = told
            self._console.print(
                f"version {version}: {told[1]}", highlight=False, markup=False, soft_wrap=True
            )
