"""The conformance program on Cassandra: the reference readers, in threads and on an event loop, pass."""

import sys

import pytest

from tidegate.testing.conformance.refusals import ON_REDIS, ON_SQLITE
from tidegate.testing.conformance.run import FAILED, SKIPPED, conformance
from tidegate.testing.conformance.vectors.faults import FAULTS

PROGRAM = f"{sys.executable} -m tidegate.testing.conformance.reader"
ASYNCIO = f"{sys.executable} -m services.support.aio_reader"


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, ASYNCIO], ids=["threads", "asyncio"])
def test_the_reference_reader_passes(cassandra_tables, program):
    results = conformance(program, cassandra_tables)
    assert [result for result in results if result.outcome == FAILED] == []
    assert [result.name for result in results if result.outcome == SKIPPED] == [
        "alias-of-a-namespace",
        *ON_SQLITE,
        *ON_REDIS,
        *FAULTS,
    ]
