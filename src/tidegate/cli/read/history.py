"""``tidegate history``: the versions that can be read."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfig, store_options
from tidegate.cli.core.options import Json, Namespace, Store, examples, gate_to
from tidegate.cli.core.output import print_json, print_table
from tidegate.status.log_size import short_span

EXAMPLES = examples(
    "tidegate history --store sqlite:///data/store --namespace flights",
    "tidegate history --limit 10 --json | jq '.[].changes'",
)


def history(
    store: Store,
    namespace: Namespace,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the newest N versions."),
    ] = None,
    store_config: StoreConfig = None,
    *,
    json: Json = False,
) -> None:
    """List the versions that can still be read, oldest first."""
    with gate_to(store, namespace, store_options(store_config)) as gate:
        versions = gate.history(limit)
    if json:
        print_json([dataclasses.asdict(info) for info in versions])
        return
    if not versions:
        print_message(f"namespace {namespace} has no visible version yet")
        return
    print_table(
        ["version", "from", "decided", "visible after", "tasks", "changes"],
        [
            (
                info.version,
                info.origin,
                info.decided_at,
                short_span((info.published_at - info.decided_at).total_seconds()),
                info.parallelism,
                ", ".join(
                    [
                        *(f"{table} {count}" for table, count in sorted(info.changes.items())),
                        *(f"{table} dropped" for table in info.dropped),
                    ]
                )
                or "none",
            )
            for info in versions
        ],
    )
