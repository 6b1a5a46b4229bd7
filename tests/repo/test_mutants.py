"""Every mutant still has its text to change: a stale one would prove nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


@pytest.mark.parametrize("mutant", _mutants(), ids=lambda mutant: mutant.name)
def test_the_text_to_change_is_there(mutant):
    assert mutant.old != mutant.new
    assert mutant.old in (ROOT / mutant.file).read_text()
    for tests in mutant.tests.split():
        assert (ROOT / tests.partition("::")[0]).exists()
