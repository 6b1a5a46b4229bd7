"""Common parameter handling: help layout, refusal of ``memory://`` and of several stores where one is read.

Error messages quote the bad value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from tidegate.base.text import brief
from tidegate.base.urls import redact
from tidegate.errors import ConfigError
from tidegate.options.endpoints import parse_store

URL = re.compile(r"(?:[^=:/]*=)?(?:cassandra|file|kafka|memory|redis|rediss|sqlite):/")
"""A store or a log in the place of a path, which has one slash where the URL had two."""
IN_MEMORY = re.compile(r"(?:[^=:/]*=)?memory:")
"""With a store's name or without."""
PLACES = {
    "wal": ("--wal", "file:///path or kafka://host1:9092,host2:9092"),
    "store": ("--store", "sqlite:///path, redis://host:port or cassandra://host1,host2/keyspace"),
    "new": ("the new store", "sqlite:///path, redis://host:port or cassandra://host1,host2/keyspace"),
}
"""Parameters that are locations: the user's name for each, and its possible values."""
ONE_OF = ("store", "store_config")
"""Parameters of a single store: other commands take several, so the last one would not be what was meant."""
NO_BRACES = str.maketrans("", "", "{}")
OTHERS_WORDS = re.compile(r"Input should be (?:a valid )?([^,]*)")


class ValidatedCommand(TyperCommand):
    """A command that validates its arguments before it does anything."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)  # parsing consumes them
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            _quote_value(error, self._parsed(ctx, words)[0])
            raise
        if not ctx.resilient_parsing:
            _refuse_several(ctx, self._parsed(ctx, words)[2])
            _refuse_memory(ctx.params)
            _refuse_urls(ctx)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return ``get TABLE KEY...``; newer releases of typer put braces around required arguments."""
        return [piece.translate(NO_BRACES) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments by their name alone; newer releases of typer add Python's type."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                kind = param.param_type_name
                rows[kind].append((str(param.metavar), record[1]) if kind == "argument" else record)
        for title, records in zip(("Arguments", "Options"), rows.values(), strict=True):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def _parsed(self, ctx: Any, args: list[str]) -> Any:
        """Return the values as given, and the parameters, each as often as it occurs."""
        return self.make_parser(ctx).parse_args(list(args))


def group(name: str, summary: str, *commands: tuple[Callable[..., None], str, str, str]) -> typer.Typer:
    """Return a group of commands: the function, the name, the line in the list, and the examples of each."""
    app = typer.Typer(
        name=name, help=summary, no_args_is_help=True, add_completion=False, rich_markup_mode=None
    )
    for function, command, line, epilog in commands:
        app.command(name=command, cls=ValidatedCommand, short_help=line, epilog=epilog)(function)
    app.callback()(lambda: None)  # a group of one command is a group, too
    return app


def _quote_value(error: typer.BadParameter, texts: dict[str, Any]) -> None:
    """Add the value to the message of a number parser, in plain words."""
    text = texts.get(str(getattr(error.param, "name", "")))
    if not isinstance(text, str) or repr(text) in error.message:
        return
    match = OTHERS_WORDS.match(error.message)
    if match is None:
        error.message = f"{brief(text)}: {error.message}"
        return
    error.message = f"{brief(text)} must be {'a whole number' if match[1] == 'integer' else match[1]}"


def _refuse_several(ctx: Any, order: Sequence[Any]) -> None:
    for param in ctx.command.params:
        count = sum(1 for one in order if one is param)
        if param.name in ONE_OF and count > 1 and not param.multiple:
            option = param.opts[0]
            raise ConfigError(
                f"{option} is given {count} times, and {ctx.command_path} works with one store: give only"
                f" the {option} of the one that it should use"
            )


def _refuse_memory(params: dict[str, Any]) -> None:
    for name, (option, others) in PLACES.items():
        value = params.get(name)
        for url in value if isinstance(value, list) else [value]:
            if isinstance(url, str) and IN_MEMORY.match(url):
                ref = parse_store(url)
                shown = f"{ref.name}=" * (url != ref.url) + redact(ref.url)
                raise ConfigError(
                    f"{option} {shown}: a place in memory ends with the command, with all that is in it;"
                    f" use {others} (memory:// is for one process, by tidegate's Python functions)"
                )


def _refuse_urls(ctx: Any) -> None:
    """Refuse a URL where a path is wanted: it would make a folder whose name has the login."""
    for param in ctx.command.params:
        value = ctx.params.get(param.name)
        if isinstance(value, Path) and URL.match(str(value)):
            shown = param.metavar if param.param_type_name == "argument" else param.opts[0]
            raise ConfigError(
                f"{shown} is a path on this machine, and not the URL of a store or a log: these go with"
                " --store and --wal; nothing was written"
            )
