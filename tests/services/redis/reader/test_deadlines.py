"""One deadline for all that a reader's call asks of Redis, in threads and in an event loop (decision 0042).

Nothing here measures time: the clock of deadlines is set forward with each reply.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

import tidegate
import tidegate.aio
from services.support.in_loop import BOTH, InLoop
from services.support.redis.proxy import RedisProxy
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer
from services.support.workloads.random_versions import random_version, writer_on
from tidegate.base import deadline
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis import reads

KEYS = [f"N{n}" for n in range(40)]
IN_TIME_S, TOO_LATE_S = 6.0, 11.0
ROWS = {key: {"carrier": "UA", "flights": 1} for key in KEYS}


@pytest.fixture
def writer(redis: RedisServer, tmp_path):
    example = writer_on(redis.url, tmp_path)
    random_version(example, 1)
    example.write({"aircraft": ROWS})
    yield example
    example.driver.store.drop()
    example.close()


@pytest.fixture
def proxy(redis: RedisServer) -> Iterator[RedisProxy]:
    with RedisProxy(("127.0.0.1", redis.port)) as made:
        yield made


class Late:
    """The clock of deadlines jumps by so much with each reply that passes the proxy."""

    def __init__(self, proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self._plain, self._ahead_s = proxy.plain, 0.0
        monkeypatch.setattr(deadline, "monotonic", lambda: time.monotonic() + self._ahead_s)

    @contextlib.contextmanager
    def replies(self, late_s: float = TOO_LATE_S) -> Iterator[None]:
        """Within here. No request begins after a reply that was ``TOO_LATE_S`` late; one reply that is
        ``IN_TIME_S`` late is within its call's ten seconds wherever they are looked at, two are not.
        """

        def jump(_: int, direction: str, __: object) -> None:
            self._ahead_s += late_s if direction == "reply" else 0.0

        self._plain.on_frame(jump)
        try:
            yield
        finally:
            self._plain.on_frame(None)


@pytest.fixture
def late(proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch) -> Late:
    return Late(proxy, monkeypatch)


def url_of(proxy: RedisProxy) -> str:
    host, port = proxy.address
    return f"redis://{host}:{port}"


# -- calls of several requests ------------------------------------------------------------------------


def over():
    return pytest.raises(StoreUnavailableError, match=r"no answer within 10\.0 s")


@BOTH
def test_a_call_of_several_requests_has_one_deadline(connect, writer, proxy, late):
    with (
        connect(url_of(proxy), writer.driver.endpoints.namespace) as gate,
        connect(url_of(proxy), writer.driver.endpoints.namespace) as other,
        other.snapshot() as snapshot,
    ):
        with late.replies(IN_TIME_S):
            assert gate.version() == 2
        for ask in (
            gate.history,
            lambda: gate.snapshot().__enter__(),
            lambda: gate.table("aircraft").get("N1"),
            lambda: gate.table("aircraft").get_many(KEYS),
            lambda: snapshot.table("aircraft").get_many(KEYS),
            lambda: next(gate.table("aircraft").scan()),
        ):
            with late.replies(), over():
                ask()
        assert snapshot.table("aircraft").get_many(KEYS) == gate.table("aircraft").get_many(KEYS) == ROWS


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a scan is one call: the replies to several would each set the clock forward."""
    monkeypatch.setattr(reads, "GROUPS_AT_ONCE", 1)


@BOTH
def test_each_page_of_a_scan_has_a_deadline_of_its_own(connect, writer, proxy, late, one_by_one):
    with (
        connect(url_of(proxy), writer.driver.endpoints.namespace) as gate,
        gate.snapshot() as snapshot,
    ):
        table = snapshot.table("aircraft")
        assert {key: row for key, row in table.scan() if key in ROWS} == ROWS
        with late.replies(IN_TIME_S):
            assert {key: row for key, row in table.scan() if key in ROWS} == ROWS


@BOTH
def test_many_keys_are_asked_for_in_parts_with_a_deadline_each(connect, writer, proxy, late, monkeypatch):
    monkeypatch.setattr("tidegate.reader.table.CALL_KEYS", 1)
    with (
        connect(url_of(proxy), writer.driver.endpoints.namespace) as gate,
        gate.snapshot() as snapshot,
    ):
        assert snapshot.table("aircraft").get_many(KEYS) == ROWS
        with late.replies(IN_TIME_S):
            assert snapshot.table("aircraft").get_many(KEYS) == ROWS


def test_leases_are_renewed_after_the_call_that_took_them(writer, proxy, late):
    async def main():
        gate = await tidegate.aio.connect(url_of(proxy), writer.driver.endpoints.namespace)
        async with gate, gate.snapshot() as snapshot:
            with late.replies(IN_TIME_S):
                assert await gate.version() == 2  # the call that began the renewal is long over now
            lease, before = snapshot._hold.active, snapshot._hold.active.deadline
            lease.due = 0.0
            gate._reader.leases._changed.set()
            end = time.monotonic() + 30
            while not lease.due:
                assert time.monotonic() < end, "it was not renewed"
                await asyncio.sleep(0.005)
            assert lease.deadline > before

    asyncio.run(main())


# -- servers that say nothing ---------------------------------------------------------------------------

SILENT = {"timeout_s": 2, "socket_timeout": 600}
"""Alone a request would wait for ten minutes."""


@BOTH
def test_a_call_ends_at_its_deadline_whatever_a_request_may_take(connect, writer, proxy):
    with connect(url_of(proxy), writer.driver.endpoints.namespace, SILENT) as gate:
        assert gate.version() == 2
        held = proxy.hold_reply("FCALL_RO")
        with pytest.raises(StoreUnavailableError, match="no answer within"):
            gate.version()
        held.release()  # which nobody waits for any more, and nobody else is given
        assert gate.table("aircraft").get_many(KEYS) == ROWS


@pytest.fixture
def silent_sentinel() -> Iterator[str]:
    """Connections are accepted, and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        yield f"{host}:{port}"


@pytest.mark.xdist_group("redis_sentinel")
def test_a_silent_sentinel_leaves_time_for_the_next(redis_sentinel: RedisSentinel, silent_sentinel, tmp_path):
    writer = writer_on(redis_sentinel.url, tmp_path)
    writer.write({"aircraft": ROWS})
    scheme, _, rest = redis_sentinel.url.partition("://")
    where = f"{scheme}://{silent_sentinel},{rest.split(',')[-1]}", writer.driver.endpoints.namespace

    for connect in (tidegate.connect, InLoop):
        with connect(*where, {"timeout_s": 6}) as gate:
            assert gate.table("aircraft").get_many(KEYS) == ROWS
    writer.driver.store.drop()
    writer.close()
