"""Replies of another form than their call's, of each function and command, to readers and writers.

Such a reply once is healed on another connection. A program that never answers otherwise is one of tidegate's
errors.
No reply of one call is taken for that of another.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import weakref

import pytest

import tidegate
import tidegate.aio
from services.support.in_loop import InLoop
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis.client import servers
from tidegate.sinks.redis.client.aio import channel
from tidegate.sinks.redis.client.functions import names
from tidegate.sinks.redis.client.replies import Call, plain
from tidegate.sinks.redis.client.shapes import SHAPES, WrongReplyError, fits
from tidegate.testing.example import BATCHES, Example, write_flights

NAME = re.compile(
    rb"\$\d+\r\n(?:tidegate2_[0-9a-f]+_(\w+)|(INFO|HM?GET(?:ALL)?|HSET|HKEYS|HLEN|SCAN|EXISTS|MEMORY))\r\n"
)
CALLS = re.compile(rb"(?:^|(?<=\r\n))\*\d+\r\n(?=\$\d+\r\n[A-Z])")
WRONG = {
    "nil": None,
    "a number": 5,
    "a text": b"OK",
    "an empty text": b"",
    "an empty list": [],
    "a list of nil": [None],
    "a list of lists": [[b"x"], [[]]],
    "a long list": [b"x"] * 11,
    "an error in a list": [servers.redis.ResponseError("ERR nested"), 1],
    "a MOVED without a place": ValueError("not enough values to unpack"),
    "no reply at all": servers.redis.InvalidResponse("Protocol error"),
}
READS = ("get", "many", "version", "snapshot", "scan", "history", "wait")


def test_each_function_has_a_form():
    assert set(names()) <= SHAPES.keys()


def may_be(name, wrong):
    """Whether a function or command may give this reply."""
    sample = Call(b"k", name, (b"uuid", b"t", b"1", b"0", b"k"))
    call = sample if name in names() else plain(b"k", name.encode(), b"k", b"f")
    return not isinstance(WRONG[wrong], Exception) and fits(call, WRONG[wrong])


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"XREAD"}))
def test_no_form_takes_replies_of_all_forms(name):
    taken = [kind for kind in WRONG if may_be(name, kind)]
    assert "a list of lists" not in taken
    assert "an error in a list" not in taken
    assert len(taken) <= 3, taken


class Faulty:
    """Replaces the reply of one function or command, on the client's side of the connection."""

    def __init__(self) -> None:
        self.left, self.reply, self.seen = dict[str, int](), None, set[str]()

    def arm(self, reply, times, *names):
        """Replace as many replies of each of these."""
        self.reply, self.left = reply, dict.fromkeys(names, times)

    def sent(self, connection, contents):
        queue = connection.__dict__.setdefault("of_test", [])
        for command in CALLS.split(b"".join(bytes(part) for part in contents))[1:]:
            found = NAME.search(command[:400])
            queue.append(next(filter(None, found.groups())).decode() if found else "")
            self.seen.add(queue[-1])

    def takes(self, connection):
        """Whether the next reply is replaced."""
        queue = connection.__dict__.get("of_test", [])
        name = queue.pop(0) if queue else ""
        if not self.left.get(name):
            return False
        self.left[name] -= 1
        return True


@pytest.fixture
def faulty(monkeypatch):
    made = Faulty()
    monkeypatch.setattr(servers, "_SHARED", weakref.WeakValueDictionary())  # no idle connection of before

    def replaced(reply):
        if isinstance(reply, Exception):
            raise reply
        return reply

    for module, kind in ((servers, servers._Plain), (channel, channel.Plain)):
        (ours, base), is_async = kind.__mro__[1:3], module is channel

        def send(self, contents, *more, _ours=ours, **named):
            made.sent(self, contents if isinstance(contents, list | tuple) else [contents])
            return _ours.send_packed_command(self, contents, *more, **named)

        def read(self, *given, _base=base, **named):
            wrong = made.takes(self)
            reply = _base.read_response(self, *given, **named)
            return replaced(made.reply) if wrong else reply

        async def read_async(self, *given, _base=base, **named):
            wrong = False
            try:
                reply = await _base.read_response(self, *given, **named)
            finally:  # only now: it waits before anything is sent
                wrong = made.takes(self)
            return replaced(made.reply) if wrong else reply

        middle = type("Middle", (base,), {"read_response": read_async if is_async else read})
        faulty_kind = type("Faulty", (ours, middle), {"send_packed_command": send})
        monkeypatch.setattr(module, kind.__name__, faulty_kind)
    return made


