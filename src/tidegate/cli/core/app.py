"""The commands, and what their errors become: message, next step, exit code.

Each command is imported when it runs, so that none waits for the imports of others.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tidegate.cli.core.signals import terminated_like_ctrl_c
from tidegate.errors import StoreUnavailableError, TidegateError, WalUnavailableError

LOGGER = "tidegate"
USAGE_ERROR: Any = typer.BadParameter.__base__
"""The base class is click's; newer releases of typer have their own."""
WORDS = "tidegate.words"
NAMED = re.compile(r"([a-z0-9_-]{1,40}=)([A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
MAY_LOG_IN = re.compile(r"://.|.@").search
INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""
NOBODY_READS = 141
"""The exit code when standard output was closed (``| head``), as shells report it for other programs."""


class Command(NamedTuple):
    """One command: its line in the list of all, and its location below ``tidegate.cli``."""

    line: str
    module: str
    name: str
    """A function, or the ``typer.Typer`` of a group of commands."""
    epilog: str = "EXAMPLES"


COMMANDS = {
    "demo": Command("Stream real departures into tables, with crashes.", "trials.demo", "demo"),
    "new": Command("Write a small project that runs.", "trials.new", "new"),
    "init": Command("Make a namespace in log and store.", "operate.init", "init"),
    "status": Command("Show where a namespace stands; --watch: live.", "inspect.status", "status"),
    "namespaces": Command("List the namespaces of a store.", "inspect.namespaces", "namespaces"),
    "history": Command("List the versions that can still be read.", "read.history", "history"),
    "get": Command("Print the value of one key.", "read.get_scan", "get", "GET_EXAMPLES"),
    "scan": Command("Print all rows of a table at one version.", "read.get_scan", "scan", "SCAN_EXAMPLES"),
    "diff": Command("Print the rows that differ between two versions.", "read.diff", "diff"),
    "changes": Command("Print the rows that a version wrote, from the log.", "read.changes", "changes"),
    "tail": Command("Print what each version changes, as it comes.", "read.tail", "tail"),
    "recover": Command("Make every decided version visible, without Spark.", "operate.recover", "recover"),
    "repair": Command("Put back from the log what a store's servers lost.", "operate.repair", "repair"),
    "restore": Command("Make a new version of what an older one held.", "operate.restore", "restore"),
    "export": Command("Write a version into a folder.", "operate.transfer", "export", "EXPORT_EXAMPLES"),
    "import": Command("Make one new version of an export.", "operate.transfer", "import_", "IMPORT_EXAMPLES"),
    "backup": Command("Add the newest version to the backups in a folder.", "operate.backup", "backup"),
    "restore-from": Command(
        "Make a lost namespace again from a backup.", "operate.backup", "restore_from", "RESTORE_EXAMPLES"
    ),
    "adopt": Command("Let another Spark checkpoint take over.", "checkpoints.adopt", "adopt"),
    "rebuild-checkpoint": Command("Make a lost checkpoint from the log.", "checkpoints.rebuild", "rebuild"),
    "rekey": Command("Move a namespace to another number of key groups.", "checkpoints.rekey", "rekey"),
    "relog": Command("Save a namespace whose log is gone, in a new one.", "checkpoints.relog", "relog"),
    "explain": Command("Print cause and next step of an error or alert.", "inspect.explain", "explain"),
    "doctor": Command("Check what the promises rest on.", "inspect.doctor", "doctor"),
    "verify": Command("Check the store against the log, and all checksums.", "inspect.verify", "verify"),
    "vacuum": Command("Drop what no reader can reach any more.", "operate.vacuum", "vacuum"),
    "redis-functions": Command(
        "Install tidegate's functions on the servers of a Redis.",
        "operate.redis_functions",
        "redis_functions",
    ),
    "bench": Command("Measure what atomic versions cost here.", "trials.bench", "bench"),
    "drop": Command("Remove a namespace from stores and log, permanently.", "operate.drop", "drop"),
    "torture": Command("Break things on purpose; prove every promise held.", "trials.torture", "torture"),
    "conformance": Command("Prove a reader in any language.", "trials.conformance", "conformance"),
    "ui": Command("Serve a page of versions, lag, stores and tables.", "inspect.ui", "ui"),
    "quarantine": Command("The rows that a query refused: list, export, drop.", "operate.quarantine", "app"),
    "schema": Command("The columns of tables: rename one.", "operate.schema", "app"),
    "alias": Command("Names that readers follow: set, list, drop.", "operate.alias", "app"),
    "store": Command("The stores of a namespace: add, remove, list.", "operate.store", "app"),
}


IN_SETTINGS = ("store", "stores", "wal", "namespace")
SETTINGS_HELP = "Or write a tidegate.toml here, with store, wal and namespace (`tidegate new DIR` makes one)"
_words: list[str] = []
"""The words of the command that runs in this process."""
WITHOUT_PLACES = ("demo", "bench", "torture", "conformance", "explain", "new")
"""The commands that take no store or log from the environment."""


def command(name: str) -> Any:
    """Import the command of that name and return click's command, with its options."""
    entry = COMMANDS[name]
    module = importlib.import_module(f"tidegate.cli.{entry.module}")
    function = getattr(module, entry.name)
    if not isinstance(function, typer.Typer):
        from tidegate.cli.core.parameters import ValidatedCommand

        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name, cls=ValidatedCommand, epilog=getattr(module, entry.epilog))(function)
        function = app
    return get_command(function)


