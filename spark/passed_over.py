"""A batch that failed in the sink, and that the function around the sink let Spark count as done."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.errors import ConfigError
from tidegate.spark.batch import BatchContext
from tidegate.wal.record import Folded

WORDS_MAX = 300


class Failed(NamedTuple):
    """The first batch of a run of the query that raised and has not ended well since, and what it raised."""

    run_id: str
    batch_id: int
    why: str


def failed(before: Failed | None, batch: BatchContext, error: BaseException) -> Failed:
    """To be remembered until a batch ends well."""
    if before is not None and before.run_id == batch.run_id:
        return before
    words = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Failed(batch.run_id, batch.batch_id, words[:WORDS_MAX])


def refuse_passed_over(before: Failed | None, batch: BatchContext, state: Folded) -> None:
    """ConfigError: the same run of the query goes on behind a batch that failed here, and nothing of that one
    was decided. Spark gives a batch again only when its function raised.

    Only within a run: whoever starts the query again has been told.
    """
    if before is None or before.run_id != batch.run_id or batch.batch_id <= before.batch_id:
        return
    if state.last_batch is not None and state.last_batch >= (state.generation, before.batch_id):
        return  # its outcome was unknown, and it was decided
    raise ConfigError(
        f"batch {before.batch_id} failed in this sink and is not in the store ({before.why}), but the"
        " function of foreachBatch kept the error to itself, so that Spark counts the batch as done: let the"
        f" sink's errors through. Started again, the query goes on with batch {batch.batch_id}; rows of batch"
        f" {before.batch_id} that are wanted can be brought in by sink.load"
    )
