"""What torture does to a Redis store from outside: slots, replicas and rows, each noted, and put back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from services.support.redis.cluster import RedisCluster, slot_of
from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from support.wait import wait_until
from tidegate.sinks.redis.client.settings import Address, settings_of
from tidegate.testing.process.forked import Forked
from tidegate.torture.driver import redis_faults
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.redis_topology import Cluster

PAGE = Path(__file__).parents[4] / "docs" / "torture.md"
pytestmark = pytest.mark.xdist_group("redis_cluster")


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    yield redis_cluster
    redis_cluster.heal()


@pytest.fixture
def topology(cluster: RedisCluster) -> Iterator[Cluster]:
    made = Cluster(settings_of(cluster.url, {}))
    yield made
    made.close()


@pytest.fixture
def query(cluster: RedisCluster, tmp_path) -> Iterator[Query]:
    with query_on(cluster.url, tmp_path) as made:
        made.run(3)
        yield made


def where(query: Query) -> str:
    return msgspec.json.encode(Where(query.wal, query.url, query.namespace)).decode()


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines() if '"event":"fault"' in line]


def place(server: RedisServer) -> Address:
    return Address("127.0.0.1", server.port)


def other_than(cluster: RedisCluster, server: RedisServer) -> RedisServer:
    return next(each for each in cluster.primaries() if each is not server)


# -- slots ----------------------------------------------------------------------------------------------


def test_a_move_that_is_cancelled_brings_back_what_had_moved(
    cluster: RedisCluster, topology: Cluster, query: Query
):
    """With SETSLOT STABLE alone the keys that had moved are nowhere for who asks the slot's owner."""
    slot = slot_of(query.keys_of(1))
    source = cluster.owner_of(slot)
    to = other_than(cluster, source)
    before = topology.keys_in(slot, place(source))
    assert len(before) > 2
    topology.begin_move(slot, place(source), place(to))
    assert topology.move_keys(slot, place(source), place(to), 2) == 2
    assert len(topology.keys_in(slot, place(source))) == len(before) - 2
    topology.cancel_move(slot, place(source), place(to))
    assert sorted(topology.keys_in(slot, place(source))) == sorted(before)
    assert topology.keys_in(slot, place(to)) == []
    assert "[" not in "".join(server.ask("CLUSTER", "NODES") for server in cluster.servers)
    query.check(3)


def test_slots_move_until_the_end_and_then_home(cluster: RedisCluster, query: Query, tmp_path):
    owners = {group: cluster.primary_of(query.keys_of(group)) for group in range(8)}
    foreign = f"{{{query.keys_of(3).partition('{')[2].partition('}')[0]}}}of-another"
    cluster.primary_of(foreign).ask("SET", foreign, "x")
    begun = tmp_path / "begun"
    work = (where(query), str(tmp_path), "mover", "seed", str(begun))
    mover = Forked(redis_faults.move_slots, work, tmp_path / "mover.txt")
    try:
        wait_until(begun.exists, "a slot is on the move")
        history = tmp_path / "mover.jsonl"
        wait_until(lambda: len(lines_of(history)) > 6, "slots moved")
        mover.send(15)
        assert mover.wait(60)
    finally:
        mover.kill()
    assert mover.exit_code == 0, mover.output.read_text()
    told = [str(line["detail"]) for line in lines_of(history)]
    assert any("cancelled" in text for text in told)
    assert any("after a halt" in text for text in told)
    assert {group: cluster.primary_of(query.keys_of(group)) for group in range(8)} == owners
    assert not any(f"/{3}}}" in str(line["target"]) for line in lines_of(history)), "others' keys lie there"
    cluster.primary_of(foreign).ask("DEL", foreign)


# -- replicas ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_replicas_are_promoted_and_promoted_back(cluster: RedisCluster, query: Query, tmp_path):
    cluster.wait_ready()
    before = cluster.primaries()
    begun, history = tmp_path / "begun", tmp_path / "replicas.jsonl"
    work = (where(query), str(tmp_path), "replicas", "seed", str(begun))
    changer = Forked(redis_faults.change_replicas, work, tmp_path / "replicas.txt")
    try:
        attached = lambda: history.exists() and history.read_text().count("is attached")  # noqa: E731
        wait_until(lambda: attached() > len(before) + 1, "each shard had its turn, and one more")
        assert 0 < history.read_text().count('is promoted"') <= len(before), "a shard fails over once"
        changer.send(15)
        assert changer.wait(60)
    finally:
        changer.kill()
    assert changer.exit_code == 0, changer.output.read_text()
    assert cluster.primaries() == before


