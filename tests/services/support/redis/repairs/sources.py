"""Namespaces whose log holds less than their store, and the commands that put back what was lost."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from services.support.redis.query import Query
from tidegate.cli import app
from tidegate.committers.exports.export import export


def run(query: Query, command: str, *more: str):
    where = [f"--wal={query.wal}", f"--namespace={query.namespace}"]
    if not any(one.startswith("--store=") for one in more):
        where.append(f"--store={query.url}")
    return CliRunner().invoke(app, [command, *where, *more], prog_name="tidegate")


def trimmed(query: Query, versions: int = 9):
    driver = query.run(versions, summary_every=1)
    query.tidy(driver)
    return driver


def from_export(query: Query, folder: Path) -> str:
    store = query.store()
    export(store, store.identity(), store.pointer().visible - 1, folder / "exported")
    return str(folder / "exported")
