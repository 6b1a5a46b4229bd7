"""Repair on Redis destroys nothing that it cannot put back, and overlapping repairs undo nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from services.support.redis.query import Query, query_on
from services.support.redis.server import RedisServer
from services.support.workloads.query import KEY_GROUPS, expected, found_at, held_snapshot
from support.concurrency import Failpoints
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.recover import recover
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.repair import repair
from tidegate.errors import StoreNotVerifiedError, WalGapError
from tidegate.keys.groups import key_group
from tidegate.sinks.records import ReadAt

GROUP = 3
Keys = Mapping[str, Any]


@pytest.fixture
def server(redis: RedisServer) -> RedisServer:
    return redis


@pytest.fixture
def query(server: RedisServer, tmp_path) -> Iterator[Query]:
    with query_on(server.url, tmp_path) as made:
        yield made


def trimmed(query: Query, versions: int = 9) -> Coordinator:
    """A namespace as it is after a day: versions below the horizon are in no log."""
    driver = query.run(versions, summary_every=1)
    query.tidy(driver)
    return driver


def keys_of(server: RedisServer, query: Query, group: int = GROUP) -> dict[str, Any]:
    """All that a key group has, by name without what all have in common."""
    prefix = query.keys_of(group)
    with server.client() as client:
        return {key.removeprefix(prefix): client.hgetall(key) for key in client.keys(f"{prefix}*")}


def without_header(keys: Keys) -> Keys:
    return {name: rows for name, rows in keys.items() if name != "h"}


def newest_layer(keys: Keys) -> str:
    return max((name for name in keys if ":d:" in name), key=lambda name: int(name.split(":")[2]))


def forget(server: RedisServer, query: Query, name: str, group: int = GROUP) -> None:
    assert server.ask("DEL", f"{query.keys_of(group)}{name}") == 1


def readable(query: Query, version: int, groups: set[int]) -> bool:
    """Whether all of these key groups answer, and are right."""
    store = query.store()
    (entry,) = store.catalog(version, version)
    for group in groups:
        for table, at in entry.tables.items():
            rows = {}
            try:
                for found in store.scan(ReadAt(table, version, at.start), group):
                    rows.update(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
            except StoreNotVerifiedError:
                return False
            wanted = expected(version).get(table, {})
            assert rows == {key: row for key, row in wanted.items() if key_group(key, KEY_GROUPS) == group}
    return True


OTHERS = set(range(KEY_GROUPS)) - {GROUP}


def test_one_lost_layer_costs_nothing_else(server: RedisServer, query: Query):
    """The log has that version, and has long forgotten what the base is made of."""
    driver = trimmed(query)
    before = keys_of(server, query)
    layer = newest_layer(before)
    assert any(name.endswith(":b") for name in before)
    forget(server, query, layer)
    version = int(layer.split(":")[2])
    assert repair(driver) == [(version, 1, False)]
    after = keys_of(server, query)
    assert without_header(after) == without_header(before)
    assert {name: after["h"].get(name) for name in before["h"] if not name.startswith("k:")} == {
        name: value for name, value in before["h"].items() if not name.startswith("k:")
    }
    query.commit(driver, 9)
    assert verify(driver.log, query.store()).findings == []


def test_a_base_that_the_log_no_longer_holds_is_told_and_the_rest_stays(server: RedisServer, query: Query):
    driver = trimmed(query)
    visible = driver.store.pointer().visible
    before = keys_of(server, query)
    base = next(name for name in before if name.endswith(":b"))
    forget(server, query, base)
    forget(server, query, newest_layer(before))
    for _ in range(2):
        with pytest.raises(WalGapError, match=rf"key group {GROUP}, table {base[:-2]}, versions 1 to"):
            repair(driver)
        assert without_header(keys_of(server, query)) == {
            name: rows for name, rows in without_header(before).items() if name != base
        }
        assert readable(query, visible, OTHERS)
        assert not readable(query, visible, {GROUP})
        assert query.store().unverified()
    told = rf"lost table {base[:-2]} up to version \d+\. It is not back"
    with pytest.raises(StoreNotVerifiedError, match=told):
        list(query.store().scan(ReadAt(base[:-2], visible), GROUP))


def test_a_header_that_the_log_no_longer_holds_leaves_the_rows_where_they_are(server, query: Query):
    driver = trimmed(query)
    visible = driver.store.pointer().visible
    before = keys_of(server, query)
    forget(server, query, "h")
    with pytest.raises(WalGapError, match=rf"key group {GROUP}, "):
        repair(driver)
    after = keys_of(server, query)
    assert {name: after[name] for name in without_header(before)} == without_header(before)
    assert readable(query, visible, OTHERS)
    assert not readable(query, visible, {GROUP})


@pytest.mark.parametrize("lost", ["b", "h", "d"])
def test_what_the_log_holds_is_put_back_beside_what_is_there(lost: str, server: RedisServer, query: Query):
    """Readers of the other key groups never notice, and reads cost afterwards what they cost before."""
    driver = query.run(9)
    query.retire(driver)
    before = keys_of(server, query)
    name = lost if lost == "h" else next(key for key in before if f":{lost}" in key)
    forget(server, query, name)
    assert repair(driver)
    after = keys_of(server, query)
    assert without_header(after) == without_header(before)
    assert {key for key in after["h"] if key[0] in "lb" and "lost" not in key} == {
        key for key in before["h"] if key[0] in "lb"
    }
    assert after["h"]["floor"] == before["h"]["floor"]
    assert repair(driver) == []
    query.retire(driver)
    query.check(9)


def test_a_layer_whose_merge_is_under_way_is_put_back(server: RedisServer, query: Query):
    """One of its rows is in the base, as after a merge's first step: all come again, and are merged again."""
    driver = query.run(5, keep_versions=1)
    driver.store.announce(5)
    layers = [
        (len(rows), group, name)
        for group in range(KEY_GROUPS)
        for name, rows in keys_of(server, query, group).items()
        if ":d:1:" in name
    ]
    count, group, layer = max(layers)
    assert count > 1
    table, prefix = layer.partition(":")[0], query.keys_of(group)
    (key, row), *_ = keys_of(server, query, group)[layer].items()
    server.ask("HSET", f"{prefix}h", "floor", 1, f"b:{table}", 1)
    server.ask("HSET", f"{prefix}{table}:b", key, row)
    server.ask("HDEL", f"{prefix}{layer}", key)
    forget(server, query, layer, group)
    assert repair(driver) == [(1, 1, False)]
    assert readable(query, 5, {group})
    query.retire(driver)
    query.check(5)


