"""The proxy: what passes, passes; the one disturbed request is done, and nobody hears of it in time."""

import contextlib
import queue
import socket
import threading

import pytest

from tidegate.torture.driver.tcp_proxy import TcpProxy, proxied, server_of

WAIT_S = 20.0


class Echo:
    """Answers every piece with itself, and keeps what came in order."""

    def __init__(self):
        self.came = queue.Queue()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = self._door.getsockname()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            while piece := client.recv(65_536):
                self.came.put(piece)
                client.sendall(piece)

    def close(self):
        self._door.close()


@pytest.fixture
def echo():
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy_of(echo):
    made = []

    def make(*, late, strike=lambda: None):
        made.append(TcpProxy(echo.address, late=late, late_s=0.0, strike=strike))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


def client_of(proxy):
    client = socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)
    client.settimeout(WAIT_S)
    return client


def ended(client):
    """Whether the connection was closed without an answer."""
    try:
        return client.recv(100) == b""
    except ConnectionError:
        return True


def test_what_is_not_disturbed_passes(proxy_of):
    with client_of(proxy_of(late=False)) as client:
        for piece in (b"one", b"two"):
            client.sendall(piece)
            assert client.recv(100) == piece


def test_a_lost_reply_is_of_a_request_that_was_done(proxy_of, echo):
    struck = threading.Event()
    proxy = proxy_of(late=False, strike=struck.set)
    with client_of(proxy) as client, client_of(proxy) as other:
        proxy.disturb()
        client.sendall(b"lost")
        assert ended(client)
        assert struck.wait(WAIT_S)
        assert echo.came.get(timeout=WAIT_S) == b"lost"
        other.sendall(b"next")  # one request, not all
        assert other.recv(100) == b"next"


def test_a_late_request_comes_when_its_client_has_gone(proxy_of, echo):
    go_on = threading.Event()
    proxy = proxy_of(late=True, strike=lambda: go_on.wait(WAIT_S))
    with client_of(proxy) as client, client_of(proxy) as other:
        proxy.disturb()
        client.sendall(b"late")
        assert ended(client)
        other.sendall(b"first")
        assert other.recv(100) == b"first"
        go_on.set()
        assert [echo.came.get(timeout=WAIT_S) for _ in range(2)] == [b"first", b"late"]


def test_which_urls_a_proxy_can_stand_before():
    assert server_of("redis://h:7/0") == ("h", 7)
    assert server_of("redis://h") == ("h", 6379)
    for url in ("rediss://h:7", "redis+sentinel://h:7/m", "kafka://h:7", "sqlite:///s", "redis://u:p@h:7"):
        assert server_of(url) is None


def test_the_url_through_the_proxy_keeps_the_rest():
    assert proxied("redis://h:7/0?x=1", 99) == "redis://127.0.0.1:99/0?x=1"
