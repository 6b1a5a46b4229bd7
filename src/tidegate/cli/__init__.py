"""The command line: ``tidegate COMMAND``. Each command has a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli import (
    adopt,
    bench,
    demo,
    diff,
    doctor,
    drop,
    history,
    init,
    key_groups,
    quarantine,
    read,
    recover,
    repair,
    restore,
    status,
    store,
    tail,
    torture,
    transfer,
    ui,
    vacuum,
    verify,
)
from tidegate.cli.common import Commands, exit_codes

EPILOG = f"""\b
Set TIDEGATE_STORE, TIDEGATE_WAL, TIDEGATE_STORE_CONFIG, TIDEGATE_WAL_CONFIG and TIDEGATE_NAMESPACE to leave
the options out:
\b
  export TIDEGATE_STORE=sqlite:///data/store TIDEGATE_WAL=file:///data/wal
  tidegate init --namespace flights
  tidegate status --namespace flights
\b
Exit codes:
{exit_codes()}
"""

app = typer.Typer(
    name="tidegate",
    cls=Commands,
    help="Numbered, atomic versions of Spark's micro-batches in external stores: look after them, read them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, passwords among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        import tidegate

        print(tidegate.__version__)
        raise typer.Exit


@app.callback()
def _tidegate(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


for command, command_epilog in (
    (demo.demo, demo.EXAMPLES),
    (init.init, init.EXAMPLES),
    (status.status, status.EXAMPLES),
    (history.history, history.EXAMPLES),
    (read.get, read.GET_EXAMPLES),
    (read.scan, read.SCAN_EXAMPLES),
    (diff.diff, diff.EXAMPLES),
    (tail.tail, tail.EXAMPLES),
    (recover.recover, recover.EXAMPLES),
    (repair.repair, repair.EXAMPLES),
    (restore.restore, restore.EXAMPLES),
    (transfer.export, transfer.EXPORT_EXAMPLES),
    (transfer.import_, transfer.IMPORT_EXAMPLES),
    (adopt.adopt, adopt.EXAMPLES),
    (doctor.doctor, doctor.EXAMPLES),
    (verify.verify, verify.EXAMPLES),
    (vacuum.vacuum, vacuum.EXAMPLES),
    (key_groups.key_groups, key_groups.EXAMPLES),
    (bench.bench, bench.EXAMPLES),
    (drop.drop, drop.EXAMPLES),
    (torture.torture, torture.EXAMPLES),
    (ui.ui, ui.EXAMPLES),
):
    app.command(command.__name__.strip("_").replace("_", "-"), epilog=command_epilog)(command)
app.add_typer(quarantine.app)
app.add_typer(store.app)


def main() -> None:
    """What the script ``tidegate`` runs."""
    app(prog_name="tidegate")
