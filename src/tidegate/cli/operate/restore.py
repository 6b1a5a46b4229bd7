"""``tidegate restore``: an older version's content as a new visible version."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.checkpoints.undone import preview, result
from tidegate.cli.core.app import placed
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Jobs, Yes, examples
from tidegate.cli.core.versions import one_or_more
from tidegate.committers.operations.restore import restore as restore_version
from tidegate.committers.operations.restore_plan import Change, RestorePlan, plan_restore, shown_time
from tidegate.reader.rules import described_origin
from tidegate.wal.record import BatchOrigin

EXAMPLES = examples(
    "tidegate diff 43 41 --stat",
    "tidegate restore --to 41",
    "tidegate restore --to 10:15",
    "tidegate restore --to '2h ago' --base /backups/flights-38",
    "tidegate restore --to 41 --reprocess --yes",
)


@operation("tidegate restore")
def restore(
    work: Operation,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="VERSION",
            parser=one_or_more,
            help="The version to go back to: its number, or a time (UTC unless it has a zone) for the newest"
            " that was decided by then.",
        ),
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="An export of an older version, or a folder of backups, if the log does not"
            " reach back to the version.",
        ),
    ] = None,
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
    the versions in between stay readable as long as any other. tidegate diff shows what would change.
    A version that the store has retired is computed from the log, as far as it reaches, or from an
    export and the log after it. Rows that have expired since stay gone.

    A query continues with its next batch on the restored state. The undone batches are listed, and
    their rows are not written again. With --reprocess they may be: remove the files that the command
    prints from the query's checkpoint, and start it. Stop the query first: restore refuses
    while a writer is running.
    """
    with work.writer(jobs=jobs, all_stores=True) as coordinator:
        plan = plan_restore(coordinator, to, base=base, reprocess=reprocess)  # type: ignore[arg-type]
        version = plan.target.version
        if plan.made is None and not yes:
            print(placed("\n".join(preview(plan, base))), file=sys.stderr)
            work.confirm(
                coordinator,
                f"the changes of versions {version + 1} to {plan.last} of namespace {work.namespace}"
                " would be undone",
            )
        done = restore_version(coordinator, plan)
        standings = catch_up_others(coordinator, jobs)
    facts = {"restored": version, "decided_at": shown_time(plan.target), "visible": done.visible}
    facts |= {"recovered": done.recovered, "generation": done.generation} | _facts(plan)
    work.report(facts, [*made_first(done.recovered), *result(plan, done, base)], standings)


def _facts(plan: RestorePlan) -> dict[str, Any]:
    """Return the undone and returned versions, and the last batch that the new version holds, for JSON."""
    others = [each for each in plan.undone if not isinstance(each.origin, BatchOrigin)]
    return {
        "undone": [
            _undone(each) | {"batch": each.origin.batch_id, "source_offsets": each.source_offsets or None}
            for each in plan.undone
            if isinstance(each.origin, BatchOrigin)
        ],
        "undone_others": [_undone(each) | {"origin": described_origin(each.origin)} for each in others],
        "returned": [each.version for each in plan.returned],
        "last_batch": plan.kept.origin.batch_id if plan.kept else None,
        "source_offsets": (plan.kept.source_offsets or None) if plan.kept else None,
    }


def _undone(each: Change) -> dict[str, Any]:
    changes = None if each.changes is None else sum(each.changes.values())
    return {"version": each.version, "changes": changes, "tables": each.changes}
