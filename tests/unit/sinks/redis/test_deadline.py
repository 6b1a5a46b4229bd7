"""One deadline for all servers that a call asks, however many of them are silent. No server."""

from __future__ import annotations

import os
from time import monotonic

import pytest
import redis

from tidegate.base import deadline
from tidegate.base.deadline import one_call
from tidegate.base.urls import Address
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.client.servers import Servers
from tidegate.sinks.redis.client.settings import settings_of

SERVERS, TIMEOUT_S = 6, 10.0
KEYS, ROOM = 300, 10


class Time:
    now = 0.0


class Silent:
    """A connection to a server that never answers: who reads waits for as long as the socket says."""

    def __init__(self, time):
        self._sock, self._time, self._limit_s = self, time, None
        self.opened_by, self.opened_at = os.getpid(), monotonic()

    def limit(self, limit_s):
        self._limit_s = limit_s

    def send_packed_command(self, _packed):
        pass

    def read_response(self, **_):
        self._time.now += self._limit_s
        raise redis.TimeoutError("silent")

    read_at_once = read_response

    def has_surplus(self):
        return False

    def disconnect(self):
        pass


class SilentServers(Servers):
    """Each key on a server of its own."""

    def __init__(self, settings, time):
        super().__init__(settings)
        self._time = time

    def node_of(self, key):
        node = self.node_at(Address("host", int(key)))
        node.ready = True
        if not node._idle:
            node.give(Silent(self._time))
        return node

    def primaries(self):
        return [self.node_of(b"%d" % number) for number in range(SERVERS)]

    def refresh(self):
        pass


def test_a_call_to_many_silent_servers_ends_at_its_deadline(monkeypatch):
    time = Time()
    monkeypatch.setattr(deadline, "monotonic", lambda: time.now)
    settings = settings_of("redis+cluster://host", {"timeout_s": TIMEOUT_S})
    calls = Calls(SilentServers(settings, time), "store", lambda _: True, frozenset)
    asked = [plain(b"%d" % number, b"GET", b"%d" % number) for number in range(SERVERS)]
    with one_call(), pytest.raises(StoreUnavailableError, match="no answer within 10"):
        calls.run(asked)
    assert time.now == TIMEOUT_S


class Cutting(Silent):
    """A connection of a server that closes it when more than ``ROOM`` replies wait for the client."""

    def __init__(self, time):
        super().__init__(time)
        self._pending = []

    def send_packed_command(self, packed):
        self._pending += packed[0].split(b"GET")[1:]

    def read_response(self, **_):
        if len(self._pending) > ROOM:
            raise redis.ConnectionError("Connection closed by server.")
        return self._pending.pop(0)


class CuttingServer(SilentServers):
    def node_of(self, key):
        node = self.node_at(Address("host", 1))
        node.ready = True
        if not node._idle:
            node.give(Cutting(self._time))
        return node


def test_replies_that_a_server_cuts_are_asked_for_in_smaller_flights():
    servers = CuttingServer(settings_of("redis+cluster://host", {}), Time())
    calls = Calls(servers, "store", lambda _: True, frozenset)
    asked = [plain(b"%d" % number, b"GET", b"%d" % number) for number in range(KEYS)]
    assert len(calls.run(asked)) == KEYS


class TooLarge(Silent):
    """A connection of a server that closes it at each reply; the deadline ends the last try."""

    def read_response(self, **_):
        self._time.now += TIMEOUT_S / 3
        if self._time.now < TIMEOUT_S:
            raise redis.ConnectionError("Connection closed by server.")
        raise redis.TimeoutError("Timeout reading from socket")


class TooLargeServer(SilentServers):
    has_answered = True

    def node_of(self, key):
        node = self.node_at(Address("host", 1))
        node.ready = True
        node.give(TooLarge(self._time))
        return node


def test_the_error_of_replies_that_are_too_large_names_the_limit_at_any_moment(monkeypatch):
    """Also where the deadline, and no cut, ended the last try."""
    time = Time()
    monkeypatch.setattr(deadline, "monotonic", lambda: time.now)
    settings = settings_of("redis+cluster://host", {"timeout_s": TIMEOUT_S})
    calls = Calls(TooLargeServer(settings, time), "store", lambda _: True, frozenset)
    with one_call(), pytest.raises(StoreUnavailableError, match=r"by server \(.*client-output-buffer-limit"):
        calls.run([plain(b"1", b"GET", b"1")])