# -- repairs that overlap -----------------------------------------------------------------------------


def test_the_end_of_one_repair_leaves_the_mark_of_another(server, query: Query, failing_at: Failpoints):
    """B begins while all is whole. Rows are lost, A begins and finds them gone. B ends: the key group is not
    whole for that, and is refused until A is done, or another repair."""
    driver = trimmed(query)
    visible = driver.store.pointer().visible
    base = next(name for name in keys_of(server, query) if name.endswith(":b"))
    another = query.driver()
    another.decisions.catch_up()
    another.decisions.epoch = driver.epoch

    def lose_and_begin() -> None:
        forget(server, query, base)
        with pytest.raises(WalGapError):
            repair(another)

    at = failing_at.at("repair.before_listing", lose_and_begin)
    repair(driver)
    assert at.done
    assert not readable(query, visible, {GROUP})
    assert readable(query, visible, OTHERS)
    assert query.store().unverified()


def test_a_repair_ends_the_marks_of_those_that_died_before_it(server, query: Query, failing_at: Failpoints):
    driver = query.run(9)
    query.retire(driver)
    header = f"{query.keys_of(GROUP)}h"
    forget(server, query, next(name for name in keys_of(server, query) if name.endswith(":b")))
    for _ in range(10):
        failing_at.at("repair.before_listing", _die)
        with pytest.raises(Died):
            repair(driver)
    uuid, _, tokens = server.ask("HGET", header, "u").partition("!")
    assert uuid == driver.store.identity().uuid
    assert len(tokens.split(",")) == 8
    repair(driver)
    assert server.ask("HGET", header, "u") == uuid
    query.check(9)


def test_a_repair_does_not_end_one_that_began_later(server, query: Query, failing_at: Failpoints):
    """A and B both put the base back; between them another table's base is lost."""
    driver = query.run(9)
    query.retire(driver)
    first, second = [name for name in keys_of(server, query) if name.endswith(":b")][:2]
    another = query.driver()
    another.decisions.catch_up()
    another.decisions.epoch = driver.epoch
    forget(server, query, first)

    def lose_more_and_die() -> None:
        forget(server, query, second)
        failing_at.at("repair.before_listing", _die)
        with pytest.raises(Died), _nothing_is_built(another):
            repair(another)

    failing_at.at("repair.before_listing", lose_more_and_die)
    repair(driver)
    assert not readable(query, 9, {GROUP})
    assert driver.store.unverified()
    recover(driver)
    assert not driver.store.unverified()
    query.check(9)


def test_an_idle_query_finds_the_mark_that_a_command_left(server, query: Query, failing_at: Failpoints):
    driver = query.run(9)
    query.retire(driver)
    forget(server, query, newest_layer(keys_of(server, query)))
    another = query.driver()
    another.decisions.catch_up()
    another.decisions.epoch = driver.epoch
    failing_at.at("repair.before_listing", _die)
    with pytest.raises(Died):
        repair(another)
    assert query.store().unverified()
    recover(query.open())
    query.check(9)


def test_what_a_repair_wrote_beside_and_left_is_dropped(server, query: Query, monkeypatch):
    driver = query.run(9)
    query.retire(driver)
    forget(server, query, next(name for name in keys_of(server, query) if name.endswith(":b")))
    monkeypatch.setattr("tidegate.sinks.redis.upkeep.rebuild.Rebuild.drop_what_is_left", lambda _: None)
    monkeypatch.setattr(driver.store, "put_bases", lambda *_: True)
    repair(driver)
    beside = [name for name in keys_of(server, query) if ":r:" in name]
    assert len(beside) == 1
    with contextlib.suppress(StoreNotVerifiedError):
        driver.store.vacuum()
    assert [name for name in keys_of(server, query) if ":r:" in name] == beside
    monkeypatch.undo()
    repair(driver)
    assert driver.store.vacuum(dry_run=True).rows == driver.store.vacuum().rows > 0
    assert not [name for name in keys_of(server, query) if ":r:" in name]
    query.check(9)


@contextlib.contextmanager
def _nothing_is_built(driver: Coordinator) -> Iterator[None]:
    put: Callable[..., bool] = driver.store.put_bases
    driver.store.put_bases = lambda *_: False
    try:
        yield
    finally:
        driver.store.put_bases = put


class Died(BaseException):
    pass


def _die() -> None:
    raise Died


def test_held_snapshots_are_refused_or_whole_all_along(server, query: Query, failing_at: Failpoints):
    driver = query.run(9)
    query.retire(driver)
    with held_snapshot(query) as held:
        forget(server, query, next(name for name in keys_of(server, query) if name.endswith(":b")))
        looks: list[str] = []
        failing_at.at("repair.before_listing", lambda: looks.append(held.look()))
        repair(driver)
        assert looks == ["StoreNotVerifiedError"]
        assert held.look() == "whole"
    assert found_at(query.store(), 9) == expected(9)