class Commands(TyperGroup):
    """The group of all commands: an error is one message on stderr, and its exit code.

    Its own commands have no more than their lines in the list; ``resolve_command`` returns the real
    one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)  # parsing consumes them
        _words[:] = args
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        if name not in WITHOUT_PLACES and not ctx.resilient_parsing:
            from tidegate.cli.core.settings_file import from_settings_file

            ctx.with_resource(from_settings_file(rest))
        return name, listed and command(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke(ctx)
        finally:
            _words.clear()

    def _invoke(self, ctx: Any) -> Any:
        def refuse(text: str) -> None:
            print_message(without_urls(text, ctx.meta[WORDS]))

        try:
            with _warnings_printed(), terminated_like_ctrl_c():
                done = super().invoke(ctx)
                sys.stdout.flush()
                return done
        except USAGE_ERROR as error:
            error.message = without_urls(error.message, ctx.meta[WORDS])
            if not error.message and getattr(error.param, "name", None) in IN_SETTINGS:  # it is missing
                error.message = SETTINGS_HELP
            raise
        except ModuleNotFoundError as error:
            from tidegate.base.extras import missing

            lacks = missing(f"`{ctx.info_name} {ctx.invoked_subcommand or ''}".rstrip() + "`", error)
            refuse(f"{type(lacks).__name__}: {lacks}")
            raise typer.Exit(lacks.exit_code) from None
        except TidegateError as error:
            refuse(f"{type(error).__name__}: {error}{_next_step(error)}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print_message("interrupted: decided versions stay decided, and the command may be run again")
            raise typer.Exit(INTERRUPTED) from None
        except typer.Abort:  # Ctrl-C, or the end of the input, at a prompt
            print_message("nothing was changed")
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # `tidegate scan ... | head`
                drop_output()
                raise typer.Exit(NOBODY_READS) from None
            where = "" if error.filename is None else f": {error.filename}"
            refuse(
                f"{error.strerror or error}{where}; look at the path and who may use it, then run it again"
            )
            raise typer.Exit(TidegateError.exit_code) from None


def without_urls(text: str, words: Sequence[str]) -> str:
    """Remove the logins of these words from the message: it repeats a misplaced URL as it was given."""
    from tidegate.base.text import brief
    from tidegate.base.urls import redact

    values = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in words]
    values += [value for name, value in os.environ.items() if name.startswith("TIDEGATE_")]
    for value in sorted(filter(MAY_LOG_IN, values), key=len, reverse=True):
        named = NAMED.fullmatch(value)
        name, url = named.groups() if named else ("", value)
        for form in (value, str(Path(value))):
            for written in (brief(form), repr(form)[1:-1], form):  # a message cuts what is long
                text = text.replace(written, f"{name}{redact(url)}")
    return text


def drop_output() -> None:
    """Discard the output that is still buffered, so that the interpreter's end does not fail
    because of it.
    """
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _next_step(error: TidegateError) -> str:
    """Return the advice for a server that is away, from code that does not know the commands."""
    away, text = isinstance(error, StoreUnavailableError | WalUnavailableError), str(error)
    if not away or "`tidegate doctor`" in text:
        return ""
    hint = "look whether" in text  # by code that knows the cause
    return (
        "; see `tidegate doctor`" if hint else "; look whether it runs and can be reached: `tidegate doctor`"
    )


class _WarningPrinter(logging.Handler):
    """A handler that prints each warning of the library once, without those of a server's client below it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.name == LOGGER and text not in self._printed:
            self._printed.add(text)
            print_message(f"{record.levelname.lower()}: {text}")


@contextlib.contextmanager
def _warnings_printed() -> Iterator[None]:
    logger, printer = logging.getLogger(LOGGER), _WarningPrinter()
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


def print_message(text: str) -> None:
    """Print a message for a person on standard error; quoted text in it cannot control the terminal."""
    from tidegate.base.text import message_of

    print(f"tidegate: {message_of(placed(text))}", file=sys.stderr)


def placed(text: str) -> str:
    """Return the text as ``with_places``, by the words of the command that runs."""
    if not _words or "`tidegate " not in text:
        return text
    from tidegate.cli.core.placed import with_places

    return with_places(text, _words, options_of)


def options_of(names: Sequence[str]) -> set[str]:
    """Return the options of a command, by its name and the one within a group. There may be no such one."""
    if names[0] not in COMMANDS:
        return set()
    entry = command(names[0])
    if isinstance(entry, TyperGroup) and len(names) > 1:
        entry = entry.commands.get(names[1])
    return {option for param in getattr(entry, "params", ()) for option in param.opts}


def placed_in(facts: Any) -> Any:
    """Return facts whose texts are as ``placed``: dicts, lists, tuples and their values."""
    if isinstance(facts, dict):
        return {name: placed_in(value) for name, value in facts.items()}
    if isinstance(facts, list | tuple):
        of_each = map(placed_in, facts)
        return type(facts)(*of_each) if hasattr(facts, "_fields") else type(facts)(of_each)
    return placed(facts) if isinstance(facts, str) else facts
