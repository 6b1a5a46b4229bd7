"""``tidegate bench`` measures every part, and leaves nothing behind."""

from __future__ import annotations

import dataclasses

import pytest

from tidegate.bench import PARTS, Plan, parts, run
from tidegate.errors import ConfigError
from tidegate.sinks.sqlite.disk.folder import MARK

pytestmark = pytest.mark.spark

SMALL = {"rows": 300, "rounds": 1, "small_rows": 20, "small_batches": 1, "reads": 20}


@pytest.fixture
def plan(tmp_path):
    return Plan(wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store", mark="bench-test", **SMALL)


def left(folder):
    """The files that are left, without the mark of a folder of stores, which stays there."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MARK]


@pytest.mark.parametrize("asked", [("reads",), pytest.param(PARTS, marks=pytest.mark.slow)])
def test_every_part_has_figures_with_ratios_and_nothing_is_left(asked, spark, plan, tmp_path):
    told = []
    report = run(dataclasses.replace(plan, parts=asked), told.append)
    assert {figure.part for figure in report.figures} == set(asked)
    assert all(figure.value > 0 for figure in report.figures if figure.who != "added by tidegate")
    ours = [figure for figure in report.figures if figure.ratio is not None]
    assert {figure.part for figure in ours} == set(asked)
    assert report.left_out == []
    assert [line for line in told if line.endswith("measuring")] == [f"{part}: measuring" for part in asked]
    assert left(tmp_path) == []


def test_what_a_part_wrote_goes_when_it_fails(spark, plan, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "compared", fail)
    with pytest.raises(KeyboardInterrupt):
        run(dataclasses.replace(plan, parts=("throughput",)))
    assert left(tmp_path) == []


def test_a_store_without_rivals_is_refused(spark, tmp_path):
    with pytest.raises(ConfigError, match="memory:// with"):
        run(Plan(wal=f"file://{tmp_path}/wal", store="memory://here", mark="bench-test", **SMALL))
