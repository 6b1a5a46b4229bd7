"""tidegate namespaces on servers: one Redis, Redis Cluster, users with few rights, Cassandra."""

import json
import uuid

import pytest

from support.cli import refused, run
from tidegate.testing.example import write_flights


def listed(url):
    """The first namespaces by name; others of a shared server are counted on standard error."""
    result = run("namespaces", "--store", url, "--limit", 20, "--json")
    assert result.exit_code == 0, result.output
    return {row["namespace"]: row for row in json.loads(result.stdout)["namespaces"]}


def is_listed(url, tmp_path):
    names = [f"0000{uuid.uuid4().hex}" for _ in range(2)]  # the first ones by name are listed
    for name in names:
        write_flights(f"file://{tmp_path}/wal", url, name, alias=f"{name}-live")
    rows = listed(url)
    assert not [name for name in rows if name.endswith("-live")]
    for name in names:
        assert (rows[name]["visible"], rows[name]["error"]) == (3, None)
        assert rows[name]["tables"] == ["aircraft", "airports", "legs", "notes"]
    return names


def test_redis(redis, tmp_path):
    for name in is_listed(redis.url, tmp_path):
        redis.forget(name)


def test_redis_cluster(redis_cluster, tmp_path):
    is_listed(redis_cluster.url, tmp_path)


def test_redis_users_with_few_rights(private_redis, tmp_path):
    server = private_redis(
        users={
            "blind": "on >pw ~* +@all -scan",
            "narrow": "on >pw %R~tg:{mine*}* +@all",
        }
    )
    for name in ("mine", "theirs"):
        write_flights(f"file://{tmp_path}/wal", server.url, name)
    place = server.url.partition("://")[2].rpartition("@")[2]
    told = refused(2, "namespaces", "--store", f"redis://blind:pw@{place}")
    assert "the server refuses this user: this user has no permissions to run the 'scan' command" in told
    result = run("namespaces", "--store", f"redis://narrow:pw@{place}")
    assert "mine\t3\t" in result.stdout
    assert "theirs\tunreadable" in result.stdout
    assert "namespace theirs: ConfigError" in result.stderr


@pytest.mark.timeout(600)
def test_cassandra(cassandra_tables, tmp_path):
    is_listed(cassandra_tables, tmp_path)
