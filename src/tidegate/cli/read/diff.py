"""``tidegate diff``: the rows that differ between two versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tidegate.cli.core import completion
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.options import Json, Namespace, Store, examples, gate_to
from tidegate.cli.core.output import ROWS_AT_ONCE, on_terminal, print_json, print_table
from tidegate.cli.core.versions import number_or_time, version_at
from tidegate.reader.diff import Change, Diff

EXAMPLES = examples(
    "tidegate diff 40 41",
    "tidegate diff 40 --stat",
    "tidegate diff 40 41 --table airports --json > airports.jsonl",
    "tidegate diff 2026-11-21T10:00:00Z 2026-11-21T11:00:00Z",
)

Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="TABLE",
        help="Only this table; may be given several times.",
        autocompletion=completion.tables,
    ),
]


def diff(
    store: Store,
    namespace: Namespace,
    before: Annotated[
        str,
        typer.Argument(
            metavar="A", parser=number_or_time, help="A version, or a time; 0: before the first version."
        ),
    ],
    after: Annotated[
        str | None,
        typer.Argument(metavar="B", parser=number_or_time, help="Another; the newest unless given."),
    ] = None,
    table: Tables = None,
    store_config: StoreConfig = None,
    *,
    stat: Annotated[bool, typer.Option("--stat", help="Only how many rows differ in each table.")] = False,
    json: Json = False,
) -> None:
    """Print the rows that differ between versions A and B: added, removed, changed.

    Both versions must still be readable (tidegate history). With --json a line {"table": ...,
    "key": ..., "kind": ..., "before": ..., "after": ...} for each row; before is null where
    the row was added, after where it was removed.
    """
    with gate_to(store, namespace, store_options(store_config)) as gate:
        one, two = version_at(gate, before), version_at(gate, after)
        with gate.diff(one or 0, two, table or None) as differences:
            if stat:
                _print_counts(differences, json=json)
            else:
                _print_rows(differences, json=json)


def _print_counts(differences: Diff, *, json: bool) -> None:
    counts = differences.counts()
    if json:
        print_json({name: of_table._asdict() for name, of_table in counts.items()})
    else:
        print_table(["table", "added", "removed", "changed"], [(name, *of) for name, of in counts.items()])


def _print_rows(differences: Diff, *, json: bool) -> None:
    if json:
        for change in differences:
            print_json(as_json(change))
        return
    rows: Iterator[tuple[Any, ...]] = (
        (change.kind, change.table, change.key, change.before, change.after) for change in differences
    )
    columns = ["kind", "table", "key", "before", "after"]
    first = list(itertools.islice(rows, 1))
    if not on_terminal():
        print_table(columns, itertools.chain(first, rows))
        return
    if not first:
        print("no row differs")
    rows = itertools.chain(first, rows)
    while page := list(itertools.islice(rows, ROWS_AT_ONCE)):
        print_table(columns, page)


def as_json(change: Change) -> dict[str, Any]:
    """Return the change for machines."""
    place = {"table": change.table, "key": change.key}
    return {**place, "kind": change.kind, "before": change.before, "after": change.after}
