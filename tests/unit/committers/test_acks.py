"""Which acks make a manifest: every task's, once, of this attempt, of its own key groups."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.committers.steps.acks import check_acks
from tidegate.errors import BadRecordError, FunctionError, TidegateError
from tidegate.wal.record import FrameRef
from tidegate.wal.staging.acks import Ack, Refusal

FRAME = FrameRef("segment:5:9", 9, "00" * 8, (0,), (0,), (3,))


def ack(task: int, group: int | None = None, **changes: object) -> Ack:
    frames = () if group is None else (msgspec.structs.replace(FRAME, groups=(group,)),)
    whole = Ack("a1", task, f"{task}-x", "host", frames, 3 if frames else 0)
    return msgspec.structs.replace(whole, **changes)


def test_all_tasks_with_their_own_key_groups_pass() -> None:
    check_acks([ack(1, 5), ack(0, 2), ack(2)], "a1", 3, 8)


@pytest.mark.parametrize("tasks", [[], [0], [0, 0], [0, 1, 1], [1, 2], [0, 1, 2]])
def test_a_task_that_is_missing_or_doubled_is_refused(tasks: list[int]) -> None:
    """T2: two acks of one task would stage its rows twice."""
    with pytest.raises(TidegateError, match="acks are of tasks"):
        check_acks([ack(task) for task in tasks], "a1", 2, 8)


def test_an_ack_of_another_attempt_is_refused() -> None:
    with pytest.raises(TidegateError, match="attempt a0, not a1"):
        check_acks([ack(0), ack(1, attempt="a0")], "a1", 2, 8)


def test_a_frame_of_another_task_s_key_group_is_refused() -> None:
    with pytest.raises(TidegateError, match=r"\[4\] of other tasks"):
        check_acks([ack(0, 4), ack(1)], "a1", 2, 8)


def test_rows_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(TidegateError, match="acked 4 rows, its frames hold 3"):
        check_acks([ack(0, 0, rows=4), ack(1)], "a1", 2, 8)


def test_a_refusal_is_raised_as_what_it_is_before_anything_else() -> None:
    bad = ack(1, refusal=Refusal("BadRecordError", "table t, key k: its key is null"))
    with pytest.raises(BadRecordError, match="its key is null"):
        check_acks([bad], "a1", 2, 8)


@pytest.mark.parametrize(
    "other", [{"0/0": "ab", "0/1": "ee"}, {"0/0": "ab"}, {"0/0": "ab", "0/1": "cd", "1/0": ""}, {}]
)
def test_rows_of_two_runs_of_one_function_that_differ_are_refused_i1(other: dict[str, str]) -> None:
    """Spark ran a task of the first stage again, after one task of the second had read it."""
    runs = {"0/0": "ab", "0/1": "cd"}
    check_acks([ack(task, runs=dict(runs)) for task in range(3)], "a1", 3, 8)
    with pytest.raises(
        FunctionError, match=r"\['0/1'|\['1/0'|\['0/0', '0/1'.*deterministic; nothing was decided"
    ):
        check_acks([ack(0, runs=runs), ack(1, runs=other), ack(2, runs=runs)], "a1", 3, 8)
