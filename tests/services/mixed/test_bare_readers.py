"""Readers of servers without the libraries of any extra but the server's client."""

import json
import uuid

import pytest

import tidegate
from support.bare_reader import read_without_extras
from tidegate.testing.example import write_flights


def read_both_ways(url, namespace, tmp_path):
    write_flights(f"file://{tmp_path}/wal", url, namespace)
    with tidegate.connect(url, namespace) as gate:
        tables = {name: sorted(gate.table(name).scan(), key=repr) for name in gate.tables()}
    return json.loads(json.dumps(tables, default=repr)), read_without_extras(url, namespace)["ways"]


def test_redis(redis, namespace, tmp_path):
    expected, ways = read_both_ways(redis.url, namespace, tmp_path)
    assert [way for way, tables in ways.items() if tables != expected] == []


def test_redis_cluster(redis_cluster, tmp_path):
    expected, ways = read_both_ways(redis_cluster.url, f"n{uuid.uuid4().hex}", tmp_path)
    assert [way for way, tables in ways.items() if tables != expected] == []


@pytest.mark.timeout(600)
def test_cassandra(cassandra_tables, tmp_path):
    expected, ways = read_both_ways(cassandra_tables, f"n{uuid.uuid4().hex}", tmp_path)
    assert [way for way, tables in ways.items() if tables != expected] == []