def test_the_first_replica_gives_a_server_another_id(redis: RedisServer):
    """It is attached, and nothing is lost by it."""
    before = redis.info("replication")["master_replid"]
    with redis_faults.attached(settings_of(redis.url, {}), place(redis)):
        assert redis.info("replication")["connected_slaves"] == 1
        assert redis.info("replication")["master_replid"] != before
    wait_until(lambda: not redis.info("replication")["connected_slaves"], "it is detached")


# -- what can be had -------------------------------------------------------------------------------------


def test_what_can_be_had_is_tried_beforehand(cluster: RedisCluster, query: Query):
    at = Where(query.wal, query.url, query.namespace)
    assert set(redis_faults.lacking(at, allowed=False)) == {"reshard", "replica"}
    before = [server.ask("CLUSTER", "NODES") for server in cluster.primaries()]
    assert redis_faults.lacking(at, allowed=True) == {}
    assert len(before) == len(cluster.primaries())
    query.check(3)


def test_a_right_that_lacks_is_told_beforehand(cluster: RedisCluster, query: Query):
    for server in cluster.servers:
        server.ask(
            "ACL", "SETUSER", "less", "reset", "on", ">x", "~*", "+@all", "-migrate", "-cluster|failover"
        )
    at = Where(query.wal, query.url, query.namespace, {}, {"username": "less", "password": "x"})
    try:
        found = redis_faults.lacking(at, allowed=True)
    finally:
        for server in cluster.servers:
            server.ask("ACL", "DELUSER", "less")
    assert "migrate" in found["reshard"]
    assert "cluster|failover" in found["replica"]


def test_one_server_has_no_slots(redis: RedisServer):
    found = redis_faults.lacking(Where("file:///w", redis.url, "n"), allowed=True)
    assert set(found) == {"reshard"}
    assert "redis+cluster://" in found["reshard"]


# -- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["evict-layer", "evict-base"])
def test_one_hash_is_removed_and_noted(fault: str, query: Query, tmp_path):
    query.retire(query.open(keep_versions=2))
    at = Where(query.wal, query.url, query.namespace)
    before = redis_faults.keys_of(at)
    assert redis_faults.evict(where(query), str(tmp_path), "evict", fault, "seed") == 0
    (gone,) = set(before) - set(redis_faults.keys_of(at))
    (line,) = lines_of(tmp_path / "evict.jsonl")
    assert line["target"] == gone.decode()
    (rows,) = line["destroys"]
    assert f"/{rows['key_group']}}}" in gone.decode()
    assert (rows["version"] == 0) == (fault == "evict-base") == gone.endswith(b":b")


# -- rights -----------------------------------------------------------------------------------------------


def rights_of(fault: str) -> list[str]:
    """The rights that the page names for a fault."""
    (row,) = re.findall(rf"^\| `{fault}` \| [^|]* \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    return re.findall(r"[+~][\w*-]+", row)


@pytest.mark.parametrize("fault", ["reshard", "replica"])
def test_the_rights_of_the_page_are_enough(fault: str, cluster: RedisCluster, query: Query, tmp_path):
    """Beside those of a writer, of which a topology fault needs its identity alone."""
    rules = "reset", "on", ">x", "~*", "+info", "+hmget", *rights_of(fault)
    for server in cluster.servers:
        server.ask("ACL", "SETUSER", "mover", *rules)
    login = {"username": "mover", "password": "x"}
    at = Where(query.wal, query.url, query.namespace, {}, login)
    begun, history = tmp_path / "begun", tmp_path / "history.jsonl"
    work = redis_faults.move_slots if fault == "reshard" else redis_faults.change_replicas
    changer = Forked(
        work,
        (msgspec.json.encode(at).decode(), str(tmp_path), "history", "s", str(begun)),
        tmp_path / "changer.txt",
    )
    try:
        wait_until(lambda: changer.wait(0) or begun.exists(), "it began")
        wait_until(lambda: changer.wait(0) or len(lines_of(history)) > 3, "it went on")
        changer.send(15)
        assert changer.wait(60)
    finally:
        changer.kill()
        cluster.wait_ready()
        found = redis_faults.lacking(at, allowed=True)
        for server in cluster.servers:
            server.ask("ACL", "DELUSER", "mover")
    assert changer.exit_code == 0, changer.output.read_text()
    assert fault not in found
