"""The demo, whole: 9 batches, two kills, and a reader that never sees a torn version (I1, I2, I4)."""

from __future__ import annotations

import pytest

from tidegate.demo import run

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]  # .ci/run runs the demo itself


def test_the_demo_ends_with_9_whole_versions_after_two_kills_i1_i2_i4(log_at, tmp_path):
    outcome = run(folder=tmp_path / "demo", **log_at(tmp_path / "demo").keywords)
    assert outcome.torn == []
    assert (outcome.versions, outcome.versions_checked, len(outcome.kills)) == (9, 9, 2)
    assert outcome.recovered == [4]
    assert outcome.by_tasks == {1: 2, 5: 2}
    assert outcome.right
