"""``tidegate recover``: roll forward of decided versions, without Spark."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli.core.operation import Operation, operation, require_namespace
from tidegate.cli.core.options import Jobs, examples
from tidegate.committers.apply.processes import LocalApply
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.sinks.rules.reads import FILLED_FROM

EXAMPLES = examples(
    "tidegate recover --store sqlite:///data/store --wal file:///data/wal --namespace flights",
)


@operation("tidegate recover")
def recover(
    work: Operation,
    *,
    jobs: Jobs = None,
    discard_lost: Annotated[
        bool,
        typer.Option(
            "--discard-lost", help="Remove what a decision that the log lost has left in the store."
        ),
    ] = False,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The query's keep_versions, for the rebuild of a store that lost every row."
        ),
    ] = None,
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
    with work.coordinator(jobs=jobs, keep_versions=keep_versions) as coordinator:
        require_namespace(coordinator)
        coordinator.request = OpenRequest(discard_lost=discard_lost, may_make_again=True)
        others = followers_in(coordinator, jobs)
        recovered, visible, standings = finish_decided(
            coordinator,
            others,
            work.command,
            force=work.force,
            starting=lambda: _start_processes(coordinator),
        )
        cut = recovered and FILLED_FROM < recovered[0] == coordinator.store.pointer().horizon
    discarded = [*coordinator.discarded, *(lost for other in others for lost in other.discarded)]
    facts: dict[str, Any] = {"recovered": recovered, "visible": visible}
    if discard_lost:
        facts["discarded"] = [{"version": lost.version, "attempt": lost.attempt} for lost in discarded]
    lines = [
        f"discarded: attempt {lost.attempt} of version {lost.version}, which the log lacks"
        for lost in discarded
    ]
    if recovered:
        lines.append(
            f"made visible: version {', '.join(map(str, recovered))}; version {visible} is visible now"
        )
        if cut and keep_versions is None:
            lines.append(_readable(recovered, coordinator.store.keep_versions_default))
    elif visible:
        lines.append(f"nothing to recover: version {visible} is visible, and it is the last one decided")
    else:
        lines.append("nothing to recover: no version was decided yet")
    work.report(facts, lines, standings)


def _readable(rebuilt: list[int], default: int) -> str:
    return (
        f"the store had no row: versions {rebuilt[0]} to {rebuilt[-1]} are readable there, by its default of"
        f" {default}. If the query's keep_versions is above that, run `tidegate drop --only-stores --store"
        " NAME=URL --force` for this store alone, then `tidegate recover --keep-versions N`"
    )


def _start_processes(coordinator: Coordinator) -> None:
    """Start the processes while the namespace is being opened: a version's size is known only later."""
    if isinstance(coordinator.apply_on_executors, LocalApply):
        coordinator.apply_on_executors.start()
