"""A few random cases in every run of the tests, hundreds in the long one."""

from __future__ import annotations

import pytest

from differential.run import run

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(12, 500, 12))]
)
def test_the_job_and_the_driver_store_the_same_bytes_as_the_model(spark, tmp_path, first):
    assert run(spark, tmp_path, 1, range(first, min(first + 12, 500)))
