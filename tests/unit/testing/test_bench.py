"""What ``tidegate bench`` says of its figures; the measuring itself runs in tests/spark/test_bench.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.bench.page import page
from tidegate.bench.plan import Plan
from tidegate.bench.report import Report, compared, percentile
from tidegate.errors import ConfigError

AT = {"wal": "file:///nowhere/wal", "store": "sqlite:///nowhere/store", "mark": "bench-1"}


def test_ours_is_compared_with_the_best_of_the_others():
    rates = {"slow": [1.0, 3.0, 2.0], "fast": [10.0, 8.0, 9.0], "tidegate": [4.0, 4.5, 5.0]}
    slow, fast, ours = compared("throughput", "rows", "rows/s", rates, ours=["tidegate"], more_is_better=True)
    assert (slow.ratio, fast.ratio) == (None, None)
    assert (ours.value, ours.beside, ours.ratio) == (4.5, "fast", 0.5)
    *_, took = compared("latency", "a batch", "ms", rates, ours=["tidegate"])
    assert (took.beside, took.ratio) == ("slow", 2.25)


def test_a_rival_that_was_not_measured_is_not_compared_with():
    (ours,) = compared("reads", "a key", "us", {"bare": [], "tidegate": [1.0]}, ours=["tidegate"])
    assert (ours.beside, ours.ratio) == ("", None)


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_samples_and_so_many_are_not_above_it(samples, at):
    found = percentile(samples, at)
    assert found in samples
    assert sum(one <= found for one in samples) >= at * len(samples) - 1e-6 * len(samples)


def test_the_page_has_every_figure_and_nothing_that_runs():
    figures = compared(
        "reads", "<script>", "us", {"bare & plain": [1.0], "tidegate": [2.0]}, ours=["tidegate"]
    )
    shown = page(Report(made_at="now", settings={"log": "a<b"}, figures=figures, left_out=["x > y"]))
    assert "<script" not in shown
    for words in ("&lt;script&gt;", "bare &amp; plain", "2.00x of bare &amp; plain", "a&lt;b", "x &gt; y"):
        assert words in shown


@pytest.mark.parametrize(
    "wrong", [{"parts": ("speed",)}, {"rows": 0}, {"keys": 300_000}, {"keys": -1}, {"reads": 0}]
)
def test_a_plan_that_cannot_be_run_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong)).removesuffix("s")):
        Plan(**AT, **wrong)


def test_passwords_are_not_shown():
    plan = Plan(**AT, store_options={"password": "hush"}, wal_options={"sasl.password": "hush"})
    assert "hush" not in repr(plan)
