"""The pointer as a Redis namespace notes it: decoded if it has changed, with a new age of its heartbeat."""

from collections.abc import Callable

import pytest

from tidegate.errors import CorruptError
from tidegate.sinks.redis import namespace
from tidegate.sinks.redis.namespace import RedisNamespace


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> RedisNamespace:
    decoded: list[object] = []
    decode: Callable[..., object] = namespace.known_in
    monkeypatch.setattr(namespace, "known_in", lambda *args: decoded.append(args) or decode(*args))
    made = RedisNamespace("redis://nowhere", "flights", {})
    made.decoded = decoded
    return made


def fields(visible, now_us, beat_us=b"1000000", servers=b"id"):
    return [b"%d" % visible, b"digest", b"1", b"writer", b"1", beat_us, servers, b"%d" % now_us]


def test_a_pointer_that_has_not_changed_is_decoded_once_and_has_a_new_age(space):
    assert space._note(fields(3, 2_000_000)).heartbeat_age_s == 1.0
    pointer = space._note(fields(3, 4_500_000))
    assert (pointer.visible, pointer.heartbeat_age_s, len(space.decoded)) == (3, 3.5, 1)
    assert space._note(fields(3, 4_500_000, beat_us=None)).heartbeat_age_s is None
    assert space._note(fields(3, 5_500_000, beat_us=None)).heartbeat_age_s is None


def test_a_closed_writers_age_grows_too(space):
    for now_us, age_s in ((2_000_000, 1.0), (4_500_000, 3.5)):
        pointer = space._note(fields(3, now_us, beat_us=b"-1000000"))
        assert (pointer.heartbeat_age_s, pointer.closed_age_s) == (None, age_s)
    assert len(space.decoded) == 1


def test_a_pointer_that_went_back_is_counted_and_so_is_each_further_step(space):
    for visible in (3, 2, 2, 3, 2):
        assert space._note(fields(visible, 2_000_000)).visible == visible
    assert (space.went_back, space.visible) == (2, 2)


def test_servers_that_are_listed_now_are_noted(space):
    space._note(fields(3, 2_000_000))
    space._note(fields(3, 2_000_000, servers=b"id,other"))
    assert space.listed == {b"id", b"other"}


def test_a_pointer_that_no_release_writes_is_refused_each_time(space):
    for _ in range(2):
        with pytest.raises(CorruptError):
            space._note([b"x", *fields(3, 2_000_000)[1:]])
