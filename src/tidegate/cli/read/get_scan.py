"""``tidegate get`` and ``tidegate scan``: reads of a table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.base.text import cell
from tidegate.cli.core import completion
from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.options import Json, Namespace, Store, examples, gate_to
from tidegate.cli.core.output import ROWS_AT_ONCE, first_of, on_terminal, print_json, print_pairs, print_table
from tidegate.cli.core.parquet import write_parquet
from tidegate.cli.core.versions import At, snapshot_at
from tidegate.errors import ConfigError, TidegateError
from tidegate.values.decode import Value, by_column, values_of
from tidegate.values.key_text import parse_key
from tidegate.wal.record import TableSchema

TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="The table's name.", autocompletion=completion.tables)
]


GET_EXAMPLES = examples(
    "tidegate get aircraft N14228",
    "tidegate get legs EWR 1545 --at 41 --json",
)


def get(
    table: TableName,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="The key: one KEY for each of its columns, in order."),
    ],
    store: Store,
    namespace: Namespace,
    at: At = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """Print the value of one key; exit code 1 when it is absent.

    Keys are written as text and read by the type of their column: dates as 2026-11-21,
    timestamps as 2026-11-21T10:00:00Z (timestamp_ntz without the Z), booleans as true or
    false, binary as text, or as 0x and hex digits. Write -- before a KEY that starts with
    a hyphen, and all options before the --.
    """
    options = store_options(store_config)
    with gate_to(store, namespace, options) as gate, snapshot_at(gate, at) as snapshot:
        reader = snapshot.table(table)
        schema = reader.schema()
        parsed = parse_key(table, key, schema.key)
        value = reader.get(parsed)
        version = snapshot.version
    if json:
        print_json({"table": table, "key": parsed, "version": version, "value": value})
    elif value is not None:
        print_pairs(zip(_value_names(schema), _value_cells(schema, value), strict=True))
    if value is None:
        print_message(f"table {table} has no key {cell(parsed)} at version {version}")
        raise typer.Exit(TidegateError.exit_code)


SCAN_EXAMPLES = examples(
    "tidegate scan airports --limit 20",
    "tidegate scan airports --at 41 --json > airports.jsonl",
    "tidegate scan aircraft --prefix N1 --parquet aircraft.parquet",
)


def scan(  # noqa: PLR0913 - its options
    table: TableName,
    store: Store,
    namespace: Namespace,
    at: At = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Stop after N rows."),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only keys that begin with it: their first column, a string or binary one."
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a Parquet file with the table's columns instead."),
    ] = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """Print all rows of a table at one version, in no particular order.

    With --json a line {"key": ..., "value": ...} for each row. Rows are printed, or written to
    the Parquet file, as they are read: memory does not grow with the table.
    """
    options = store_options(store_config)
    with gate_to(store, namespace, options) as gate, snapshot_at(gate, at) as snapshot:
        reader = snapshot.table(table)
        schema = reader.schema()
        rows = first_of(_beginning_with(prefix, table, schema, reader.scan()), limit)
        if parquet is not None:
            written = write_parquet(parquet, values_of(schema), rows)
            facts = {"table": table, "version": snapshot.version, "rows": written, "file": str(parquet)}
            if json:
                print_json(facts)
            else:
                print(f"{parquet}: {written} rows of table {table} at version {snapshot.version}")
            return
        if json:
            for key, value in rows:
                print_json({"key": key, "value": value})
            return
        columns = [column.name for column in schema.key] + _value_names(schema)
        cells = ((*_key_cells(schema, key), *_value_cells(schema, value)) for key, value in rows)
        if not on_terminal():
            print_table(columns, cells)
            return
        while page := list(itertools.islice(cells, ROWS_AT_ONCE)):
            print_table(columns, page)


def _beginning_with(
    prefix: str | None, table: str, schema: TableSchema, rows: Iterable[tuple[Any, Value]]
) -> Iterator[tuple[Any, Value]]:
    """Return the rows with this prefix of the key's first column. Raises: ConfigError, it is no
    text or bytes.
    """
    if prefix is None:
        return iter(rows)
    first = schema.key[0]
    if first.type not in ("string", "binary"):
        raise ConfigError(f"table {table}: --prefix is for keys of text or bytes, not {first.type}")
    parsed = parse_key(table, [prefix], [first])
    if len(schema.key) == 1:
        return (row for row in rows if row[0].startswith(parsed))
    return (row for row in rows if row[0][0].startswith(parsed))


def _key_cells(schema: TableSchema, key: Any) -> Sequence[Any]:
    return (key,) if len(schema.key) == 1 else key


def _value_names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


def _value_cells(schema: TableSchema, value: Value) -> Sequence[Any]:
    if schema.value_format == "bytes":
        return (value,)
    cells = by_column(schema, value)
    return [cells[name] for name in _value_names(schema)]
