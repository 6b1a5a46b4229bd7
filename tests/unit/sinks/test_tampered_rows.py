"""Rows of SQLite files that somebody changed: verify finds each change that a reader could see."""

from __future__ import annotations

import contextlib
import os

import pytest

from tampering import rows
from tampering.row_places import SqlitePlace

CASES = int(os.environ.get("TIDEGATE_TAMPER_ROWS", "150"))
"""The number of changes at random; for longer: python -m tampering.rows."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    with contextlib.closing(SqlitePlace(tmp_path_factory.mktemp("tampered"))) as place:
        yield rows.Cases(place)


@pytest.mark.parametrize("part", range(3))
def test_every_change_of_a_row_that_a_reader_could_see_is_a_finding(cases, part):
    told: list[str] = []
    count = CASES // 3
    assert rows.run(cases, count, 1 + part * count, told.append) == 0, told


@pytest.mark.parametrize("kind", sorted({*rows.CHANGES} - {"added to no table"}))
def test_some_change_of_each_kind_is_seen_by_readers(cases, kind):
    """Without one, the test above would prove nothing of this kind."""
    for seed in range(1, 500):
        if f"{kind}, seen" in cases.seen:
            return
        cases.run(seed)
    raise AssertionError("readers see none of 500 changes")
