"""``tidegate vacuum``: drop what no reader can reach any more."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tidegate.cli.common import Json, Namespace, Store, examples, no_namespace
from tidegate.cli.output import print_json
from tidegate.sinks.open_store import open_store

EXAMPLES = examples(
    "tidegate vacuum --dry-run --store sqlite:///data/store --namespace flights",
    "tidegate vacuum --store sqlite:///data/store --namespace flights",
)


def vacuum(
    store: Store,
    namespace: Namespace,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Drop what no reader can reach any more and retirement has missed.

    Rows that were replaced at or below the horizon, the writer's notes of retired versions,
    leases that ran out. Readers and a writer may go on meanwhile. No version becomes
    unreadable: the horizon does not move. The files keep their size; the room is used again.
    """
    kept = open_store(store, namespace)
    try:
        if kept.identity() is None:
            raise no_namespace(namespace, store)
        gone = kept.vacuum(dry_run=dry_run)
        horizon = kept.pointer().horizon
    finally:
        kept.close()
    if json:
        facts = {"namespace": namespace, "dry_run": dry_run, "horizon": horizon}
        print_json({**facts, **msgspec.structs.asdict(gone)})
        return
    verb = "would go" if dry_run else "gone"
    print(
        f"{verb}: {gone.rows} rows, notes of {gone.notes} sealed versions of key groups,"
        f" {gone.leases} leases, {gone.entries} catalog entries (horizon: version {horizon})"
    )
