"""Each fault of torture on Redis catches a rule that is broken by hand; unbroken its cell is proven."""

from pathlib import Path

import pytest

from broken_tree import WRONG_ROWS, edited, made, tortured
from services.support.redis.cluster import RedisCluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # many processes, on a machine that may be busy
    pytest.mark.xdist_group("redis_cluster"),
]

NOT_MISSED = (
    "sinks/redis/lua/header.lua",
    "local function refuse_missing(hashes)\n",
    "local function refuse_missing(hashes)\n  do return nil end\n",
)
LEFT_BEHIND = (
    "src/tidegate/torture/driver/redis_topology.py",
    "        back = [part for key in moved",
    "        back = [part for key in moved[:0]",
)

BROKEN = [
    ("a layer that is gone is not missed", NOT_MISSED, "publish.before:evict-layer:same", WRONG_ROWS),
    ("a base that is gone is not missed", NOT_MISSED, "publish.before:evict-base:same", WRONG_ROWS),
    (
        "a move that is cancelled leaves rows behind",
        LEFT_BEHIND,
        "seal.after:reshard:same",
        {*WRONG_ROWS, "finish", "verify"},
    ),
]
CELLS = [cell for _, _, cell, _ in BROKEN]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return made(tmp_path_factory.mktemp("tree"))


def run(folder: Path, tree: Path, cluster: RedisCluster, *cells: str):
    """Scripts are sent by their text: the library of another tree would be used otherwise."""
    (folder / "store").write_text("functions=false\n")
    more = "--allow-unsafe", "--allow-topology-changes", "--store-config", str(folder / "store")
    only = [f"--only={cell}" for cell in cells]
    return tortured(folder, tree, *more, "--cell-deadline", "120s", *only, store=cluster.url)


def test_without_an_edit_the_same_cells_are_proven(tree, tmp_path, redis_cluster: RedisCluster):
    code, report = run(tmp_path, tree, redis_cluster, *CELLS, "publish.before:replica:same")
    assert (code, report["results"]) == (0, {"proven": len(CELLS) + 1}), report["not_proven"]


@pytest.mark.parametrize("what,edit,cell,rules", BROKEN, ids=CELLS)
def test_a_broken_rule_is_reported(what, edit, cell, rules, tree, tmp_path, redis_cluster: RedisCluster):
    with edited(tree, edit):
        code, report = run(tmp_path, tree, redis_cluster, cell)
    assert code == 1
    (wrong,) = report["not_proven"]
    found = {finding["rule"] for finding in wrong["outcome"]["findings"]}
    assert found & rules, wrong
