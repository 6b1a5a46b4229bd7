"""Fixtures and hooks that every test may use."""

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The shipped suites are not test files by name; without this their asserts would say nothing.
# It comes before any import from them.
pytest.register_assert_rewrite("tidegate.testing", "services.support.kafka.sweep.place")

# A job in the background of a shell ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a busy machine must not fail a test. Where CI is set, every run draws the same examples.
settings.register_profile("here", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")


MUTANTS = Path(__file__).parents[1] / "docs" / "mutants.md"
NOTICING = frozenset(re.findall(r"^\| \S+ \|.*\| `(tests/[^`]+)` \|$", MUTANTS.read_text(), re.MULTILINE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that notice a mutant; and as slow all cases but one in n with the mark ``one_in(n)``."""
    seen: dict[str, int] = {}
    for item in items:
        if item.nodeid in NOTICING:
            item.add_marker(pytest.mark.notices)
        if (mark := item.get_closest_marker("one_in")) is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        nth = seen[test] = seen.get(test, -1) + 1
        if nth % mark.args[0]:
            item.add_marker(pytest.mark.slow)
