"""The proxy is transparent until it is told otherwise, and then does what the rule says and nothing else.

The broker here is a few lines, and answers each frame with the same bytes. What the proxy knows of other
protocols: ``redis/servers`` and ``cassandra/servers``.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from services.support.kafka.proxy import KafkaProxy
from services.support.kafka.wire import FRAME_BYTES_MAX, Api
from support.wait import wait_until

DEADLINE_S, SILENT_S = 20.0, 0.3
ANY_PORT = ("127.0.0.1", 0)
Dial = Callable[..., socket.socket]


def request(number: int, body: bytes = b"", key: int = Api.API_VERSIONS) -> bytes:
    frame = struct.pack(">hhi", key, 0, number) + body
    return struct.pack(">i", len(frame)) + frame


def reply(sock: socket.socket) -> tuple[int, bytes] | None:
    """The number and the bytes of the next reply; None: the connection has ended."""
    try:
        if not (head := received(sock, 4)):
            return None
        frame = received(sock, *struct.unpack(">i", head))
    except ConnectionResetError:
        return None
    return struct.unpack_from(">i", frame)[0], frame[4:]


def received(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := sock.recv(size - len(found))):
        found += more
    return found


def answer(sock: socket.socket) -> int | None:
    found = reply(sock)
    return None if found is None else found[0]


def is_silent(sock: socket.socket) -> bool:
    sock.settimeout(SILENT_S)
    try:
        return sock.recv(1) is None
    except TimeoutError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)


class Broker:
    """Keeps the numbers of the requests that came, in their order."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._door = socket.create_server(ANY_PORT)
        self.address = self._door.getsockname()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while head := received(client, 4):
                frame = received(client, *struct.unpack(">i", head))
                self.came.append(struct.unpack_from(">i", frame, 4)[0])
                client.sendall(struct.pack(">i", len(frame) - 4) + frame[4:])

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with contextlib.closing(Broker()) as made:
        yield made


@pytest.fixture
def proxy(broker: Broker) -> Iterator[KafkaProxy]:
    with KafkaProxy([(ANY_PORT, broker.address)]) as made:
        yield made


@pytest.fixture
def dial(proxy: KafkaProxy) -> Iterator[Dial]:
    with contextlib.ExitStack() as opened:

        def connect(address: tuple[str, int] = proxy.addresses[0]) -> socket.socket:
            return opened.enter_context(socket.create_connection(address, DEADLINE_S))

        yield connect


# -- transparent ----------------------------------------------------------------------------------


def test_megabytes_pass_both_ways_byte_for_byte(dial):
    draw = random.Random(7)
    sizes = [*(draw.choice((0, 1, 4096, 70_000, 900_000)) for _ in range(20)), 5_000_000]
    sock, bodies = dial(), [draw.randbytes(size) for size in sizes]
    sending = threading.Thread(
        target=lambda: [sock.sendall(request(n, body)) for n, body in enumerate(bodies)]
    )
    sending.start()
    assert [reply(sock) for _ in bodies] == list(enumerate(bodies))
    sending.join(DEADLINE_S)


def test_every_frame_is_seen_and_counted(proxy, dial):
    sock = dial()
    sock.sendall(request(1, key=Api.PRODUCE) + request(2, key=9999))
    assert [answer(sock), answer(sock)] == [1, 2]
    assert proxy.count(Api.PRODUCE) == proxy.count(Api.PRODUCE, "reply") == proxy.count(9999) == 1
    assert sorted((frame.kind, frame.direction) for frame in proxy.seen) == [
        *((Api.PRODUCE, "reply"), (Api.PRODUCE, "request")),
        *((9999, "reply"), (9999, "request")),
    ]
    assert sorted(frame.n for frame in proxy.seen) == [1, 2, 3, 4]
    proxy.wait_count(9999, 1)
    with pytest.raises(TimeoutError, match="PRODUCE"):
        proxy.wait_count(Api.PRODUCE, 2, timeout=0.05)


# -- lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("what, came", [("drop_reply", [1, 2]), ("drop_request", [2])])
def test_what_is_lost_is_done_or_not_and_its_connection_is_closed_or_silent(
    proxy, broker, dial, what, came, close
):
    rule = getattr(proxy, what)(Api.API_VERSIONS, close=close)
    lost, other = dial(), dial()
    lost.sendall(request(1))
    rule.wait()
    if close:
        assert answer(lost) is None
    if what == "drop_reply":
        wait_until(lambda: broker.came == [1], "the broker does it")
    other.sendall(request(2))
    assert answer(other) == 2
    assert close or is_silent(lost)
    assert (broker.came, rule.hits) == (came, 1)


