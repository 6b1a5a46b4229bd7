"""The CQL, from the files in ``cql/``: one statement after each ``-- name:``."""

from __future__ import annotations

import functools
import re
from importlib import resources

FILES = ("pointer", "leases", "rows")
NAMED = re.compile(r"^-- name: (\w+)\n(.*?);$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"\btidegate_\w+")
COMMENT = re.compile(r"--[^\n]*")
COLUMN = re.compile(r"(\w+) (uuid|text|bigint|int|blob|timestamp)( static)?( PRIMARY KEY)?(?=,| \))")
KEY = re.compile(r"PRIMARY KEY \(\(([^)]*)\)(?:, ([^)]*))?\)")


@functools.cache
def statements() -> dict[str, str]:
    """Return every statement by its name. Names are unique over all files."""
    by_name: dict[str, str] = {}
    for file in FILES:
        for name, cql in NAMED.findall(_text(file)):
            assert name not in by_name, name
            by_name[name] = " ".join(cql.split())
    return by_name


@functools.cache
def tables() -> dict[str, str]:
    """Return the CREATE TABLE of each table, in the order of the file."""
    parts = (" ".join(part.split()) for part in COMMENT.sub("", _text("schema")).split(";"))
    return {part.removeprefix("CREATE TABLE IF NOT EXISTS ").split(" ")[0]: part for part in parts if part}


@functools.cache
def shapes() -> dict[str, dict[str, str]]:
    """Return each table's columns, in the form of ``shape``."""
    return {table: _shape(made) for table, made in tables().items()}


def shape(kind: str, type_: str, position: int, order: str) -> str:
    """Describe a column, from its row in system_schema.columns."""
    ordinal = f" {position + 1}" if kind in ("partition_key", "clustering") else ""
    return f"{type_}, {kind}{ordinal}{f' {order}' if order == 'desc' else ''}"


def _shape(create: str) -> dict[str, str]:
    columns = [(name, type_, static, key) for name, type_, static, key in COLUMN.findall(create)]
    key_clause = KEY.search(create)
    partition = key_clause[1].split(", ") if key_clause else [name for name, _, _, key in columns if key]
    clustering = key_clause[2].split(", ") if key_clause and key_clause[2] else []
    shapes = {}
    for name, type_, static, _ in columns:
        kind, position = ("static" if static else "regular"), -1
        for of, names in (("partition_key", partition), ("clustering", clustering)):
            if name in names:
                kind, position = of, names.index(name)
        shapes[name] = shape(kind, type_, position, "desc" if f"{name} DESC" in create else "asc")
    return shapes


def within(cql: str, keyspace: str) -> str:
    """Return the statement with its tables in this keyspace."""
    return TABLE.sub(lambda table: f"{keyspace}.{table[0]}", cql)


def _text(file: str) -> str:
    return (
        resources.files("tidegate.sinks.cassandra")
        .joinpath("cql")
        .joinpath(f"{file}.cql")
        .read_text(encoding="utf-8")
    )
