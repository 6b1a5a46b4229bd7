"""Shared options of commands, and the objects that they open."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Annotated, Any

import typer

from tidegate.cli.core import completion
from tidegate.committers.apply.processes import JOBS_MAX
from tidegate.errors import ConfigError
from tidegate.options.durations import duration_us
from tidegate.options.endpoints import parse_store
from tidegate.reader.gate import Gate
from tidegate.reader.open_gate import connect

_STORE_HELP = (
    "The store: sqlite:///path, redis://host:port, redis+sentinel://..., redis+cluster://... or"
    " cassandra://host1,host2/keyspace."
)
_WAL_HELP = "The write-ahead log: file:///path, or kafka://broker1:9092,broker2:9092."

_SEVERAL_HELP = " Several: --store NAME=URL for each, the primary first. [env var: TIDEGATE_STORE]"


def split_stores(text: str) -> list[str]:
    """Split the stores in a variable: ``URL`` or ``NAME=URL``, with white space between them."""
    return [
        one for one in re.split(r"\s+(?=(?:[^\s=:/@]+=)?[A-Za-z][A-Za-z0-9+.-]*://)", text.strip()) if one
    ]


def _stores_of_environment() -> list[str]:
    return split_stores(os.environ.get("TIDEGATE_STORE", ""))


def _first_url(text: str) -> str:
    """Return the URL of the first store; a reader takes the first of several in the environment."""
    return parse_store((split_stores(text) or [text])[0]).url


Store = Annotated[
    str, typer.Option(envvar="TIDEGATE_STORE", metavar="URL", help=_STORE_HELP, parser=_first_url)
]
MaybeStore = Annotated[
    str | None,
    typer.Option("--store", envvar="TIDEGATE_STORE", metavar="URL", help=_STORE_HELP, parser=_first_url),
]
Stores = Annotated[
    list[str],
    typer.Option(
        "--store",
        default_factory=_stores_of_environment,
        show_default=False,
        metavar="URL",
        help=_STORE_HELP + _SEVERAL_HELP,
    ),
]
Wal = Annotated[str, typer.Option(envvar="TIDEGATE_WAL", metavar="URL", help=_WAL_HELP)]
MaybeWal = Annotated[
    str | None,
    typer.Option("--wal", envvar="TIDEGATE_WAL", metavar="URL", help=_WAL_HELP),
]
Namespace = Annotated[
    str,
    typer.Option(
        envvar="TIDEGATE_NAMESPACE",
        metavar="NAME",
        help="The namespace's name.",
        autocompletion=completion.namespaces,
    ),
]
MaybeNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="TIDEGATE_NAMESPACE",
        metavar="NAME",
        help="The namespace's name.",
        autocompletion=completion.namespaces,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Force = Annotated[
    bool, typer.Option("--force", help="Go on although a writer seems to be running; it will be fenced.")
]
For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="End after this time, as in 90s or 10min.")
]
Limit = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0.1, help="Seconds that a log or store may take to answer."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AllowUnsafe = Annotated[
    bool,
    typer.Option(
        "--allow-unsafe",
        help="Continue despite failed safety checks (see tidegate doctor); each is printed as a warning.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        max=JOBS_MAX,
        help="Apply a large version in N processes; default: one for each CPU, at most 8.",
    ),
]


def gate_to(
    store: str,
    namespace: str,
    options: dict[str, Any],
    wal: str | None = None,
    wal_options: dict[str, Any] | None = None,
) -> Gate:
    """Return a reader's gate. By an alias: to its current namespace, for as long as the command runs."""
    gate = connect(store, namespace, options, wal=wal, wal_options=wal_options)
    if gate.namespace == namespace:
        return gate
    with gate:
        return connect(store, gate.namespace, options, wal=wal, wal_options=wal_options)


def end_of(for_: str | None) -> float | None:
    """Return the end of ``--for``, by the monotonic clock. Raises: ConfigError, it is no duration."""
    if for_ is None:
        return None
    return time.monotonic() + duration_us("--for", float(for_) if for_.isdecimal() else for_) / 1e6


def confirm(effect: str) -> None:
    """Ask whether to continue. Raises: ConfigError, the answer is no, or there is no terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{effect}: add --yes to do that without being asked")
    if not typer.confirm(f"{effect[0].upper()}{effect[1:]}. Go on?", err=True):
        raise ConfigError("nothing was written")


def examples(*lines: str) -> str:
    """Format the end of a command's help; the leading mark keeps the line breaks."""
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])
