"""A namespace with about as many tables as one may have is compared and rebuilt like any other."""

from __future__ import annotations

import contextlib

import pytest

import tidegate
from services.support.redis.server import RedisServer
from tidegate.committers.opening.recover import recover
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.testing.example import Example
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.table_room import tables_max

SCHEMA = TableSchema((Column("k", "int"),), (Column("v", "int"),))
TABLES = [f"t{number}" for number in range(tables_max(1) - 70)]


@pytest.mark.parametrize("loss", ["a restart", "every row"])
def test_a_server_that_restarts_or_comes_back_empty_is_compared_with_the_log(tmp_path, loss):
    """Calls on a key group name each table that was replaced, or each that has a base."""
    with RedisServer(tmp_path / "redis", settings={"appendfsync": "no"}) as server:

        def driver():
            example = Example(f"file://{tmp_path}/wal", server.url, "n", options=Options(key_groups=1))
            example.schemas.update(dict.fromkeys(TABLES, SCHEMA))
            return contextlib.closing(example)

        with driver() as writer:
            writer.write({name: {1: {"v": 0}} for name in TABLES})
            writer.write({name: {1: {"v": 1}} for name in TABLES}, starts=frozenset(TABLES))
            for number in range(3):
                writer.write({"t1": {1: {"v": number}}})
            held = writer.driver
            while held.store.pointer().horizon < 4:
                retire_up_to(held.log, held.store, held.folded, Options(keep_versions=1), lambda: False)
        if loss == "every row":
            server.ask("FLUSHALL")
        server.stop()
        server.restart()
        with driver() as writer:
            recover(writer.driver)
            writer.write({"t2": {1: {"v": 7}}})
        with tidegate.connect(server.url, "n") as gate, gate.snapshot() as snapshot:
            found = {name: snapshot.table(name).get(1)["v"] for name in ("t0", "t1", "t2", TABLES[-1])}
    assert found == {"t0": 1, "t1": 2, "t2": 7, TABLES[-1]: 1}