def test_a_rule_takes_only_what_it_names_and_so_often(proxy, dial):
    rule = proxy.drop_request(Api.API_VERSIONS, times=2, contains=b"marked")
    other = proxy.drop_request(Api.API_VERSIONS, times=None, where=lambda frame: frame.endswith(b"hit"))
    elsewhere = proxy.drop_request(Api.API_VERSIONS, route=1)
    kind = proxy.drop_request(Api.METADATA)

    def comes_back(body):
        sock = dial()
        sock.sendall(request(5, body))
        return answer(sock) == 5

    bodies = (b"plain", b" marked", b" marked", b" marked")
    assert [comes_back(body) for body in bodies] == [True, False, False, True]
    assert [comes_back(body) for body in (b"a hit", b"a hit", b"hit!")] == [False, False, True]
    other.remove()
    assert comes_back(b"a hit")
    assert (rule.hits, other.hits, elsewhere.hits, kind.hits) == (2, 2, 0, 0)
    rule.wait(hits=2)
    with pytest.raises(TimeoutError, match="drop_request"):
        rule.wait(0.05, hits=3)


# -- held -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["client", "cut"])
def test_a_held_request_lands_later_though_its_connection_is_gone(proxy, broker, dial, gone):
    hold, late = proxy.hold_request(Api.API_VERSIONS), dial()
    late.sendall(request(1))
    hold.arrived()
    late.close() if gone == "client" else proxy.cut()
    next_one = dial()
    next_one.sendall(request(2))
    assert answer(next_one) == 2
    assert hold.release() == 1
    assert broker.came == [2, 1]
    assert hold.release() == 0


@pytest.mark.parametrize("what, came", [("hold_request", [1]), ("hold_reply", [1, 2, 3])])
def test_what_is_held_and_what_follows_on_its_connection_wait(proxy, broker, dial, what, came):
    hold, sock = getattr(proxy, what)(Api.API_VERSIONS, contains=b"held"), dial()
    sock.sendall(request(1) + request(2, b"held") + request(3))
    assert answer(sock) == 1
    hold.arrived()
    wait_until(lambda: broker.came == came, "the broker has what is not held")
    assert is_silent(sock)
    assert hold.release() == 1
    assert [answer(sock), answer(sock)] == [2, 3]


def test_a_held_reply_whose_client_is_gone_goes_nowhere(proxy, dial):
    hold = proxy.hold_reply(Api.API_VERSIONS)
    dial().sendall(request(1))
    hold.arrived()
    assert proxy.cut() == 1
    assert hold.release() == 0


@pytest.mark.parametrize("which", ["hold_request", "hold_reply"])
def test_discarding_loses_the_frame_and_its_connection(proxy, dial, which):
    hold, sock = getattr(proxy, which)(Api.API_VERSIONS), dial()
    sock.sendall(request(1))
    hold.arrived()
    with pytest.raises(TimeoutError):
        hold.wait(0.05, hits=2)
    assert hold.discard() == 1
    assert answer(sock) is None
    assert hold.release() == 0


def test_a_request_that_arrives_twice_is_answered_once(proxy, broker, dial):
    rule, sock = proxy.duplicate(Api.API_VERSIONS), dial()
    sock.sendall(request(1) + request(2))
    assert [answer(sock), answer(sock)] == [1, 2]
    assert sorted(broker.came) == [1, 1, 2]
    assert rule.hits == 1


# -- connections ----------------------------------------------------------------------------------


def test_cut_ends_all_connections_and_lets_new_ones_in(proxy, dial):
    socks = [dial() for _ in range(120)]
    for number, sock in enumerate(socks):
        sock.sendall(request(number))
    assert [answer(sock) for sock in socks] == list(range(120))
    assert proxy.cut(route=0) == 120
    assert [answer(sock) for sock in socks] == [None] * 120
    again = dial()
    again.sendall(request(2))
    assert answer(again) == 2


