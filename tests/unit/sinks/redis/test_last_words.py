"""The last words of a Redis server before it ends a connection: gates raise one error of them."""

import asyncio
import contextlib
import re
import socket
import threading
import time

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import ConfigError, StoreUnavailableError

TIMEOUT_S = 0.15
FULL = "ERR max number of clients reached"
CLOSED = ConfigError, StoreUnavailableError
TABLE = [
    (FULL, StoreUnavailableError, "max number of clients reached"),
    ("LOADING Redis is loading the dataset in memory", StoreUnavailableError, "loading the dataset"),
    ("MASTERDOWN Link with MASTER is down", StoreUnavailableError, "Link with MASTER is down"),
    ("no upstream host", StoreUnavailableError, "no upstream host"),
    ("DENIED Redis is running in protected mode", ConfigError, "running in protected mode"),
    ("NOAUTH Authentication required.", ConfigError, "Authentication required"),
    ("WRONGPASS invalid username-password pair", ConfigError, "invalid username-password pair"),
    ("ERR Protocol error: unauthenticated bulk length", ConfigError, "Protocol error"),
]
"""What a server says, without the sign of an error reply; the error of it; what the error quotes."""
NO_REPLIES = [
    (b"", "HOST", "rediss"),
    (b"\x15\x03\x03\x00\x02\x02\x46", "no reply of Redis", "rediss"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no reply of Redis", "connect to the server itself"),
]
"""What a server sends that is no reply; the cause that the error names, and its advice."""
ENDS = [(False, False), (True, False), (True, True)]
"""Whether a server waits for a request before it speaks, and whether it ends the connection by a reset."""
URLS = [
    "redis://{}",
    "redis://user:sesame@{}/3",
    "redis+cluster://{}",
    "redis+cluster://:sesame@{}",
    "redis+sentinel://{}/primary",
]


class Server:
    """A server that says one thing to each client and ends the connection.

    ``asked``: it waits for a request. ``reset``: it reads one byte of it, so that the end is a reset.
    """

    def __init__(self, words, *, asked, reset):
        self.words, self.asked, self.reset = words, asked, reset
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with client:
                if self.asked:
                    client.recv(1 if self.reset else 65536)
                client.sendall(self.words)


def of_a_gate(url):
    with tidegate.connect(url, "flights", {"timeout_s": TIMEOUT_S}):
        raise AssertionError("it connected")


async def of_an_async_gate(url):
    async with await tidegate.aio.connect(url, namespace="flights", options={"timeout_s": TIMEOUT_S}):
        raise AssertionError("it connected")


def errors_at(url):
    """The error of each kind of gate at the server, without its address."""
    found = []
    for connect in (of_a_gate, lambda url: asyncio.run(of_an_async_gate(url))):
        with pytest.raises(CLOSED) as caught:
            connect(url)
        found.append((type(caught.value), re.sub(r"127\.0\.0\.1:\d+", "HOST", str(caught.value))))
    return found


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("asked, reset", ENDS)
@pytest.mark.parametrize("words, error, told", TABLE, ids=[words for words, *_ in TABLE])
def test_both_gates_raise_the_error_of_the_words(words, error, told, asked, reset, url):
    with Server(b"-%b\r\n" % words.encode(), asked=asked, reset=reset) as server:
        of_sync, of_async = errors_at(url.format(server.address))
    assert of_sync == of_async
    assert of_sync[0] is error
    assert told in of_sync[1]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("asked", [False, True], ids=["at once", "when asked"])
@pytest.mark.parametrize("sent, cause, advice", NO_REPLIES)
def test_bytes_that_are_no_reply_are_named_with_advice(sent, cause, advice, asked, url):
    with Server(sent, asked=asked, reset=False) as server:
        found = errors_at(url.format(server.address))
    for error, message in found:
        assert error is StoreUnavailableError
        assert cause in message
        assert advice in message


class Slow(Server):
    """A server that begins a reply, and then sends a byte each 10 ms, until the client has closed it."""

    is_left = True

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with client, contextlib.suppress(OSError):
                    client.recv(65536)
                    client.sendall(self.words)
                    for _ in range(1_000):
                        client.sendall(b"1")
                        time.sleep(0.01)
                    self.is_left = False


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("begin", [b":", b"+", b"$1000000\r\n", b"*1000\r\n+"])
def test_a_call_ends_at_its_deadline_however_often_a_byte_arrives(begin, url):
    with Slow(begin, asked=True, reset=False) as server:
        for error, _ in errors_at(url.format(server.address)):
            assert issubclass(error, CLOSED)
        assert server.is_left