def read(gate, kind):
    match kind:
        case "get":
            assert gate.table("aircraft").get("N14228") == {"carrier": "UA", "flights": 2}
        case "many":
            assert len(gate.table("aircraft").get_many(["N14228", "N24211", "x"])) == 1
        case "version":
            assert gate.version() == 3
        case "snapshot":
            with gate.snapshot() as snapshot:
                assert snapshot.table("aircraft").get("N14228") == {"carrier": "UA", "flights": 2}
        case "scan":
            assert len(dict(gate.table("airports").scan())) == 3
        case "history":
            assert len(gate.history()) == 3
        case "wait":
            assert gate.wait_for(version=3, timeout=1) == 3


@pytest.fixture(scope="module")
def flights(redis):
    write_flights("memory://wrong-replies", redis.url, "wrong_replies")
    return redis.url


OF_READERS = ("pointer", "read", "scan", "catalog", "schemas", "lease", "release", "HMGET")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", READS)
def test_a_reader_asks_again_after_a_reply_of_another_form(faulty, flights, kind, wrong):
    fit = [name for name in OF_READERS if not may_be(name, wrong)]
    for connect, name in itertools.product((tidegate.connect, InLoop), fit):
        faulty.arm(None, 0)
        with connect(flights, "wrong_replies", {"timeout_s": 5}) as gate:
            faulty.arm(WRONG[wrong], 1, name)
            read(gate, kind)
            faulty.arm(None, 0)
            read(gate, kind)


@pytest.mark.parametrize("wrong", ["nil", "an error in a list", "a MOVED without a place"])
def test_a_server_that_always_answers_in_another_form_is_unavailable(faulty, flights, wrong):
    for connect, name in itertools.product((tidegate.connect, InLoop), ("pointer", "read")):
        faulty.arm(None, 0)
        with connect(flights, "wrong_replies", {"timeout_s": 0.3}) as gate:
            faulty.arm(WRONG[wrong], 10**6, name)
            with pytest.raises(StoreUnavailableError):
                read(gate, "get")


def write(url, namespace):
    """Most calls of a writer: open, begin, apply, seal, flip, retire, verify, vacuum, drop."""
    example = Example(f"memory://{namespace}", f"{url}", namespace)
    try:
        for rows in BATCHES:
            example.write(rows)
        store = example.driver.store
        store.heartbeat(example.driver.epoch)
        assert store.pointer().visible == 3
        store.announce(3)
        store.begun(), store.leases(), list(store.self_check()), store.unverified(), store.size()
        store.vacuum()
        with store.comparing(example.driver.epoch):
            pass
        assert store.pointer().visible == 3
        store.drop()
    finally:
        example.close()


@pytest.mark.parametrize("wrong", WRONG)
def test_a_writer_is_not_misled_by_replies_of_another_form(faulty, redis, wrong):
    """The first reply of each function: a repeated call takes no harm, and a flip is read back."""
    named = {name for name in SHAPES.keys() - {"XREAD"} if not may_be(name, wrong)}
    faulty.arm(WRONG[wrong], 1, *named)
    write(redis.url, f"wrong_writes_{list(WRONG).index(wrong)}")
    replaced = {name for name, left in faulty.left.items() if not left}
    assert named & {"publish", "seal_many", "begin", "create", "merge", "announce", "header"} <= replaced


# -- replies of other calls -----------------------------------------------------------------------------


def test_an_idle_connection_with_a_reply_of_nobodys_is_not_used(flights):
    with tidegate.connect(flights, "wrong_replies") as gate:
        read(gate, "get")
        (connection,) = gate._reader.store._space.servers.node_of(b"k")._idle
        connection.send_command("HGET", "tg:{wrong_replies}:meta", "uuid")  # as a proxy that answers twice
        while not connection.can_read(0.1):
            pass
        for kind in READS:
            read(gate, kind)
        assert connection._sock is None


def test_a_channel_with_a_reply_of_nobodys_is_not_used(flights):
    async def reads():
        async with await tidegate.aio.connect(flights, "wrong_replies") as gate:
            assert await gate.table("aircraft").get("N14228")
            (node,) = gate._reader.store._calls.servers._nodes.values()
            (first,) = node._channels
            await first._connection.send_command("HGET", "tg:{wrong_replies}:meta", "uuid")
            while not first._is_readable():
                pass  # without the loop: its reader does not see the reply before the next call
            assert await gate.table("aircraft").get("N14228") == {"carrier": "UA", "flights": 2}
            assert await gate.version() == 3
            assert first.failed is not None
            assert isinstance(first.failed, WrongReplyError)

    asyncio.run(reads())
