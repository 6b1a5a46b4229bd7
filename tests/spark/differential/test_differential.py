"""A round of random cases, with calls of all kinds, in every run of the tests; 500 cases in the long one."""

from __future__ import annotations

import pytest

from differential.rounds import SIZE
from differential.run import run_all

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("first,rounds", [(5_900, 1), pytest.param(0, 50, marks=pytest.mark.slow)])
def test_each_way_of_staging_stores_the_bytes_of_the_model(spark, first, rounds):
    assert run_all(spark, 1, first, rounds) == SIZE * rounds
