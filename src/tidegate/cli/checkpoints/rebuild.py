"""``tidegate rebuild-checkpoint``: a Spark checkpoint made again from the log."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.base.urls import redact
from tidegate.cli.checkpoints.adopt import local_folder
from tidegate.cli.core.operation import Operation, operation
from tidegate.cli.core.options import examples
from tidegate.committers.operations.resume import rebuild_checkpoint
from tidegate.errors import ConfigError

EXAMPLES = examples(
    "tidegate rebuild-checkpoint /data/checkpoints/flights --namespace flights",
)


@operation("tidegate rebuild-checkpoint", without=("allow_unsafe",))
def rebuild(
    work: Operation,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The checkpoint: a new or empty folder.")],
) -> None:
    """Make the lost checkpoint of a query again, from the log.

    The same query continues with its next batch: no row is read twice, and none is left out. It writes
    FOLDER alone; for a checkpoint elsewhere copy the folder there. Only for sources whose offset is their
    whole position: Kafka, and streams of tidegate's. For others it is refused: see tidegate adopt.

    A query with state of Spark's own (dropDuplicates, aggregations or joins of streams) must not use it:
    that state was in the lost checkpoint. Refused while a writer is running.
    """
    path = local_folder(folder)
    if path is None:
        raise ConfigError(
            f"{redact(folder)} is not on this machine: give an empty folder here, and copy it there"
        )
    with work.writer() as coordinator:
        last = rebuild_checkpoint(coordinator.decisions, path)
    query, batch = last.origin.lineage, last.origin.batch_id
    facts = {"folder": folder, "lineage": query, "batch": batch, "source_offsets": last.source_offsets}
    lines = [
        f"{folder} is a checkpoint of query {query} after batch {batch} (version {last.version})",
        f"source offsets: {last.source_offsets}",
    ]
    start = f"next: start the query with this checkpoint, unchanged; its next batch is {batch + 1}"
    work.report(facts, lines, next_step=start)
