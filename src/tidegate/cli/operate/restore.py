"""``tidegate restore``: an older version's content as a new visible version."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.checkpoints.recipes import removal
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Jobs, Yes, confirm, examples
from tidegate.committers.operations.restore import Restored, batches_after
from tidegate.committers.operations.restore import restore as restore_version
from tidegate.sinks.records import CatalogEntry
from tidegate.wal.record import BatchOrigin

SHOWN_MAX = 20
"""The number of undone batches that are printed one by one."""

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

    A query continues with its next batch on the restored state. The undone batches are listed, and
    their rows are not written again. With --reprocess they may be: remove the files that the command
    prints from the query's checkpoint, and start it. Stop the query first: restore refuses
    while a writer is running.
    """
    with work.writer(jobs=jobs, all_stores=True) as coordinator:
        visible = coordinator.folded.last_version
        if not yes and to < visible:  # else it is refused, and nothing would be undone
            pointer = coordinator.store.pointer()
            if pointer.horizon <= to:
                undone = _undone(batches_after(coordinator.store, to, pointer.visible))
                print(
                    "\n".join(["batches of the query that would be undone:", *_listed(undone)]),
                    file=sys.stderr,
                )
            confirm(
                f"the changes of versions {to + 1} to {visible} of namespace {work.namespace} would be undone"
            )
        done = restore_version(coordinator, to, reprocess=reprocess)
        standings = catch_up_others(coordinator, jobs)
    facts = {"restored": to, "visible": done.visible, "recovered": done.recovered}
    undone = _undone(done.undone)
    facts |= {"undone": undone}
    facts |= {"generation": done.generation, "last_batch": done.kept.batch_id if done.kept else None}
    work.report(facts, _lines(done, to, undone), standings)


def _undone(entries: Sequence[CatalogEntry]) -> list[dict[str, Any]]:
    return [
        {
            "version": entry.version,
            "batch": entry.origin.batch_id,
            "changes": sum(entry.changes.values()),
            "source_offsets": entry.source_offsets or None,
        }
        for entry in entries
        if isinstance(entry.origin, BatchOrigin)
    ]


def _listed(undone: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each undone batch; of many, for the first and the last ones."""
    lines = [
        f"  batch {each['batch']} (version {each['version']}): {each['changes']} changes, up to the source"
        f" offsets {each['source_offsets'] or '(not in the store)'}"
        for each in undone
    ]
    hidden = len(lines) - SHOWN_MAX
    if hidden <= 0:
        return lines
    half = SHOWN_MAX // 2
    return [*lines[:half], f"  ... {hidden} more: --json lists all", *lines[-half:]]


def _files_above(kept: BatchOrigin, undone: Sequence[CatalogEntry]) -> tuple[int, int]:
    """Return the first and the last number of the files to remove.

    Spark plans a batch before it runs, so the checkpoint may have the one after the last that was decided.
    Batches of a query that was adopted since are not in this checkpoint.
    """
    origins = [entry.origin for entry in undone if isinstance(entry.origin, BatchOrigin)]
    numbers = [origin.batch_id for origin in origins if origin.lineage == kept.lineage]
    return kept.batch_id + 1, max(numbers, default=kept.batch_id) + 1


def _lines(done: Restored, to: int, undone: Sequence[dict[str, Any]]) -> list[str]:
    again = "" if done.made else " (it was made before)"
    lines = [
        *made_first(done.recovered),
        f"version {done.visible} is visible{again}, and holds what version {to} held",
    ]
    if done.generation is None:
        if undone:
            lines += [
                "these batches will not be processed again; the query continues with the next one:",
                *_listed(undone),
                f"to have them again: `tidegate restore --to {to} --reprocess`",
            ]
        return lines
    if done.kept is None:
        lines.append("all batches may be replayed: which one is the last that it holds is no longer known")
        return lines
    last = done.kept.batch_id
    lines += [
        f"batches above {last} may be replayed: set the checkpoint of query {done.kept.lineage} back to",
        f"batch {last}, and start it. The batches:",
        *_listed(undone),
    ]
    if done.kept.lineage != done.lineage:
        lines.append(
            f"the namespace follows query {done.lineage}: first run `tidegate adopt --lineage"
            f" {done.kept.lineage}`"
        )
    if undone:
        first, final = _files_above(done.kept, done.undone)
        lines += ["the files to remove, in bash:", f"  {removal(first, final)}"]
    return lines
