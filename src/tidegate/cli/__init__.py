"""The command line: ``tidegate COMMAND``. Each command has its own file, imported when it runs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Annotated

import typer

from tidegate.cli.core.app import COMMANDS, INTERRUPTED, NOBODY_READS, Commands, drop_output, print_message
from tidegate.cli.core.streams import made_ready
from tidegate.errors import BY_NAME, ConfigError, CorruptError, TidegateError


def exit_codes() -> str:
    """Return the exit codes, one per line."""
    by_code = {cls.exit_code: name for name, cls in BY_NAME.items()}
    by_code[TidegateError.exit_code] = "anything else; a key that is absent (get); a failed check (doctor)"
    by_code[CorruptError.exit_code] += ", and findings of verify"
    by_code[ConfigError.exit_code] += ", and options that cannot be read"
    by_code |= {0: "done", INTERRUPTED: "Ctrl-C", NOBODY_READS: "standard output was closed, as by head"}
    return "\n".join(f"  {code:>3}  {name}" for code, name in sorted(by_code.items()))


EPILOG = f"""\b
Set TIDEGATE_STORE, TIDEGATE_WAL, TIDEGATE_STORE_CONFIG, TIDEGATE_WAL_CONFIG and TIDEGATE_NAMESPACE to leave
the options out, or write store, wal and namespace into tidegate.toml:
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
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks show local variables, including passwords
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(flag: bool) -> None:
    if flag:
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


def _listed() -> None:
    """Fill a line of the list of commands; ``Commands`` runs the real one."""


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.line)(_listed)


def main() -> None:
    """Run the script ``tidegate``.

    The process ends at once although a probe still waits for a dead server: the interpreter's end would wait
    for the threads of that server's client.
    """
    made_ready()
    try:
        app(prog_name="tidegate")
    except SystemExit as end:
        probes = sys.modules.get("tidegate.status.probes")  # only a command that probes servers imports it
        names = {thread.name for thread in threading.enumerate()}
        if isinstance(end.code, int) and probes is not None and probes.THREAD in names:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(end.code)
        raise
    except OSError as error:  # of the help or the version: ``Commands`` prints a command's own
        drop_output()
        print_message(f"standard output: {error.strerror or error}")
        sys.exit(TidegateError.exit_code)
