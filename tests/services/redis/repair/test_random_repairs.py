"""Random interleavings of repairs, writer, merges, losses and failovers on a real Redis, call by call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.support.redis.repairs import random_repairs
from services.support.redis.repairs.starts import SETTINGS
from services.support.redis.server import RedisServer


@pytest.fixture
def server(tmp_path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path, settings=SETTINGS) as made:
        yield made


def test_repairs_that_overlap_undo_nothing(server: RedisServer):
    counts = random_repairs.play(server, 2, range(80))
    seen = {"lost h", "lost b", "lost d", "failovers", "died", "put back", "ended with a gap", "reads"}
    assert seen <= counts.keys(), counts


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_repairs_that_overlap_undo_nothing_in_many_schedules(server: RedisServer):
    counts = random_repairs.play(server, 3, range(4_000))
    assert counts["schedules"] == 4_000
