"""Changes of an alias that arrive late, behind others that have returned, change nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.errors import StoreUnavailableError
from tidegate.sinks.aliases import Aliases, Target
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.store import RedisStore

BLUE, GREEN = Target("blue", "uuid-blue"), Target("green", "uuid-green")
Act = Callable[[Aliases, str], object]


def set_to(target: Target) -> Act:
    return lambda aliases, alias: aliases.set(alias, target)


def drop(aliases: Aliases, alias: str) -> object:
    return aliases.drop(alias)


@pytest.fixture(params=["redis", "cassandra"])
def aliases(request: pytest.FixtureRequest) -> Iterator[Aliases]:
    server = request.getfixturevalue(request.param)
    if request.param == "redis":
        store: Any = RedisStore(server.url, "late-aliases")
    else:
        name = f"late{uuid.uuid4().hex[:8]}"
        store = CassandraStore(server.url, name, create=True, replication=1)
        store.create(Identity(uuid.uuid4().hex, name, 2))
    yield store.aliases()
    store.close()


def written(aliases: Any, alias: str, act: Act) -> Callable[[], None]:
    """Does it, and returns what lets its writes reach the server again."""
    name = "_change" if hasattr(aliases, "_change") else "_decide"
    write, calls = getattr(aliases, name), []

    def noting(*args: object) -> object:
        calls.append(args)
        return write(*args)

    setattr(aliases, name, noting)
    try:
        act(aliases, alias)
    finally:
        delattr(aliases, name)
    assert calls

    def again() -> None:
        for args in calls:
            write(*args)

    return again


@pytest.mark.parametrize(
    "before, late, later, stands",
    [
        (None, set_to(BLUE), set_to(GREEN), GREEN),
        (GREEN, set_to(BLUE), set_to(GREEN), GREEN),
        (GREEN, set_to(BLUE), drop, None),
        (BLUE, drop, set_to(GREEN), GREEN),
    ],
)
def test_a_change_that_arrives_late_changes_nothing(aliases, before, late, later, stands):
    alias = f"Late.{uuid.uuid4().hex}"
    if before is not None:
        aliases.set(alias, before)
    again = written(aliases, alias, late)
    later(aliases, alias)
    again()
    assert aliases.get(alias) == stands


def test_what_others_change_all_the_time_is_tried_again_a_bounded_number_of_times(aliases, monkeypatch):
    alias = f"Late.{uuid.uuid4().hex}"
    aliases.set(alias, GREEN)
    name = "_look" if hasattr(aliases, "_look") else "_row"
    stale = getattr(aliases, name)(alias)
    aliases.set(alias, GREEN)
    monkeypatch.setattr(aliases, name, lambda _: stale)
    for act in (set_to(BLUE), drop):
        with pytest.raises(StoreUnavailableError, match="repeat the command"):
            act(aliases, alias)
    monkeypatch.undo()
    assert aliases.get(alias) == GREEN
