"""The conformance program on Redis: the reference reader passes, also the checks of headers and servers."""

import sys

import pytest

from tidegate.testing.conformance.run import FAILED, PASSED, SKIPPED, conformance

PROGRAM = f"{sys.executable} -m tidegate.testing.conformance.reader"


def test_the_reference_reader_passes(redis):
    before = redis.ask("KEYS", "*conformance-*")
    results = conformance(PROGRAM, redis.url)
    assert [result for result in results if result.outcome != PASSED] == []
    assert redis.ask("KEYS", "*conformance-*") == before


@pytest.mark.slow
def test_on_a_cluster(redis_cluster):
    results = conformance(PROGRAM, redis_cluster.url)
    assert [result for result in results if result.outcome == FAILED] == []
    assert [result.name for result in results if result.outcome == SKIPPED] == []
