"""Which batches are expected to be small: foretold from those before, with a bound on what is wasted."""

from __future__ import annotations

import random

from tidegate.spark.staging.small_batches import CELL_BYTES, FEW_ROWS, SPREAD, WAIT_MAX, SmallBatchPredictor


def collects(small: SmallBatchPredictor, sizes: list[int], limit: int) -> list[str]:
    """What becomes of batches of so many rows: collected, cut and then the job's, or the job's."""
    ways = []
    for rows in sizes:
        if not small.predicts_small:
            ways.append("job")
        elif rows <= limit:
            ways.append("driver")
        else:
            small.overflowed()
            ways.append("cut")
        small.staged(rows, 10 * rows)
    return ways


def test_the_first_batch_may_be_a_backlog() -> None:
    assert collects(SmallBatchPredictor(10, 1_000), [1, 1, 10, 1], 10) == [
        "job",
        "driver",
        "driver",
        "driver",
    ]


def test_none_is_collected_when_it_is_off_or_rows_are_many_or_long() -> None:
    assert collects(SmallBatchPredictor(0, 1_000), [0] * 3, 10) == ["job"] * 3
    assert collects(SmallBatchPredictor(10, 1_000), [11] * 3, 10) == ["job"] * 3
    assert collects(SmallBatchPredictor(10, 99), [10] * 3, 10) == ["job"] * 3


def test_a_cut_batch_is_remembered_and_waited_for_longer_each_time() -> None:
    small = SmallBatchPredictor(10, 1_000)
    assert collects(small, [1, 1, 99], 10) == ["job", "driver", "cut"]
    assert collects(small, [99, 1, 1], 10) == ["job", "job", "driver"]
    assert collects(small, [99, 1, 1, 1], 10) == ["cut", "job", "job", "driver"]
    assert collects(small, [99, *[1] * 5], 10) == ["cut", *["job"] * 4, "driver"]


def test_a_batch_that_was_cut_for_a_long_cell_does_not_count_towards_its_own_wait() -> None:
    small = SmallBatchPredictor(10, 1_000)
    small.staged(1, 1)
    for waited in (1, 2, 4):
        assert small.predicts_small
        small.overflowed()
        small.staged(1, 1)
        for _ in range(waited):
            assert not small.predicts_small
            small.staged(1, 1)


def test_every_second_batch_is_large_and_hardly_any_is_cut() -> None:
    ways = collects(SmallBatchPredictor(10, 1_000), [1, 99] * 1_000, 10)
    assert ways.count("cut") < 6 + 1_000 / WAIT_MAX + 1


def test_after_many_that_went_well_it_is_forgotten() -> None:
    small = SmallBatchPredictor(10, 1_000)
    collects(small, [1, *[99, *[1] * 100] * 3], 10)
    assert collects(small, [1] * WAIT_MAX, 10) == ["driver"] * WAIT_MAX
    assert collects(small, [99, 1, 1], 10) == ["cut", "job", "driver"]


def test_all_partitions_together_give_a_bounded_number_of_rows() -> None:
    chance = random.Random(1)
    for _ in range(200):
        limit, partitions = chance.choice([1, 10, 5_000, 50_000]), chance.choice([1, 2, 3, 16, 200, 5_000])
        small = SmallBatchPredictor(limit, 1_000)
        fits = small.fits(partitions)
        assert fits is (partitions <= SPREAD)
        assert small.fits(partitions)
        if chance.random() < 0.5:
            small.staged(limit, 1)
        limit = limit if small.cell_bytes < CELL_BYTES else min(limit, FEW_ROWS)
        assert 1 <= small.quota() <= SPREAD * limit
        assert SPREAD * limit * small.cell_bytes <= SPREAD * FEW_ROWS * CELL_BYTES, "the bound on memory"
        assert partitions * small.quota() <= max(SPREAD * limit, partitions)
        if partitions <= SPREAD:
            assert small.quota() >= limit, "one of few partitions may hold them all"


def test_more_rows_have_shorter_cells_and_a_cut_tries_the_other_limits() -> None:
    small = SmallBatchPredictor(50_000, 10**9)
    small.staged(FEW_ROWS, 1)
    assert (small.quota(), small.cell_bytes) == (FEW_ROWS, CELL_BYTES)
    small.staged(FEW_ROWS + 1, 1)
    assert (small.quota(), small.cell_bytes) == (50_000, CELL_BYTES // 10)
    small.staged(1, 1)
    assert small.quota() == 50_000, "rows that come and go keep their limits"
    small.overflowed()  # a cell was too long
    small.staged(7_000, 1)
    assert (small.quota(), small.cell_bytes) == (FEW_ROWS, CELL_BYTES)
    small.overflowed()  # there were too many rows
    small.staged(7_000, 1)
    assert (small.quota(), small.cell_bytes) == (50_000, CELL_BYTES // 10)
