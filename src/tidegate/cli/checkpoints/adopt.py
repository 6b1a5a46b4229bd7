"""``tidegate adopt``: takeover of a namespace by another Spark checkpoint."""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Annotated

import typer

from tidegate.base.files import read_regular
from tidegate.base.urls import path_of, redact, scheme_of
from tidegate.cli.checkpoints.recipes import effects, starts
from tidegate.cli.core.app import placed
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import Yes, examples
from tidegate.committers.operations.adopt import adopt as adopt_lineage
from tidegate.committers.operations.resume import Continued, continued_tables, last_batch
from tidegate.committers.steps.decided_versions import LastBatch
from tidegate.errors import ConfigError

BYTES_MAX = 16 * 1024 * 1024
"""The largest file of a checkpoint that is read: the source offsets of a batch."""
EXAMPLES = examples(
    "tidegate adopt --lineage 8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11",
    "tidegate adopt --checkpoint /data/checkpoints/flights --yes",
)


@operation("tidegate adopt")
def adopt(
    work: Operation,
    lineage: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The query id, as the refused query's message names it."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The new checkpoint's folder; the query id is read there."),
    ] = None,
    *,
    yes: Yes = False,
) -> None:
    """Let another Spark checkpoint take the namespace over.

    A namespace follows one checkpoint, and refuses any other, since its batches would be
    taken for ones already seen. When a checkpoint was replaced on purpose, adopt the new one:
    its first batch makes the next version. Nothing that is visible changes.

    A new checkpoint reads its source from the start, so sums count all rows a second time. The command shows
    the tables that are affected, and how each source starts after the last batch instead, and asks. If the
    checkpoint was only lost, tidegate rebuild-checkpoint makes it again, for Kafka sources.
    """
    if (lineage is None) == (checkpoint is None):
        raise ConfigError("give either --lineage ID or --checkpoint FOLDER")
    new = _query_id(str(lineage)) if checkpoint is None else lineage_of(checkpoint)
    with work.writer() as coordinator:
        before = coordinator.folded.lineage
        last, continued = last_batch(coordinator.decisions), continued_tables(coordinator.decisions)
        preview = [] if last is None else _preview(last, continued)
        if last is not None and before != new and not yes:
            print(placed("\n".join(preview)), file=sys.stderr)
            effect = f"query {new} would continue namespace {work.namespace} from the start of its own source"
            work.confirm(coordinator, effect)
        recovered = adopt_lineage(coordinator, new, last.version if last else 0)
        standings = catch_up_others(coordinator) if coordinator.epoch else []
    namespace_follows = f"namespace {work.namespace} follows query {new}"
    facts = {"lineage": new, "before": before, "recovered": recovered, "continued": continued.calls}
    facts |= {"source_offsets": last and last.source_offsets}
    if before == new:
        work.report(facts, [f"{namespace_follows} already; nothing was written"])
        return
    shown = preview if yes else []  # else it was shown before the question
    work.report(
        facts,
        [*shown, f"{namespace_follows} from now on (before: {before or 'none'})", *made_first(recovered)],
        standings,
        "next: start that query; its first batch makes the next version",
    )


def _preview(last: LastBatch, continued: Continued) -> list[str]:
    """Return what rows that are read again do to the tables, and how the sources start after them."""
    origin = last.origin
    tables = [f"  {table} ({call}): {effect}" for table, call, effect in effects(continued)]
    return [
        f"the last batch is {origin.batch_id} of query {origin.lineage}, version {last.version}",
        "a new checkpoint reads its source from the start; rows that are read again change these tables:",
        *tables,
        f"  (the calls are those of the last {continued.batches} batches that the log has)",
        "to read no row again, if the checkpoint was lost: `tidegate rebuild-checkpoint FOLDER` (Kafka);",
        "or start the query on an EMPTY checkpoint folder after the last batch, then adopt that one:",
        *(f"  {line}" for line in starts(last)),
    ]


def _query_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ConfigError(
            f"--lineage {text}: a query id looks like 8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11; the refused"
            " query's message names it, and so does the file metadata in its checkpoint folder"
        ) from None


def lineage_of(checkpoint: str) -> str:
    """Return the query id in a checkpoint folder. Raises: ConfigError with the paths searched."""
    folder = local_folder(checkpoint)
    if folder is None:
        raise ConfigError(
            f"a checkpoint at {redact(checkpoint)} cannot be read from here: look at the id in its file"
            ' metadata ({"id":"..."}) and give it as --lineage ID'
        )
    metadata = folder / "metadata"
    try:
        lineage = json.loads(read_regular(metadata, BYTES_MAX))["id"]
    except FileNotFoundError:
        raise ConfigError(
            f"{metadata} is not there: {checkpoint} is no checkpoint folder of a query that has started;"
            " start the query on it once, or give --lineage ID"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{metadata} holds no query id: {error}; give --lineage ID instead") from None
    if not isinstance(lineage, str):
        raise ConfigError(f"{metadata} holds no query id but {lineage!r}; give --lineage ID instead")
    return lineage


def local_folder(checkpoint: str) -> Path | None:
    """Return the path of a checkpoint that is a path or a ``file:`` URL; None: it is elsewhere."""
    scheme = scheme_of(checkpoint)
    slashes = re.sub(r"^file:/(?!/)", "file:///", checkpoint)  # as Hadoop writes it
    folder = path_of(slashes) if scheme == "file" else checkpoint
    return Path(folder) if scheme in ("", "file") and folder is not None else None
