"""A query goes on while its slots move and a primary fails over, with nothing in the log to hide a loss."""

from __future__ import annotations

import pytest

from services.support.redis import moving_cluster
from services.support.redis.cluster import RedisCluster
from services.support.redis.moving_cluster import Plan, Run
from services.support.redis.query import query_on

pytestmark = pytest.mark.xdist_group("redis_cluster")


def run(cluster: RedisCluster, folder, plan: Plan) -> moving_cluster.Seen:
    try:
        with query_on(cluster.url, folder, timeout_s=15.0) as query:
            return Run(cluster, query, plan).run()
    finally:
        cluster.heal()


def test_slots_move_and_a_primary_fails_over(redis_cluster: RedisCluster, tmp_path) -> None:
    seen = run(redis_cluster, tmp_path, Plan(moves=24, failovers=1, rows=200, readers=1, keep_versions=1))
    told = "\n".join(seen.lines())
    assert seen.whole, told
    assert (seen.moves, seen.cancelled, seen.planned) == (24, 12, 1), told
    assert min(seen.versions, seen.snapshots, seen.reads) > 2, told
    assert seen.put_back_visible == [], told


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_slots_move_and_primaries_are_killed(redis_cluster: RedisCluster, tmp_path) -> None:
    seen = run(redis_cluster, tmp_path, Plan(moves=60, failovers=4, kills=2, rows=500))
    told = "\n".join(seen.lines())
    assert seen.whole, told
    assert (seen.planned, seen.killed) == (2, 2), told
