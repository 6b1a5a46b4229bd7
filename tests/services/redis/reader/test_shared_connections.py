"""Namespaces of one process on one server share idle connections; the last one closes them."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from tidegate.errors import TidegateError
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import EPOCH, get, put

NAMESPACES, THREADS, DESCRIPTORS = 100, 60, 200


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def opened(redis, namespace, **options):
    return RedisStore(redis.url, namespace, **options)


def test_writers_and_readers_of_100_namespaces_share_connections(redis, namespace):
    """Two stores for each: a writer's and a gate's."""
    before, threads, stores = descriptors(), threading.active_count(), []
    for number in range(NAMESPACES):
        writer = opened(redis, f"{namespace}-{number}")
        writer.create(Identity(f"uuid-{number}", writer._space.namespace, 2))
        writer.claim(EPOCH, "writer")
        put(writer, 1, {"t": {b"k": b"%d" % number}}, 2)
        reader = opened(redis, f"{namespace}-{number}")
        assert get(reader, "t", [b"k"], 1) == [b"%d" % number]
        stores += [writer, reader]
    assert descriptors() - before <= 5
    assert threading.active_count() - threads <= THREADS
    for store in stores[1:]:
        store.close()
    assert stores[0].pointer().visible == 1
    for writer in stores[::2]:
        writer.drop()
        writer.close()
    assert descriptors() <= before


def test_another_login_gets_no_connection_of_this_one(redis, namespace):
    store = opened(redis, namespace)
    store.create(Identity("uuid", namespace, 1))
    other = opened(redis, namespace, username="nobody", password="wrong")
    with pytest.raises(TidegateError):
        other.pointer()
    store.drop()
    store.close()
    other.close()


def test_a_store_that_was_never_closed_keeps_no_connection_open_for_another(redis, namespace):
    gc.collect()  # what earlier tests have left
    before, store = descriptors(), opened(redis, namespace)
    store.identity()
    abandoned = opened(redis, namespace)
    abandoned.identity()
    del abandoned
    gc.collect()
    store.close()
    assert descriptors() == before
