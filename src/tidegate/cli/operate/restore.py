"""``tidegate restore``: an older version's content as a new visible version."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Jobs, Yes, confirm, examples
from tidegate.committers.operations.restore import Restored
from tidegate.committers.operations.restore import restore as restore_version

EXAMPLES = examples(
    "tidegate diff 43 41 --stat",
    "tidegate restore --to 41",
    "tidegate restore --to 41 --reprocess --yes",
)


@operation("tidegate restore")
def restore(
    work: Operation,
    to: Annotated[int, typer.Option("--to", metavar="VERSION", min=1, help="The version to go back to.")],
    *,
    jobs: Jobs = None,
    reprocess: Annotated[
        bool,
        typer.Option(
            "--reprocess", help="Undone batches may be replayed, by a checkpoint that was set back."
        ),
    ] = False,
    yes: Yes = False,
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
    with work.writer(jobs=jobs, all_stores=True) as coordinator:
        visible = coordinator.folded.last_version
        if not yes and to < visible:  # else it is refused, and nothing would be undone
            confirm(
                f"the changes of versions {to + 1} to {visible} of namespace {work.namespace} would be undone"
            )
        done = restore_version(coordinator, to, reprocess=reprocess)
        standings = catch_up_others(coordinator, jobs)
    facts = {"restored": to, "visible": done.visible, "recovered": done.recovered}
    facts |= {"generation": done.generation, "last_batch": done.kept.batch_id if done.kept else None}
    work.report(facts, _lines(done, to), standings)


def _lines(done: Restored, to: int) -> list[str]:
    again = "" if done.made else " (it was made before)"
    lines = [
        *made_first(done.recovered),
        f"version {done.visible} is visible{again}, and holds what version {to} held",
    ]
    if done.generation is not None and done.kept is not None:
        last = done.kept.batch_id
        lines += [
            f"batches above {last} may be replayed: set the checkpoint of query {done.kept.lineage} back to",
            f"batch {last} (remove what is above {last} in its folders offsets and commits, hidden files",
            "too), and start it",
        ]
    elif done.generation is not None:
        lines.append("all batches may be replayed: which one is the last that it holds is no longer known")
    return lines
