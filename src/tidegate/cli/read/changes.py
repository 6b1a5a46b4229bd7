"""``tidegate changes``: the rows that one version wrote into a table, from the log."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.core.config_files import StoreConfig, WalConfig, store_options, wal_options
from tidegate.cli.core.options import Json, Namespace, Store, Wal, examples, gate_to
from tidegate.cli.core.output import ROWS_AT_ONCE, on_terminal, print_json, print_table
from tidegate.cli.core.parquet import write_tables
from tidegate.cli.read.get_scan import TableName
from tidegate.reader.changes import Changes

EXAMPLES = examples(
    "tidegate changes 41 airports",
    "tidegate changes 41 airports --key-group 7 --json",
    "tidegate changes 41 airports --parquet airports-41.parquet",
)


def changes(  # noqa: PLR0913 - its options
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A version that was visible.")],
    table: TableName,
    store: Store,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfig = None,
    wal_config: WalConfig = None,
    *,
    key_group: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only the rows of this key group.")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a Parquet file with the table's columns instead."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the rows that one version wrote into a table: upserts and deletes, as they were decided.

    They are read from the log, by its manifest of the version, so readers need not be able to read
    the version any more. With --json a line {"kind": ..., "key_group": ..., "key": ..., "value": ...}
    for each row; a delete has no value.
    """
    options, log_options = store_options(store_config), wal_options(wal_config)
    with gate_to(store, namespace, options, wal, log_options) as gate:
        rows = gate.changes(version, table, key_group)
        if parquet is None:
            _print(rows, json=json)
            return
        written = write_tables(parquet, rows.arrow_schema, rows.arrow_of, rows)
        facts = {"table": table, "version": version, "rows": written, "file": str(parquet)}
        if json:
            print_json(facts)
        else:
            print(f"{parquet}: {written} rows that version {version} wrote into table {table}")


def _print(rows: Changes, *, json: bool) -> None:
    if json:
        for row in rows:
            facts = {"kind": row.kind, "key_group": row.key_group, "key": row.key, "value": row.value}
            print_json(facts)
        return
    columns = ["kind", "key group", "key", "value"]
    cells = ((row.kind, row.key_group, row.key, row.value) for row in rows)
    if not on_terminal():
        print_table(columns, cells)
        return
    first = list(itertools.islice(cells, 1))
    if not first:
        print(f"version {rows.version} wrote no row into table {rows.table}")
    cells_left = itertools.chain(first, cells)
    while page := list(itertools.islice(cells_left, ROWS_AT_ONCE)):
        print_table(columns, page)
