"""``tidegate recover``: roll forward of decided versions, without Spark."""

from __future__ import annotations

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
    examples,
    made_here,
)
from tidegate.cli.core.output import print_json
from tidegate.cli.core.stores import fail_if_behind, print_standings, stores_as_json
from tidegate.committers.apply.processes import LocalApply
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.local_coordinator import coordinator_for, followers_in
from tidegate.committers.operations.finish import finish_decided
from tidegate.options import Options

DiscardLost = Annotated[
    bool,
    typer.Option("--discard-lost", help="Remove what a decision that the log lost has left in the store."),
]
EXAMPLES = examples(
    "tidegate recover --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


def recover(  # noqa: PLR0913 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    jobs: Jobs = None,
    *,
    discard_lost: DiscardLost = False,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Make every decided version visible, without Spark.

    It reads the log alone: for when the query is down after a decision and readers cannot wait
    for its restart. When everything decided is visible already, nothing is written. Refused
    while a writer is running, since it would fence that writer. A large version is applied in
    several processes; all end with the command, however it ends.

    Exit code 10 when the store has begun a version that the log lacks: the log lost its last records.
    Restore the newest copy of the log if there is one. Else `--discard-lost` removes what the lost attempt
    wrote, none of which is visible. Its batch was decided once: with commit="sync" Spark gives it again when
    the query starts; with commit="pipelined" Spark may count it as done, so set the checkpoint back to right
    before it, or bring its rows in by a load. Stop all drivers first, old ones too.
    """
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with coordinator_for(where, Options(allow_unsafe=allow_unsafe), jobs) as coordinator:
        made_here(coordinator)
        coordinator.discard_lost = discard_lost
        others = followers_in(coordinator, jobs)
        done = finish_decided(
            coordinator,
            others,
            "tidegate recover",
            force=force,
            starting=lambda: _start_processes(coordinator),
        )
    recovered, visible, standings = done
    discarded = [*coordinator.discarded, *(one for other in others for one in other.discarded)]
    if json:
        facts = {"namespace": namespace, "recovered": recovered, "visible": visible}
        if discard_lost:
            facts["discarded"] = [{"version": one.version, "attempt": one.attempt} for one in discarded]
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
        fail_if_behind(standings)
        return
    for one in discarded:
        print(f"discarded: attempt {one.attempt} of version {one.version}, which the log lacks")
    if recovered:
        print(f"made visible: version {', '.join(map(str, recovered))}; version {visible} is visible now")
    elif visible:
        print(f"nothing to recover: version {visible} is visible, and it is the last one decided")
    else:
        print("nothing to recover: no version was decided yet")
    print_standings(standings)
    fail_if_behind(standings)


def _start_processes(coordinator: Coordinator) -> None:
    """Start the processes while the namespace is being opened: a version's size is known only later."""
    if isinstance(coordinator.apply_on_executors, LocalApply):
        coordinator.apply_on_executors.start()
