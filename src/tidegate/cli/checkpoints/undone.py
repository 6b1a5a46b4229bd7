"""The batches that a restore undoes, and the ways to have them again, as ``tidegate restore`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidegate.base.names import DERIVE_TOKEN
from tidegate.cli.checkpoints.recipes import removal, starts
from tidegate.committers.operations.restore import Restored
from tidegate.committers.operations.restore_plan import Change, RestorePlan, shown_time
from tidegate.committers.steps.decided_versions import LastBatch
from tidegate.reader.rules import described_origin
from tidegate.wal.record import BatchOrigin, DecidedVersion, LoadOrigin

SHOWN_MAX = 20
"""The number of undone batches that are printed one by one."""
SPARK_KEEPS = 100
"""The number of batches that a checkpoint of Spark has (``spark.sql.streaming.minBatchesToRetain``)."""


def preview(plan: RestorePlan, base: Path | None = None) -> list[str]:
    """Return the version, the place of its rows, and what its restore undoes."""
    origin = described_origin(plan.target.origin)
    place, would_come = _place(plan, base), "and would not come again by themselves:"
    return [
        f"version {plan.target.version}, decided at {shown_time(plan.target)}, {origin}: {place}",
        *_undone(plan, f"batches of the query that would be undone, {would_come}"),
        *_returned(plan, "would be"),
        *(_again(plan) if _batches(plan) and not plan.reprocess else ()),
    ]


def result(plan: RestorePlan, done: Restored, base: Path | None = None) -> list[str]:
    """Return the new version, what it undid, and how undone batches come again."""
    version, again = plan.target.version, "" if done.made else " (it was made before)"
    decided = f"decided at {shown_time(plan.target)}, {described_origin(plan.target.origin)}"
    lines = [
        f"version {done.visible} is visible{again}, and holds what version {version} held ({decided})",
        *([_place(plan, base)] if done.made else ()),
        *_returned(plan, "are"),
    ]
    if plan.reprocess:
        return [*lines, *_replay(plan, done)]
    heading = "these batches will not be processed again; the query continues with the next one:"
    return [*lines, *_undone(plan, heading), *(_again(plan) if _batches(plan) else ())]


def _place(plan: RestorePlan, base: Path | None) -> str:
    last = plan.target.version
    if not plan.first:
        return f"the store has its rows{f'; {base} is not needed' if base else ''}"
    parts = [f"the export of version {plan.base.manifest.version}"] if plan.base else []
    if plan.first <= last:
        parts.append(f"versions {plan.first} to {last} of the log")
    return f"its rows are computed from {' and '.join(parts)}"


def _batches(plan: RestorePlan) -> list[Change]:
    return [each for each in plan.undone if isinstance(each.origin, BatchOrigin)]


def _undone(plan: RestorePlan, heading: str) -> list[str]:
    batches = _batches(plan)
    others = [
        each for each in plan.undone if not isinstance(each.origin, BatchOrigin) and not _is_built(each)
    ]
    lines = [heading, *_listed(batches)] if batches else []
    if others:
        lines += ["loads and imports that are undone; a load comes again under another token:"]
        lines += _listed(others)
    return lines


def _is_built(each: Change) -> bool:
    """Whether the version built a derived table, which the next batch does again."""
    return isinstance(each.origin, LoadOrigin) and each.origin.token.startswith(DERIVE_TOKEN)


def _returned(plan: RestorePlan, are: str) -> list[str]:
    if not plan.returned:
        return []
    first, last = _short(plan.returned[0]), _short(plan.returned[-1])
    span = first if len(plan.returned) == 1 else f"{first} to {last}"
    return [f"undone by an earlier restore, and {are} held again: {span}"]


def _short(decided: DecidedVersion) -> str:
    return f"{described_origin(decided.origin)} (version {decided.version})"


def _listed(undone: Sequence[Change]) -> list[str]:
    """Return a line for each undone version; of many, for the first and the last ones."""
    lines = [f"  {_line(each)}" for each in undone]
    hidden = len(lines) - SHOWN_MAX
    if hidden <= 0:
        return lines
    half = SHOWN_MAX // 2
    return [*lines[:half], f"  ... {hidden} more: --json lists all", *lines[-half:]]


def _line(each: Change) -> str:
    if each.changes is None:
        counts = "its changes are not in the log any more"
    else:
        tables = ", ".join(f"{name} {rows}" for name, rows in sorted(each.changes.items()) if rows)
        counts = f"{sum(each.changes.values())} changes{f' ({tables})' if tables else ''}"
    line = f"{described_origin(each.origin)} (version {each.version}): {counts}"
    if isinstance(each.origin, BatchOrigin):
        line += f", up to the source offsets {each.source_offsets or '(unknown)'}"
    return line


def _again(plan: RestorePlan) -> list[str]:
    """Return the ways to have the undone batches again after a restore without ``--reprocess``."""
    lines = ["to have them again:"]
    if plan.replayable:
        lines.append(
            f"  `tidegate restore --to {plan.target.version} --reprocess`, which shows the next steps"
        )
    if plan.kept is not None:
        lines += _anew(plan.kept, "or start" if plan.replayable else "start")
    return lines


def _anew(batch: LastBatch, start: str) -> list[str]:
    """Return the steps to a new checkpoint, which follows the last batch that the restored state holds."""
    first = f"  {start} the query on an EMPTY checkpoint folder after batch {batch.origin.batch_id}, then"
    return [f"{first} `tidegate adopt --checkpoint FOLDER`:", *(f"    {line}" for line in starts(batch))]


def _replay(plan: RestorePlan, done: Restored) -> list[str]:
    """Return the steps after ``--reprocess``."""
    if plan.kept is None:
        return ["all batches may be replayed: which one is the last that it holds is no longer known"]
    tip, last = plan.kept.origin, plan.kept.origin.batch_id
    lines = [
        f"batches above {last} may be replayed: set the checkpoint of query {tip.lineage} back to",
        f"batch {last}, and start it",
        *_undone(plan, "the batches:"),
    ]
    if tip.lineage != done.lineage:
        lines.append(
            f"the namespace follows query {done.lineage}: first run `tidegate adopt --lineage {tip.lineage}`"
        )
    # Spark plans a batch before it runs, so the checkpoint may have the one after the last that was decided.
    return [
        *lines,
        "the files to remove, in bash:",
        f"  {removal(last + 1, plan.newest_batch + 1)}",
        f"of a query with state of Spark's own also the versions above {last + 1} in its folder state",
        f"if offsets/{last} is not in it (Spark keeps the last {SPARK_KEEPS} batches):",
        "  `tidegate rebuild-checkpoint FOLDER` makes a checkpoint for Kafka and streams of tidegate's",
        *_anew(plan.kept, "or start"),
    ]
