"""Hashes of Redis that somebody changed: errors that name the place, never a traceback."""

from __future__ import annotations

import contextlib
import os
import re

import pytest

import tidegate
from services.support.in_loop import InLoop
from services.support.redis.query import query_on
from services.support.redis.repairs.sources import run
from services.support.redis.server import RedisServer
from tampering import rows, stores
from tampering.redis_stores import RedisCases
from tampering.row_places import RedisPlace
from tidegate.errors import CorruptError

CASES = int(os.environ.get("TIDEGATE_TAMPER", "150"))
"""How many changes at random; for longer: python -m tampering.stores --store redis://..."""

ROW_CASES = int(os.environ.get("TIDEGATE_TAMPER_ROWS", "100"))
"""The number of changes of rows."""


@pytest.mark.slow
def test_a_hash_with_any_field_changed_gives_what_was_there_or_an_error_that_says_where(
    private_redis, tmp_path
):
    said: list[str] = []
    cases = RedisCases(tmp_path, private_redis().url)
    try:
        assert stores.run(cases, CASES, 1, said.append) == 0, said
    finally:
        cases.close()


@pytest.mark.slow
def test_every_change_of_a_row_that_a_reader_could_see_is_a_finding(private_redis, tmp_path):
    """For longer: python -m tampering.rows --store redis://..."""
    told: list[str] = []
    with contextlib.closing(RedisPlace(tmp_path, private_redis().url)) as place:
        assert rows.run(rows.Cases(place), ROW_CASES, 1, told.append) == 0, told


@pytest.fixture
def query(redis: RedisServer, tmp_path):
    with query_on(redis.url, tmp_path) as made:
        made.run(3)
        yield made


POINTERS = [
    *((field, content) for field in ("visible", "epoch", "horizon") for content in ("x", "-1", "", "1" * 30)),
    *(("heartbeat_us", content) for content in ("x", "")),
    *((field, b"\xff") for field in ("digest", "writer")),
    *((field, None) for field in ("visible", "digest", "epoch", "writer", "horizon", "servers")),
]


@pytest.mark.parametrize("field,content", POINTERS)
def test_a_pointer_that_is_none_is_an_error_with_its_place(query, redis, field, content):
    if content is None:
        redis.ask("HDEL", query.meta, field)
    else:
        redis.ask("HSET", query.meta, field, content)

    for connect in (tidegate.connect, InLoop):
        told = pytest.raises(CorruptError, match=f"{query.namespace}.*the pointer is .*from a copy")
        with told as caught, connect(query.url, query.namespace) as gate:
            gate.version()
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("change", [("HSET", "l:t", "x"), ("HSET", "floor", ""), ("HSET", b"b:\xff", "1")])
def test_a_header_that_is_none_is_an_error_with_its_place(query, redis, change):
    key = f"tg:{{{query.namespace}/0}}:h"
    redis.ask(change[0], key, *change[1:])
    (finding,) = query.store().self_check()
    assert re.search(r"key group 0: its header tg:.*cannot be read", finding.found)


@pytest.mark.parametrize("name", ["catalog", "schemas"])
def test_a_key_of_another_type_is_an_error_whose_advice_mends_it(query, redis, name):
    """Red before: it named another key, and a copy of the store as the only way."""
    key = query.meta.replace("meta", name)
    names = [getattr(each, "version", each) for each in getattr(query.store(), name)()]
    redis.ask("SET", key, "x")
    told = f"cannot use the value at tg:.*{query.namespace}.*WRONGTYPE.*`DEL KEY`"
    with pytest.raises(CorruptError, match=told):
        getattr(query.store(), name)()
    redis.ask("DEL", key)
    assert run(query, "repair", "--force").exit_code == 0
    assert [getattr(each, "version", each) for each in getattr(query.store(), name)()] == names


def test_an_entry_whose_time_is_none_is_an_error_with_its_version(query, redis):
    key = query.meta.replace("meta", "catalog")
    entry = redis.ask("HGET", key, "2").partition(" ")[2]
    redis.ask("HSET", key, "2", f"x {entry}")
    with pytest.raises(CorruptError, match="catalog, version 2: it was published at b'x'"):
        query.store().catalog()
