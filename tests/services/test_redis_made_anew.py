"""Whoever slept in the middle of a create or a drop, and wakes behind another namespace of the same name."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigError
from tidegate.sinks.redis_space import Space
from tidegate.sinks.redis_store import RedisStore
from tidegate.sinks.store import Identity
from tidegate.testing.store_harness import get, put

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


def asleep(monkeypatch, name, meanwhile):
    """The next time that this step begins, something else is done before it."""
    step, slept = getattr(Space, name), []

    def wakes(space, *args):
        if not slept:
            slept.append(True)
            slept.append(meanwhile())
        return step(space, *args)

    monkeypatch.setattr(Space, name, wakes)
    return slept


def test_a_late_create_removes_nothing_of_the_namespace_that_was_made_meanwhile(
    opened, namespace, monkeypatch
):
    slept = asleep(monkeypatch, "_make_headers", lambda: make_anew(opened, namespace))
    with pytest.raises(ConfigError, match="dropped while it was open"):
        opened().create(Identity("uuid-1", namespace, 4))
    is_whole(slept[1])


@pytest.mark.parametrize("ready", [False, True])
def test_a_late_drop_removes_nothing_of_the_namespace_that_was_made_meanwhile(
    opened, namespace, monkeypatch, ready
):
    """Also of one whose making was cut short, which has no identity yet."""
    late = opened()
    with monkeypatch.context() as cut:
        if not ready:
            cut.setattr(Space, "_make_headers", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) if not ready else monkeypatch.context():
            late.create(Identity("uuid-1", namespace, 4))
    slept = asleep(monkeypatch, "_remove", lambda: make_anew(opened, namespace))
    with pytest.raises(ConfigError, match="dropped while it was open"):
        late.drop()
    is_whole(slept[1])
    assert opened().drop() is True
    assert opened().drop() is False
