"""``tidegate restore``: an older version's content as a new visible version."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.core.config_files import StoreConfigs, WalConfig, endpoints
from tidegate.cli.core.options import (
    AllowUnsafe,
    Force,
    Jobs,
    Json,
    Namespace,
    Stores,
    Wal,
    confirm,
    examples,
    made_here,
)
from tidegate.cli.core.output import print_json
from tidegate.cli.core.stores import fail_if_behind, print_standings, stores_as_json
from tidegate.committers.local_coordinator import coordinator_for, followers_in
from tidegate.committers.opening.open import refuse_if_writer_alive
from tidegate.committers.opening.store_list import refuse_other_stores
from tidegate.committers.operations.restore import Restored
from tidegate.committers.operations.restore import restore as restore_version
from tidegate.options import Options

EXAMPLES = examples(
    "tidegate diff 43 41 --stat",
    "tidegate restore --to 41",
    "tidegate restore --to 41 --reprocess --yes",
)


def restore(  # noqa: PLR0913 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    to: Annotated[int, typer.Option("--to", metavar="VERSION", min=1, help="The version to go back to.")],
    wal_config: WalConfig = None,
    jobs: Jobs = None,
    *,
    reprocess: Annotated[
        bool,
        typer.Option(
            "--reprocess", help="Undone batches may be replayed, by a checkpoint that was set back."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make a new version that holds what an older one held, in all tables.

    Nothing is taken back: readers go from the visible version to the new one, in one step, and
    the versions in between stay readable as long as any other. The version must still be kept
    (tidegate history); tidegate diff shows what would change. Rows that have expired since stay gone.

    A query that keeps running continues with its next batch on the restored state. The rows of the
    undone batches are not written again. With --reprocess it may: set the query's checkpoint back
    to the batch that the command names, and start it. Stop the query first: restore refuses
    while a writer is running.
    """
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with coordinator_for(where, Options(allow_unsafe=allow_unsafe), jobs) as coordinator:
        made_here(coordinator)
        refuse_other_stores(coordinator, coordinator.folded)
        refuse_if_writer_alive(coordinator, "tidegate restore", force=force)
        visible = coordinator.folded.last_version
        if not yes and to < visible:  # else it is refused, and nothing would be undone
            confirm(
                f"what changed in namespace {namespace} from version {to + 1} to {visible} would be undone"
            )
        done = restore_version(coordinator, to, reprocess=reprocess)
        standings = [each.catch_up() for each in followers_in(coordinator, jobs)]
    if json:
        kept = done.kept.batch_id if done.kept else None
        facts = {"namespace": namespace, "restored": to, "visible": done.visible, "recovered": done.recovered}
        facts |= {"generation": done.generation, "last_batch": kept}
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
    else:
        _tell(done, to)
        print_standings(standings)
    fail_if_behind(standings)


def _tell(done: Restored, to: int) -> None:
    if done.recovered:
        print(f"made visible first: version {', '.join(map(str, done.recovered))}")
    again = "" if done.made else " (it was made before)"
    print(f"version {done.visible} is visible{again}, and holds what version {to} held")
    if done.generation is not None and done.kept is not None:
        last = done.kept.batch_id
        print(
            f"batches above {last} may be replayed: set the checkpoint of query {done.kept.lineage} back to"
        )
        print(f"batch {last} (remove what is above {last} in its folders offsets and commits, hidden files")
        print("too), and start it")
    elif done.generation is not None:
        print("all batches may be replayed: which one is the last that it holds is no longer known")
    sys.stdout.flush()
