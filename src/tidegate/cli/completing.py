"""Completion of names in the shell where asking is cheap: in a store in files. Never an error."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import typer

from tidegate.errors import TidegateError
from tidegate.sinks.sqlite_files import META_FILE

NAMESPACES_MAX = 200


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """The namespaces in the store's folder that begin so."""
    folder = _folder(ctx)
    found = [] if folder is None else itertools.islice(_names_in(folder), NAMESPACES_MAX)
    return sorted(name for name in found if name.startswith(incomplete))


def aliases(ctx: typer.Context, incomplete: str) -> list[str]:
    """The aliases in the store's folder that begin so."""
    from tidegate.sinks.file_aliases import FileAliases

    folder = _folder(ctx)
    try:
        found = {} if folder is None else FileAliases(folder).all()
    except TidegateError:
        return []
    return sorted(name for name in found if name.startswith(incomplete))[:NAMESPACES_MAX]


def tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """The tables of the namespace's visible version that begin so."""
    import tidegate

    folder = _folder(ctx)
    namespace = ctx.params.get("namespace") or os.environ.get("TIDEGATE_NAMESPACE")
    if folder is None or not namespace:
        return []
    try:
        with tidegate.connect(f"sqlite://{quote(str(folder))}", namespace) as gate:
            return [name for name in gate.tables() if name.startswith(incomplete)]
    except (TidegateError, OSError):
        return []


def _folder(ctx: typer.Context) -> Path | None:
    """The folder of the first store that is given, or stands in the environment; None: it is no folder."""
    given = ctx.params.get("store") or os.environ.get("TIDEGATE_STORE", "").split()
    first = str(given if isinstance(given, str) else [*given, ""][0])
    _, found, path = first.partition("sqlite://")
    return Path(unquote(urlsplit(f"sqlite://{path}").path)) if found and path else None


def _names_in(folder: Path) -> Iterator[str]:
    """Folders have escaped names; the names themselves stand in what is inside."""
    for meta in folder.glob(f"*/{META_FILE}"):
        with contextlib.suppress(sqlite3.Error, ValueError, KeyError, TypeError):
            reader = sqlite3.connect(f"file:{quote(str(meta))}?mode=ro", uri=True, timeout=0.1)
            with contextlib.closing(reader):
                (identity,) = reader.execute("SELECT identity FROM namespace WHERE ready = 1").fetchone()
            yield json.loads(identity)["name"]
