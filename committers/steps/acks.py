"""The check of an attempt's acks: complete, and of this attempt."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.errors import BY_NAME, BadRecordError, ConflictError, FunctionError, TidegateError
from tidegate.keys.groups import groups_of
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.derived import STAGING_RUN


def check_acks(acks: Sequence[Ack], attempt: str, parallelism: int, key_groups: int) -> None:
    """Check that every task has exactly one ack, of this attempt, with frames of its own key groups only.

    Raises, with nothing decided: the error that a refusal names. FunctionError: two runs of one function
    differ, and one version would contain rows of both. ConflictError: the same of a staging task, by its
    derived tables. TidegateError: acks are missing, doubled or foreign.
    """
    for ack in acks:
        if ack.refusal is not None:
            raise BY_NAME.get(ack.refusal.error, BadRecordError)(ack.refusal.message)
    tasks = sorted(ack.task for ack in acks)
    if tasks != list(range(parallelism)):
        msg = f"{parallelism} tasks were to ack attempt {attempt}, the acks are of tasks {tasks}"
        raise TidegateError(msg)
    _check_runs(acks)
    for ack in acks:
        if ack.attempt != attempt:
            msg = f"task {ack.task} acked attempt {ack.attempt}, not {attempt}"
            raise TidegateError(msg)
        owned = groups_of(ack.task, parallelism, key_groups)
        foreign = {g for frame in ack.frames for g in frame.groups if g not in owned}
        if foreign:
            msg = f"task {ack.task} acked key groups {sorted(foreign)} of other tasks"
            raise TidegateError(msg)
        changes = sum(frame.changes for frame in ack.frames)
        if ack.rows != changes:
            msg = f"task {ack.task} acked {ack.rows} rows, its frames hold {changes}"
            raise TidegateError(msg)


def _check_runs(acks: Sequence[Ack]) -> None:
    """Check that all tasks have read the same runs of an earlier stage, or runs with equal output (I1)."""
    for ack in acks:
        if ack.runs != acks[0].runs:
            differ = {task for task, _ in ack.runs.items() ^ acks[0].runs.items()}
            if any(task.startswith(STAGING_RUN) for task in differ):
                raise ConflictError(
                    f"Spark ran staging tasks again, {sorted(differ)}, and tasks that keep derived tables got"
                    " rows of both runs; nothing was decided; restart the query"
                )
            msg = (
                f"Spark ran a function again, in the first stage's tasks {sorted(differ)}, and"
                " it returned other results than before: the function, or the source of its rows, is not"
                " deterministic; nothing was decided; use no clock, chance or outer state there, then"
                " restart the query"
            )
            raise FunctionError(msg)
