"""A namespace of format 1 in Redis: refused by everything but ``tidegate migrate``."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from services.support.redis.server import RedisServer
from services.support.workloads.random_versions import writer_on
from support.cli import run
from support.format_1 import make_redis
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.functions import library_name


def test_format_1_is_refused_and_migrated(redis: RedisServer, tmp_path: Path):
    writer = writer_on(redis.url, tmp_path)
    namespace = writer.driver.endpoints.namespace
    meta = f"tg:{{{namespace}}}:meta"
    writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    latest = redis.ask("HGET", meta, "latest")
    assert latest == redis.ask("HGET", f"tg:{{{namespace}}}:catalog", "1")
    writer.close()
    make_redis(redis, namespace)
    places = ["--store", redis.url, "--namespace", namespace]
    try:
        with pytest.raises(ConfigError, match=r"format 1.*tidegate migrate"):
            tidegate.connect(redis.url, namespace)
        for command in (
            ["status"],
            ["recover", "--wal", f"file://{tmp_path}/wal"],
            ["get", "aircraft", "N1"],
        ):
            refused = run(*command, *places)
            assert (refused.exit_code, "tidegate migrate" in refused.stderr) == (
                ConfigError.exit_code,
                True,
            ), command
        for before in (1, 2, 2):
            done = run("migrate", "--json", "--force", *places)
            assert done.exit_code == 0, done.stderr
            assert f'"before":{before},"format":2' in done.stdout
            assert redis.ask("HMGET", meta, "latest", "library") == [latest, library_name()]
        with tidegate.connect(redis.url, namespace) as gate:
            assert gate.table("aircraft").get("N1") == {"carrier": "UA", "flights": 1}
        redis.ask("HSET", meta, "identity", redis.ask("HGET", meta, "identity").replace(":2}", ":3}"))
        for command in ("migrate", "status"):
            refused = run(command, *places)
            assert "this release knows format 2: upgrade" in refused.stderr
    finally:
        redis.forget(namespace)


def test_a_creation_in_format_1_that_was_interrupted_is_named_and_dropped(redis: RedisServer, tmp_path: Path):
    namespace = "half-made"
    meta = f"tg:{{{namespace}}}:meta"
    identity = f'{{"uuid":"u1","name":"{namespace}","key_groups":8,"format":1}}'
    redis.ask("HSET", meta, "uuid", "u1", "identity", identity)
    places = ["--store", redis.url, "--namespace", namespace]
    logs = ["--wal", f"file://{tmp_path}/wal"]
    try:
        for command in (["migrate"], ["init", *logs]):
            refused = run(*command, *places)
            assert refused.exit_code == ConfigError.exit_code, command
            assert "creation of a namespace of storage format 1 was interrupted" in refused.stderr
            assert "`tidegate drop --only-stores --force`" in refused.stderr
        dropped = run("drop", "--only-stores", "--force", "--yes", *places, *logs)
        assert dropped.exit_code == 0, dropped.stderr
        done = run("init", *places, *logs)
        assert done.exit_code == 0, done.stderr
        assert redis.ask("HGET", meta, "identity").endswith('"format":2}')
    finally:
        redis.forget(namespace)
