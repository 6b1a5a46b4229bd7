"""The checker over made histories: no right one is refuted, and each kind of wrong one is."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_histories import Made
from mutators import MUTATORS
from tidegate.torture.judge.check import check
from tidegate.torture.judge.verdict import RULES

FEW, MANY = 150, 1_500
"""Right histories in every run, and in the slow one."""

SPOILED, MORE_SPOILED = 5, 60
"""Histories that each mutator spoils, in every run and in the slow one; ten times as many are tried."""


def judged(made):
    with tempfile.TemporaryDirectory() as folder:
        return check(made.write(Path(folder)))


def right(made):
    verdict = judged(made)
    assert verdict.ok, "\n".join(verdict.lines())


MADE = st.builds(
    Made,
    seed=st.integers(0, 2**32),
    steps=st.integers(5, 300),
    kills=st.booleans(),
    readers=st.integers(1, 5),
    settles=st.booleans(),
)


@given(MADE)
@settings(max_examples=FEW, deadline=None)
def test_no_right_history_is_refuted(made):
    right(made)


@pytest.mark.slow
@given(MADE)
@settings(max_examples=MANY, deadline=None)
def test_no_right_history_is_refuted_many(made):
    right(made)


def mutated(name, first, number):
    """The rules of which each history spoiled by a mutator breaks one."""
    left, rules = number, set()
    for seed in range(first, first + 10 * number):
        made = Made(seed, steps=200, kills=seed % 3 > 0)
        wanted = MUTATORS[name](made)
        if wanted is None:
            continue
        verdict = judged(made)
        told = "\n".join(verdict.lines())
        assert wanted & verdict.broken.keys(), f"seed {seed}: none of {wanted} is broken\n{told}"
        for finding in verdict.findings:
            assert finding.invariant == RULES[finding.rule][0]
            assert all(":" in line for line in finding.events), finding
            assert finding.expected, finding
            assert finding.seen, finding
        left, rules = left - 1, rules | wanted
        if not left:
            return rules
    assert left < number, "no history was spoiled"
    return rules


@pytest.mark.parametrize("name", MUTATORS)
def test_each_wrong_history_is_refuted_by_its_rule(name):
    mutated(name, 0, SPOILED)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATORS)
def test_each_wrong_history_is_refuted_by_its_rule_many(name):
    mutated(name, 10_000, MORE_SPOILED)


@pytest.mark.slow
def test_every_rule_is_broken_by_a_mutator():
    wanted = set().union(*(mutated(name, 0, SPOILED) for name in MUTATORS))
    assert wanted == RULES.keys(), RULES.keys() ^ wanted
