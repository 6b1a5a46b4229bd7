"""``tidegate get`` and ``tidegate scan``: read a table."""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli import completing
from tidegate.cli.at import At, snapshot_at
from tidegate.cli.client_config import StoreConfig, store_options
from tidegate.cli.commands import say
from tidegate.cli.common import Json, Namespace, Store, examples, gate_to
from tidegate.cli.output import (
    ROWS_AT_ONCE,
    cell,
    first_of,
    on_terminal,
    print_json,
    print_pairs,
    print_table,
)
from tidegate.cli.parquet import write_parquet
from tidegate.errors import ConfigError, TidegateError
from tidegate.key_groups import INTEGER_LIMITS
from tidegate.values import Value, described, values_of
from tidegate.wal.record import Column, TableSchema

TableName = Annotated[
    str, typer.Argument(metavar="TABLE", help="The table's name.", autocompletion=completing.tables)
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
    booleans as true or false, binary as text, or as 0x and hex digits. Write -- before a
    KEY that starts with a hyphen, and all options before the --.
    """
    options = store_options(store_config)
    with gate_to(store, namespace, options) as gate, snapshot_at(gate, at) as snapshot:
        found = snapshot.table(table)
        schema = found.schema()
        parsed = parse_key(table, key, schema.key)
        value = found.get(parsed)
        version = snapshot.version
    if json:
        print_json({"table": table, "key": parsed, "version": version, "value": value})
    elif value is not None:
        print_pairs(zip(_value_names(schema), _value_cells(schema, value), strict=True))
    if value is None:
        say(f"table {table} has no key {cell(parsed)} at version {version}")
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
        found = snapshot.table(table)
        schema = found.schema()
        rows = first_of(_beginning_with(prefix, table, schema, found.scan()), limit)
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
    """The rows whose key's first column begins so. ConfigError: it is no text and no bytes."""
    if prefix is None:
        return iter(rows)
    first = schema.key[0]
    if first.type not in ("string", "binary"):
        raise ConfigError(f"table {table}: --prefix is for keys of text or bytes, not {first.type}")
    wanted = parse_key(table, [prefix], [first])
    if len(schema.key) == 1:
        return (row for row in rows if row[0].startswith(wanted))
    return (row for row in rows if row[0][0].startswith(wanted))


def _key_cells(schema: TableSchema, key: Any) -> Sequence[Any]:
    return (key,) if len(schema.key) == 1 else key


def _value_names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.value]


def _value_cells(schema: TableSchema, value: Value) -> Sequence[Any]:
    return (value,) if schema.value_format == "bytes" else [value[name] for name in _value_names(schema)]


# -- keys from text -----------------------------------------------------------------------------


def parse_key(table: str, texts: Sequence[str], columns: Sequence[Column]) -> Any:
    """The key that these texts are, by the columns' types: a value, or a tuple of them.

    ConfigError: another number of them, or one is no value of its column.
    """
    if len(texts) != len(columns):
        raise ConfigError(
            f"table {table}: the key is ({described(columns)}): give {len(columns)} KEY, not {len(texts)}"
        )
    values = [_parse(table, text, column) for text, column in zip(texts, columns, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


WRITTEN = {
    "date": re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    "decimal": re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII),
    "whole": re.compile(r"[+-]?\d+", re.ASCII),
}
"""Python reads more than that: 1_0 would be 10, and in newer releases 20261121 a date."""


def _parse(table: str, text: str, column: Column) -> Any:
    kind = column.type.partition("(")[0]
    written = WRITTEN.get("whole" if kind in INTEGER_LIMITS else kind)
    try:
        if written is not None and written.fullmatch(text) is None:
            raise ValueError
        match column.type:
            case "string":
                return text
            case "binary":
                return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "date":
                return datetime.date.fromisoformat(text)
            case "tinyint" | "smallint" | "int" | "bigint":
                return int(text)
            case _:
                return decimal.Decimal(text)
    except (ValueError, KeyError, ArithmeticError):
        raise ConfigError(
            f"table {table}: KEY {text!r} is no {column.type}, the type of key column {column.name}"
        ) from None
