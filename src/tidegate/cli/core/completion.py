"""Shell completion of names where it is cheap: in file-based stores. Never raises."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from tidegate.base.urls import quoted_path
from tidegate.errors import TidegateError
from tidegate.sinks.sqlite.discovery import folder_at, namespaces_in

ALIASES_MAX = 200


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces in the store's folder with this prefix."""
    folder = _folder(ctx)
    return [name for name in (namespaces_in(folder) if folder else []) if name.startswith(incomplete)]


def aliases(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the aliases in the store's folder with this prefix."""
    from tidegate.sinks.sqlite.aliases import FileAliases

    folder = _folder(ctx)
    try:
        names = {} if folder is None else FileAliases(folder).all()
    except TidegateError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))[:ALIASES_MAX]


def tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tables of the namespace's visible version with this prefix."""
    import tidegate

    folder = _folder(ctx)
    namespace = ctx.params.get("namespace") or os.environ.get("TIDEGATE_NAMESPACE")
    if folder is None or not namespace:
        return []
    try:
        with tidegate.connect(f"sqlite://{quoted_path(folder)}", namespace) as gate:
            return [name for name in gate.tables() if name.startswith(incomplete)]
    except (TidegateError, OSError):
        return []


def _folder(ctx: typer.Context) -> Path | None:
    """Return the folder of the first store from the arguments or the environment; None: it has none."""
    store = ctx.params.get("store") or os.environ.get("TIDEGATE_STORE", "").split()
    return folder_at(str(store if isinstance(store, str) else [*store, ""][0]))
