"""The batches in a Spark checkpoint, compared with the last one that a store shows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from tidegate.base.files import read_regular
from tidegate.base.urls import redact
from tidegate.cli.checkpoints.adopt import BYTES_MAX, lineage_of, local_folder
from tidegate.cli.checkpoints.recipes import removal
from tidegate.committers.steps.decided_versions import LastBatch
from tidegate.errors import ConfigError


class Checkpoint(NamedTuple):
    """A query's checkpoint: the last batch that Spark counts as done, and the last planned; -1: none."""

    folder: Path
    lineage: str
    done: int
    planned: int

    @property
    def stateful(self) -> bool:
        """Whether the query has state of Spark's own."""
        return (self.folder / "state").is_dir()


def checkpoint_at(checkpoint: str) -> Checkpoint:
    """Read a checkpoint on this machine. Raises: ConfigError: it is elsewhere, or no checkpoint."""
    folder = local_folder(checkpoint)
    if folder is None:
        raise ConfigError(
            f"a checkpoint at {redact(checkpoint)} cannot be read from here: copy its folders offsets and"
            " commits and its file metadata into a folder on this machine, and give that one"
        )
    return Checkpoint(folder, lineage_of(checkpoint), _last(folder / "commits"), _last(folder / "offsets"))


def _last(folder: Path) -> int:
    try:
        return max((int(each.name) for each in folder.iterdir() if each.name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}") from None


def refuse_unfit(checkpoint: Checkpoint, batch: LastBatch | None, visible: int) -> None:
    """Refuse a checkpoint that would not continue right after the store's last batch.

    ``batch`` is that batch; None: it is not known. Raises: ConfigError, with the batches
    that are lost and the way to have them again; nothing was written.
    """
    folder = checkpoint.folder
    if batch is None:
        if checkpoint.planned > checkpoint.done:
            raise ConfigError(
                f"{folder} has batch {checkpoint.planned}, which Spark counts as not done, and none of the"
                " versions that the store still has is a batch: whether that batch is in the store is"
                " unknown. Nothing was copied; compare its rows with the store's, then run this again"
                " without --checkpoint"
            )
        return
    origin = batch.origin
    if checkpoint.lineage != origin.lineage:
        raise ConfigError(
            f"{folder} is the checkpoint of query {checkpoint.lineage}, the last batch in the store is"
            f" {origin.batch_id} of query {origin.lineage}: give that query's checkpoint. If this one has"
            " taken over since, run this again without --checkpoint, then `tidegate adopt"
            f" --checkpoint {shlex.quote(str(folder))} --namespace NEW_NAME`"
        )
    last = origin.batch_id
    if checkpoint.planned < last:
        raise ConfigError(
            f"{folder} ends with batch {checkpoint.planned}, the store has batch {last}: the checkpoint is an"
            " older copy, and its next batch would be refused. Nothing was copied; put its newest copy back,"
            " or run this again without --checkpoint and make it again with `tidegate"
            " rebuild-checkpoint FOLDER --namespace NEW_NAME`"
        )
    if checkpoint.done > last:
        raise ConfigError(_lost(checkpoint, last, batch.source_offsets, visible))


def _lost(checkpoint: Checkpoint, last: int, source_offsets: str, visible: int) -> str:
    first, folder = last + 1, shlex.quote(str(checkpoint.folder))
    lost = f"batch {first} is" if checkpoint.done == first else f"batches {first} to {checkpoint.done} are"
    text = (
        f"{lost} lost: Spark counts them as done, and the store ends with batch {last} (version {visible}),"
        " since they were only in the log. Nothing was copied. They begin after the source offsets"
        f" {source_offsets or _offsets(checkpoint, last)}. "
    )
    if not (checkpoint.folder / "offsets" / str(last)).exists():
        return (
            f"{text}The checkpoint no longer has batch {last}, so it cannot be set back: run this again"
            " without --checkpoint, then `tidegate rebuild-checkpoint FOLDER --namespace NEW_NAME` makes"
            " one that begins there"
        )
    state = f"; remove the versions above {first} in its folder state, too" if checkpoint.stateful else ""
    return (
        f"{text}If the source still has their rows, set the checkpoint back, then run this again:"
        f" `{removal(first, max(checkpoint.done, checkpoint.planned), folder)}`{state}. To give them up, run"
        " this again without --checkpoint"
    )


def _offsets(checkpoint: Checkpoint, batch: int) -> str:
    path = checkpoint.folder / "offsets" / str(batch)
    try:
        return " ".join(read_regular(path, BYTES_MAX).decode().splitlines()[2:])
    except (OSError, ValueError):
        return "of that batch, which nothing has any more"
