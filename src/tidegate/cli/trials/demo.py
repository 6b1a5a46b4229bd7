"""``tidegate demo``: the demo on real departures."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.base.clock import Clock
from tidegate.base.urls import redact
from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.cli.core.options import AllowUnsafe, Json, examples
from tidegate.cli.core.output import print_json, print_pairs
from tidegate.cli.inspect.doctor_disks import folder_of
from tidegate.cli.inspect.doctor_servers import refuse_unusable
from tidegate.errors import ConfigError, TidegateError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

EXAMPLES = examples(
    "tidegate demo",
    "tidegate demo --folder /tmp/departures",
    "tidegate demo --read",
    "tidegate demo --wal kafka://localhost:9092 --allow-unsafe",
)

# Unlike elsewhere not from the environment: its servers are no place for a demo's tables.
Wal = Annotated[str | None, typer.Option(metavar="URL", help="Another log than files in the folder.")]
WalConfig = Annotated[
    Path | None,
    typer.Option("--wal-config", metavar="FILE", help="The log's options: a file of name=value lines."),
]
StoreConfig = Annotated[
    Path | None,
    typer.Option("--store-config", metavar="FILE", help="The store's options: a file of name=value lines."),
]
Store = Annotated[str | None, typer.Option(metavar="URL", help="Another store than files in the folder.")]


def demo(
    wal: Wal = None,
    store: Store = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="An empty folder for it all; a temporary one by default."),
    ] = None,
    wal_config: WalConfig = None,
    store_config: StoreConfig = None,
    *,
    read: Annotated[
        bool, typer.Option("--read", help="For readers, without Spark: a small store in files that moves.")
    ] = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Stream real departures into versioned tables, with crashes.

    The driver is killed twice on purpose, while a reader checks every version against the
    input. Takes half a minute on two idle cores. Needs Spark and Java: pip install 'tidegate[spark]', and see
    `tidegate doctor`. With --wal or --store its namespace has a fresh name. A log on servers
    is removed in the end, when no --folder was given. Exit code 1 when a promise did not hold.

    With --read a small writer in Python adds a version each second, at most 600, until Ctrl-C, and a program
    of ten lines is printed that reads them.
    """
    if read:
        if wal or store or wal_config or store_config or json:
            raise ConfigError("--read makes a store in files, and takes --folder alone")
        importlib.import_module("tidegate.cli.trials.demo_read").move_store(folder)
        return
    from rich.console import Console

    of_wal, of_store = wal_options(wal_config), _to_make(store) | store_options(store_config)
    refuse_unusable(wal, store, of_wal, of_store)
    run = _find_run()
    namespace = "flights" if wal is None and store is None else f"flights-{Clock().new_id()[:8]}"
    on_servers = wal is not None and folder_of(wal) is None
    if on_servers:
        print_message(
            f"namespace {namespace} in the log {redact(str(wal))}; if it stays, `tidegate drop` removes it"
        )
    console = Console(stderr=True)
    with console.status("starting") as status:
        outcome = run(
            wal=wal,
            store=store,
            folder=folder,
            progress=_Teller(console, status),
            namespace=namespace,
            wal_options=of_wal,
            store_options=of_store,
            allow_unsafe=allow_unsafe,
        )
    shown = {"wal": redact(outcome.wal), "store": redact(outcome.store)}
    facts = dataclasses.asdict(outcome) | shown
    if json:
        print_json(facts | {"right": outcome.right})
    else:
        print_pairs(_pairs(outcome))
        for line in [*_verdict(outcome), *_next_commands(outcome)]:
            print(line)
        if on_servers:
            print(_of_log(outcome))
    if not outcome.right:
        raise typer.Exit(TidegateError.exit_code)


def _to_make(store: str | None) -> dict[str, Any]:
    """Return the options to create Cassandra's tables, which elsewhere only `tidegate init` does."""
    return {"create": True} if store is not None and store.startswith("cassandra:") else {}


def _verdict(outcome: Any) -> list[str]:
    if not outcome.right:
        return ["NOT every promise held"]
    return [
        "every promise held:",
        "  - each batch became visible in all three tables at once: no read saw a part of a batch",
        "  - the killed drivers lost nothing and counted nothing twice: the tables equal a recount",
    ]


def _next_commands(outcome: Any) -> list[str]:
    """Return the commands to look around with, the page first."""
    log = [] if outcome.log_removed else [f"  export TIDEGATE_WAL={redact(outcome.wal)}"]
    return [
        "look around:",
        f"  export TIDEGATE_NAMESPACE={outcome.namespace} TIDEGATE_STORE={redact(outcome.store)}",
        *log,
        "  tidegate ui",
        "  tidegate history",
        f"  tidegate diff {outcome.versions - 1} {outcome.versions} --table airports",
        "  tidegate get airports EWR",
    ]


def _of_tasks(outcome: Any) -> Iterator[tuple[str, str]]:
    large = list(outcome.by_tasks.items())
    if large:
        versions = " and ".join(f"{version} ({tasks} tasks)" for version, tasks in large)
        yield "large batches", f"versions {versions}: Spark's tasks staged and applied them"
    yield "small batches", f"{outcome.versions - len(large)}: the driver applied them without tasks"


def _of_log(outcome: Any) -> str:
    if outcome.log_removed:
        return "the log is removed"
    places = f"--store {redact(outcome.store)} --wal {redact(outcome.wal)} --namespace {outcome.namespace}"
    return f"the log is still there; remove it with the store: tidegate drop {places}"


def _pairs(outcome: Any) -> list[tuple[str, Any]]:
    batches = f"{outcome.rows:,} departures in {outcome.versions} batches, each of them one version"
    reads = f"{outcome.snapshots_checked:,} reads of {outcome.versions_checked} versions"
    return [
        ("folder", outcome.folder),
        *([] if outcome.folder in outcome.wal else [("log", redact(outcome.wal))]),
        ("rows", f"{batches}; {outcome.seconds:.0f} s"),
        *_of_tasks(outcome),
        *(("driver killed", kill) for kill in outcome.kills),
        ("finished from the log", ", ".join(f"version {v}" for v in outcome.recovered) or "nothing"),
        ("reader", f"{reads}, each compared with a recount of the rows"),
        ("torn or wrong", ", ".join(outcome.torn) or "none"),
    ]


def _find_run() -> Any:
    if importlib.util.find_spec("pyspark") is None:  # only the driver's process imports it
        raise ConfigError("the demo needs pyspark: pip install 'tidegate[spark]'")
    return importlib.import_module("tidegate.demo").run


class _Teller:
    """A progress display: a live line on a terminal, else a line per event."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._told = ""

    def __call__(self, version: int, what: str) -> None:
        if self._console.is_terminal:
            self._status.update(f"version {version}: {what}")
            return
        event = what.partition(";")[0]
        if event != self._told:
            self._told = event
            self._console.print(f"version {version}: {event}", highlight=False, markup=False, soft_wrap=True)