def test_one_route_at_a_time(broker, dial):
    with KafkaProxy([(ANY_PORT, broker.address)] * 2) as proxy:

        def works(route):
            sock = dial(proxy.addresses[route])
            sock.sendall(request(1))
            return answer(sock) == 1

        rule = proxy.drop_request(Api.API_VERSIONS, route=1)
        assert [works(0), works(1), works(1)] == [True, False, True]
        assert (rule.hits, proxy.cut(route=1), proxy.cut()) == (1, 1, 1)
        proxy.refuse(route=1)
        assert works(0)
        with pytest.raises(ConnectionRefusedError):
            works(1)
        proxy.accept()
        assert works(1)


def test_refused_connections_leave_open_ones_and_the_port(proxy, dial):
    open_before = dial()
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    open_before.sendall(request(2))
    assert answer(open_before) == 2
    proxy.accept()
    dial()


def test_a_black_hole_takes_everything_and_answers_nothing(proxy, broker, dial):
    before, waits, hold = dial(), dial(), proxy.hold_reply(Api.API_VERSIONS)
    waits.sendall(request(1))
    hold.arrived()
    proxy.black_hole()
    assert hold.release() == 0
    after = dial()
    before.sendall(request(2))
    after.sendall(request(3))
    assert all(is_silent(sock) for sock in (waits, before, after))
    assert broker.came == [1]
    proxy.accept()
    before.sendall(request(4))
    assert is_silent(before), "what lost a frame stays silent: no broker leaves one out"
    again = dial()
    again.sendall(request(5))
    assert answer(again) == 5


def test_a_client_that_stops_sending_gets_its_replies(dial):
    sock = dial()
    sock.sendall(request(1) + request(2))
    sock.shutdown(socket.SHUT_WR)
    assert [answer(sock), answer(sock), answer(sock)] == [1, 2, None]


def test_clients_that_vanish_in_the_middle_of_a_frame_do_no_harm(proxy, dial):
    for end in (b"", request(1)[:2], request(1)[:9], request(1)):
        sock = dial()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close is a reset
        sock.sendall(end)
        sock.close()
    other = dial()
    other.sendall(request(2))
    assert answer(other) == 2
    assert not proxy.failures


@pytest.mark.parametrize("size", [-1, 0, 7, FRAME_BYTES_MAX + 1])
def test_a_size_that_cannot_be_ends_the_connection(proxy, dial, size):
    sock = dial()
    sock.sendall(struct.pack(">i", size) + bytes(max(0, min(size, 100))))
    assert answer(sock) is None
    assert proxy.hostile == 1


def test_a_broker_that_is_not_there_hangs_up(dial):
    with socket.socket() as nobody:
        nobody.bind(ANY_PORT)
        with KafkaProxy([(ANY_PORT, nobody.getsockname())]) as proxy:
            assert answer(dial(proxy.addresses[0])) is None


# -- callbacks and the end ------------------------------------------------------------------------


def test_a_callback_comes_before_each_frame_and_may_lose_it(proxy, broker, dial):
    told = []

    def callback(n, direction, kind):
        told.append((n, direction, kind, list(broker.came)))
        return n != 3

    proxy.on_frame(callback)
    sock = dial()
    sock.sendall(request(1))
    assert answer(sock) == 1
    sock.sendall(request(2))
    assert answer(sock) is None
    kinds = [(1, "request", []), (2, "reply", [1]), (3, "request", [1])]
    assert told == [(n, direction, Api.API_VERSIONS, came) for n, direction, came in kinds]


def test_a_callback_cannot_call_the_proxy_and_its_error_is_not_lost(broker, dial):
    proxy = KafkaProxy([(ANY_PORT, broker.address)])
    proxy.on_frame(lambda *_: proxy.cut())
    sock = dial(proxy.addresses[0])
    sock.sendall(request(1))
    assert answer(sock) is None
    with pytest.raises(RuntimeError, match="callback"):
        proxy.close()
    proxy.close()


def test_closing_leaves_no_thread_no_connection_and_no_port(broker, dial):
    proxy = KafkaProxy([(ANY_PORT, broker.address)])
    hold = proxy.hold_request(Api.API_VERSIONS, contains=b"held")
    idle, held = dial(proxy.addresses[0]), dial(proxy.addresses[0])
    idle.sendall(request(1)[:6])
    held.sendall(request(2, b"held"))
    hold.arrived()
    proxy.close()
    assert not proxy._thread.is_alive()
    assert [answer(sock) for sock in (idle, held)] == [None, None]
    with pytest.raises(ConnectionRefusedError):
        dial(proxy.addresses[0])
    proxy.close()
