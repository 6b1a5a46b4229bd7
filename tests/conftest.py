"""Fixtures and hooks that every test may use."""

import os

import pytest
from hypothesis import settings

# The shipped suites are not test files by name; without this their asserts would say nothing.
# It comes before any import from them.
pytest.register_assert_rewrite("tidegate.testing", "services.support.kafka.sweep.place")

# No deadline: a busy machine must not fail a test. Where CI is set, every run draws the same examples.
settings.register_profile("here", deadline=None, max_examples=60)
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")
