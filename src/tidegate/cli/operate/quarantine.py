"""``tidegate quarantine list | export | drop``: refused rows, their causes, and their way back."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Json, Namespace, Store, Yes, examples, gate_to
from tidegate.cli.core.output import first_of, print_json, print_table
from tidegate.cli.core.parameters import group
from tidegate.cli.core.parquet import write_tables
from tidegate.cli.core.versions import At, snapshot_at
from tidegate.cli.operate.quarantine_rows import ids_of, schema_of, typed
from tidegate.committers.operations.quarantine_drop import release
from tidegate.errors import ConfigError
from tidegate.values.decode import values_of
from tidegate.wal.staging.quarantine import TABLE

LIST_EXAMPLES = examples("tidegate quarantine list", "tidegate quarantine list --json > refused.jsonl")
EXPORT_EXAMPLES = examples("tidegate quarantine export aircraft refused.parquet")
DROP_EXAMPLES = examples("tidegate quarantine drop refused.parquet")


def list_(
    store: Store,
    namespace: Namespace,
    at: At = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most N rows.")] = 100,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """List refused rows: their table, why they were refused, their key and how large they were.

    With --json a line for each row, with key and value as base64, and without a limit.
    """
    with gate_to(store, namespace, store_options(store_config)) as gate, snapshot_at(gate, at) as snapshot:
        if TABLE not in snapshot.tables():
            print_message(f"namespace {namespace} has no refused rows at version {snapshot.version}")
            return
        rows = (value for _, value in snapshot.table(TABLE).scan())
        if json:
            for row in rows:
                print_json(row)
            return
        shown = list(first_of(rows, limit))
        print_table(["table", "cause", "key", "key bytes", "value bytes"], map(_cells, shown))
        counts = Counter(str(row["table"]) for row in itertools.chain(shown, rows))
        totals = ", ".join(f"{count} of table {table}" for table, count in sorted(counts.items()))
        print_message(f"refused at version {snapshot.version}: {totals or 'none'}")


def _cells(row: Any) -> list[Any]:
    key = row["key"]
    shown = None if key is None else repr(key[:60])[2:-1] + ("..." if len(key) > 60 else "")
    return [row["table"], row["cause"], shown, row["key_bytes"], row["value_bytes"]]


def export(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table that the rows were for.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The Parquet file to write.")],
    store: Store,
    namespace: Namespace,
    at: At = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """Write the refused rows of one table to a Parquet file, with the table's own columns.

    Beside these the columns _id, _cause and _key: which row it is, why it was refused, its key as it came.
    Key columns are null where that is no key. Rows that cannot be given whole are left out, and counted:
    tidegate scan _quarantine --parquet FILE gives all there is of them. Writes nothing but the file.

    To have the rows again: mend them, write them once more (sink.load with a token of its own), then
    tidegate quarantine drop FILE. See docs/writing.md, Refused rows.
    """
    left: Counter[str] = Counter()
    with gate_to(store, namespace, store_options(store_config)) as gate, snapshot_at(gate, at) as snapshot:
        if table not in snapshot.tables():
            raise ConfigError(
                f"there is no table {table} at version {snapshot.version}, so its columns are not known:"
                f" `tidegate scan {TABLE} --parquet FILE` gives refused rows as bytes"
            )
        values = values_of(snapshot.table(table).schema())
        of_table = (
            (str(row_id), row)
            for row_id, row in (snapshot.table(TABLE).scan() if TABLE in snapshot.tables() else ())
            if row["table"] == table
        )
        schema, version = schema_of(values), snapshot.version
        written = write_tables(
            file, schema, lambda rows: pa.Table.from_pylist(rows, schema), typed(values, of_table, left)
        )
    if json:
        facts = {
            "table": table,
            "version": version,
            "rows": written,
            "left_out": dict(left),
            "file": str(file),
        }
        print_json(facts)
    else:
        print(f"{file}: {written} refused rows of table {table} at version {version}")
    for why, count in sorted(left.items()):
        print_message(
            f"warning: {count} rows are not in it ({why}): `tidegate scan {TABLE} --parquet FILE` has them"
        )


@operation("tidegate quarantine drop")
def drop(
    work: Operation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of tidegate quarantine export.")],
    *,
    yes: Yes = False,
) -> None:
    """Remove the rows in a file from the quarantine, in one new version.

    FILE is one of tidegate quarantine export, or of tidegate scan _quarantine --parquet. Rows that are not
    in it, such as those that were refused since, stay. Do this when the rows were written again, or are
    not wanted. May be repeated. Stop the query first: it refuses while a writer is running.
    """
    ids = ids_of(file)
    with work.writer(all_stores=True) as coordinator:
        if not yes:
            effect = f"{len(ids)} refused rows of namespace {work.namespace} would be removed"
            work.confirm(coordinator, effect)
        done = release(coordinator, ids)
        standings = catch_up_others(coordinator)
    result = (
        "none of these rows is in the quarantine: nothing was written"
        if done.version is None
        else f"version {done.version} is visible: {done.rows} rows have left the quarantine"
    )
    facts = {"version": done.version, "rows": done.rows, "recovered": done.recovered}
    work.report(facts, [*made_first(done.recovered), result], standings)


app = group(
    "quarantine",
    "The rows that a query with on_bad_record='quarantine' refused: list, export, drop them.",
    (list_, "list", "List refused rows, and why.", LIST_EXAMPLES),
    (export, "export", "Write a table's refused rows to a Parquet file.", EXPORT_EXAMPLES),
    (drop, "drop", "Remove a file's rows from the quarantine.", DROP_EXAMPLES),
)
