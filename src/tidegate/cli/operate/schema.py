"""``tidegate schema rename``: another name for a column."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import examples
from tidegate.cli.core.parameters import group
from tidegate.committers.rename_column import rename_column

RENAME_EXAMPLES = examples("tidegate schema rename aircraft carrier airline")


@operation("tidegate schema rename")
def rename(
    work: Operation,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table.")],
    old: Annotated[str, typer.Argument(metavar="OLD", help="The column's name now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The column's new name.")],
) -> None:
    """Give a value column another name, by one new version.

    Readers find the new name from that version on; older versions keep the old one. No row is written
    again. The old name stays reserved until the table is replaced. The query that writes the table has to
    write the new name from then on: stop it first, and start the changed one. May be repeated.
    See docs/schema-changes.md.
    """
    with work.writer(all_stores=True) as coordinator:
        done = rename_column(coordinator, table, old, new)
        standings = catch_up_others(coordinator)
    result = (
        f"column {old} of table {table} is called {new} already: nothing was written"
        if done.version is None
        else f"version {done.version} is visible: column {old} of table {table} is called {new}"
    )
    facts = {"version": done.version, "recovered": done.recovered}
    work.report(facts, [*made_first(done.recovered), result], standings)


app = group(
    "schema",
    "The columns of tables: rename one.",
    (rename, "rename", "Give a column another name, by one version.", RENAME_EXAMPLES),
)
