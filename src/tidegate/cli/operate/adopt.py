"""``tidegate adopt``: takeover of a namespace by another Spark checkpoint."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Annotated

import typer

from tidegate.base.urls import path_of, redact, scheme_of
from tidegate.cli.core.operation import Operation, catch_up_others, made_first, operation
from tidegate.cli.core.options import examples
from tidegate.committers.operations.adopt import adopt as adopt_lineage
from tidegate.errors import ConfigError

EXAMPLES = examples(
    "tidegate adopt --lineage 8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11",
    "tidegate adopt --checkpoint /data/checkpoints/flights",
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
) -> None:
    """Let another Spark checkpoint take the namespace over.

    A namespace follows one checkpoint, and refuses any other, since its batches would be
    taken for ones already seen. When a checkpoint was replaced on purpose, adopt the new one:
    its first batch makes the next version. Nothing that is visible changes.
    """
    if (lineage is None) == (checkpoint is None):
        raise ConfigError("give either --lineage ID or --checkpoint FOLDER")
    new = _query_id(str(lineage)) if checkpoint is None else lineage_of(checkpoint)
    with work.writer() as coordinator:
        before = coordinator.folded.lineage
        recovered = adopt_lineage(coordinator, new)
        standings = catch_up_others(coordinator) if coordinator.epoch else []
    namespace_follows = f"namespace {work.namespace} follows query {new}"
    facts = {"lineage": new, "before": before, "recovered": recovered}
    if before == new:
        work.report(facts, [f"{namespace_follows} already; nothing was written"])
        return
    work.report(
        facts,
        [f"{namespace_follows} from now on (before: {before or 'none'})", *made_first(recovered)],
        standings,
        "next: start that query; its first batch makes the next version",
    )


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
    scheme = scheme_of(checkpoint)
    slashes = re.sub(r"^file:/(?!/)", "file:///", checkpoint)  # as Hadoop writes it
    folder = path_of(slashes) if scheme == "file" else checkpoint
    if scheme not in ("", "file") or folder is None:
        raise ConfigError(
            f"a checkpoint at {redact(checkpoint)} cannot be read from here: look at the id in its file"
            ' metadata ({"id":"..."}) and give it as --lineage ID'
        )
    metadata = Path(folder) / "metadata"
    try:
        lineage = json.loads(metadata.read_bytes())["id"]
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
