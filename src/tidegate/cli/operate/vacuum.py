"""``tidegate vacuum``: removal of what no reader can reach any more."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from tidegate.cli.core.config_files import StoreConfigs, stores_given
from tidegate.cli.core.options import Json, Namespace, Stores, examples
from tidegate.cli.core.output import print_json
from tidegate.sinks.open_store import open_store
from tidegate.status.stores import no_namespace

EXAMPLES = examples(
    "tidegate vacuum --dry-run --store sqlite:///data/store --namespace flights",
    "tidegate vacuum --store sqlite:///data/store --namespace flights",
)


def vacuum(
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Redis: scan all keys of the server.")] = False,
    json: Json = False,
) -> None:
    """Drop what no reader can reach any more and retirement has missed.

    Rows that were replaced at or below the horizon, the writer's notes of retired versions,
    leases that ran out. Readers and a writer may go on meanwhile. No version becomes
    unreadable: the horizon does not move. The files keep their size; the room is used again.
    """
    ats = stores_given(store, store_config)
    every: list[dict[str, Any]] = []
    for at in ats:
        kept = open_store(at.url, namespace, at.options)
        try:
            if kept.identity() is None:
                raise no_namespace(namespace, at.url)
            gone = kept.vacuum(dry_run=dry_run, thorough=thorough)
            horizon = kept.pointer().horizon
        finally:
            kept.close()
        facts = {"namespace": namespace, "dry_run": dry_run, "horizon": horizon}
        unsearched = "" if thorough else kept.unsearched
        every.append(
            {**facts, **msgspec.structs.asdict(gone)} | ({"unsearched": unsearched} if unsearched else {})
        )
        if not json:
            verb = "would go" if dry_run else "gone"
            whose = f"store {at.name}: " * (len(ats) > 1)
            print(
                f"{whose}{verb}: {gone.rows} rows, notes of {gone.notes} sealed versions of key groups,"
                f" {gone.leases} leases, {gone.entries} catalog entries (horizon: version {horizon})"
            )
            if unsearched:
                print(f"not looked for: {unsearched}")
    if json:
        of_each = [{"store": at.name, **one} for at, one in zip(ats, every, strict=True)]
        print_json(every[0] if len(ats) == 1 else {"namespace": namespace, "stores": of_each})
