"""Every mutant still has its text to change: a stale one would prove nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tidegate.testing.conformance.checks import CHECKS

ROOT = Path(__file__).parents[2]


def _module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mutant", _module("mutants").MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_to_change_is_there(mutant):
    assert mutant.old != mutant.new
    assert mutant.old in (ROOT / mutant.file).read_text()
    for tests in mutant.tests.split():
        assert (ROOT / tests.partition("::")[0]).exists()


@pytest.mark.parametrize("rule", _module("broken_reader_rules").RULES, ids=lambda rule: rule[0])
def test_the_rule_of_the_reader_is_there(rule):
    _, _, file, old, new, check = rule
    assert old != new
    assert (ROOT / file).read_text().count(old) == 1
    assert check in CHECKS


def test_the_page_has_the_readers():
    assert "\n".join(_module("mutants").readers()) in (ROOT / "docs" / "mutants.md").read_text()
