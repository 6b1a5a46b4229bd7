"""The pairs of a log and a store of one query, as options of its sink."""

from __future__ import annotations

import pytest


@pytest.fixture
def on_files(tmp_path):
    return {"wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}


@pytest.fixture
def on_kafka_and_redis(kafka, redis):
    return {"wal": f"kafka://{kafka.bootstrap}", "store": redis.url, "allow_unsafe": True}


@pytest.fixture
def on_kafka_and_cassandra(kafka, cassandra_tables):
    return {"wal": f"kafka://{kafka.bootstrap}", "store": cassandra_tables, "allow_unsafe": True}
