"""Whoever slept in the middle of a create or a drop, and wakes behind another namespace of the same name."""

from __future__ import annotations

import contextlib

import pytest

from tidegate.errors import ConfigError
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.namespace import RedisNamespace
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import get, put

ROWS = {"t": {b"k%d" % number: b"new" for number in range(20)}}


@pytest.fixture
def opened(redis, namespace):
    """Stores of the namespace, each another process's."""
    made = []

    def another():
        made.append(RedisStore(redis.url, namespace))
        return made[-1]

    yield another
    for each in made:
        each.close()


def make_anew(opened, namespace):
    opened().drop()
    fresh = opened()
    fresh.create(Identity("uuid-2", namespace, 4))
    fresh.claim(1, "writer")
    put(fresh, 1, ROWS, 4)
    return fresh


def is_whole(fresh):
    assert get(fresh, "t", list(ROWS["t"]), 1) == [b"new"] * len(ROWS["t"])
    assert list(fresh.self_check()) == []


class Sleeper:
    """Of one store's calls, something else is done before the one of this number."""

    def __init__(self, store, number, meanwhile):
        self.calls, self.number, self.meanwhile = store._space.calls, number, meanwhile
        self.run, self.done, self.fresh = self.calls.run, 0, None
        self.calls.run = self

    def __call__(self, *args, **options):
        self.done += 1
        if self.done == self.number:
            self.fresh = self.meanwhile()
        return self.run(*args, **options)


def refusal(act):
    """Whether it was refused, since the namespace is another one now."""
    try:
        act()
    except ConfigError as error:
        found = str(error)
    else:
        return False
    assert "dropped while it was open" in found
    return True


CALLS = range(2, 9)
"""The first one looks whose the namespace is: before it nobody has slept."""


@pytest.mark.parametrize("number", CALLS)
def test_a_late_create_removes_nothing_of_the_namespace_that_was_made_meanwhile(opened, namespace, number):
    late = opened()
    sleeper = Sleeper(late, number, lambda: make_anew(opened, namespace))
    refusal(lambda: late.create(Identity("uuid-1", namespace, 4)))
    if sleeper.fresh is not None:
        is_whole(sleeper.fresh)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("number", CALLS)
@pytest.mark.parametrize("ready", [False, True])
def test_a_late_drop_removes_nothing_of_the_namespace_that_was_made_meanwhile(
    opened, namespace, monkeypatch, ready, number
):
    """Also of one whose making was cut short, which has no identity yet."""
    late = opened()
    with monkeypatch.context() as cut:
        if not ready:
            cut.setattr(RedisNamespace, "make_headers", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError) if not ready else contextlib.nullcontext():
            late.create(Identity("uuid-1", namespace, 4))
    sleeper = Sleeper(late, number, lambda: make_anew(opened, namespace))
    refused = refusal(late.drop)
    if sleeper.fresh is not None:
        is_whole(sleeper.fresh)
        assert opened().drop() is True
    assert refused or sleeper.done < 9, "the last calls of a drop are looked at, too"
    assert opened().drop() is False


def test_what_a_drop_that_was_cut_short_left_is_removed(opened, redis, namespace):
    """Without a pointer nobody knows whose it was; the next drop and the next create remove it."""
    for finish in (lambda: opened().drop() is True, lambda: make_anew(opened, namespace)):
        store = opened()
        store.create(Identity("uuid-1", namespace, 4))
        store.claim(1, "writer")
        put(store, 1, ROWS, 4)
        with redis.client() as client:
            client.unlink(f"tg:{{{namespace}}}:meta")
        fresh = finish()
    is_whole(fresh)
