"""``tidegate quarantine list``: the rows that were refused, and why."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Annotated, Any

import typer

from tidegate.cli.at import At, snapshot_at
from tidegate.cli.client_config import StoreConfig, store_options
from tidegate.cli.commands import say
from tidegate.cli.common import Json, Namespace, Store, examples, gate_to
from tidegate.cli.output import print_json, print_table
from tidegate.wal.quarantine import TABLE

LIST_EXAMPLES = examples("tidegate quarantine list", "tidegate quarantine list --json > refused.jsonl")

app = typer.Typer(
    name="quarantine",
    help="The rows that a query with on_bad_record='quarantine' refused.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """So that ``list`` stays a word of its own, though it is the only one."""


def list_(
    store: Store,
    namespace: Namespace,
    at: At = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show so many rows at most.")] = 100,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """List refused rows: their table, why they were refused, their key and how large they were.

    With --json a line for each row, with key and value as base64, and without a limit. Writes nothing.
    """
    with gate_to(store, namespace, store_options(store_config)) as gate, snapshot_at(gate, at) as snapshot:
        if TABLE not in snapshot.tables():
            say(f"namespace {namespace} has no refused rows at version {snapshot.version}")
            return
        rows = (value for _, value in snapshot.table(TABLE).scan())
        if json:
            for row in rows:
                print_json(row)
            return
        shown = list(itertools.islice(rows, limit))
        print_table(["table", "cause", "key", "key bytes", "value bytes"], map(_cells, shown))
        counts = Counter(row["table"] for row in itertools.chain(shown, rows))
        totals = ", ".join(f"{count} of table {table}" for table, count in sorted(counts.items()))
        say(f"refused at version {snapshot.version}: {totals or 'none'}")


def _cells(row: Any) -> list[Any]:
    key = row["key"]
    shown = None if key is None else repr(key[:60])[2:-1] + ("..." if len(key) > 60 else "")
    return [row["table"], row["cause"], shown, row["key_bytes"], row["value_bytes"]]


app.command(name="list", epilog=LIST_EXAMPLES)(list_)
