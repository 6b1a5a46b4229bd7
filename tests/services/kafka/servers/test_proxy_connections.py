"""Connections through the proxy: cut, refused, silent, with bad frames; its callbacks, process and end."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from services.support.kafka.proxy import KafkaProxy
from services.support.kafka.wire import FRAME_BYTES_MAX, Api
from services.support.proxy.kafka_clients import ANY_PORT, DEADLINE_S, QUICK, answer, is_silent, request

pytest_plugins = ["services.support.kafka.proxied"]
pytestmark = pytest.mark.slow  # a tool of these tests, which they would miss soon enough


# -- connections ----------------------------------------------------------------------------------


def test_cut_ends_all_connections_and_lets_new_ones_in(proxy, dial):
    socks = [dial() for _ in range(5)]
    for sock in socks:
        sock.sendall(request(1))
        assert answer(sock) == 1
    assert proxy.cut(route=0) >= 5  # a client of before may have connected once more
    assert [answer(sock) for sock in socks] == [None] * 5
    again = dial()
    again.sendall(request(2))
    assert answer(again) == 2


def test_one_route_at_a_time(proxied_kafka, dial):
    target = proxied_kafka.cluster.proxied_target(0)
    with KafkaProxy([(ANY_PORT, target), (ANY_PORT, target)]) as proxy:

        def works(broker):
            sock = dial(proxy.addresses[broker])
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


def test_refused_connections_and_the_same_port_again(proxied_kafka, proxy, dial, sender, log):
    open_before = dial()
    open_before.sendall(request(1))
    assert answer(open_before) == 1
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    open_before.sendall(request(2))
    assert answer(open_before) == 2
    assert sender(message_timeout_ms=300).send(b"no").flush()[0].code() == KafkaError._MSG_TIMED_OUT
    proxy.accept()
    assert sender().send(b"yes").flush() == [None]
    assert log() == [b"yes"]


def test_a_black_hole_takes_everything_and_answers_nothing(proxied_kafka, proxy, dial):
    before = dial()
    before.sendall(request(1))
    assert answer(before) == 1
    hold, waits = proxy.hold_reply(Api.API_VERSIONS), dial()
    waits.sendall(request(1))
    hold.arrived()
    replies = proxy.count(Api.API_VERSIONS, "reply")
    proxy.black_hole()
    assert hold.release() == 0
    assert is_silent(waits)
    after = dial()
    before.sendall(request(2))
    after.sendall(request(3))
    assert is_silent(before)
    assert is_silent(after)
    assert proxy.count(Api.API_VERSIONS, "reply") == replies, "the broker heard of it"
    with pytest.raises(KafkaException, match=r"(?i)transport|timed out"):
        AdminClient({"bootstrap.servers": proxied_kafka.bootstrap, **QUICK}).list_topics(timeout=0.5)
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


def test_many_connections_at_once(proxy, dial):
    socks = [dial() for _ in range(120)]
    for number, sock in enumerate(socks):
        sock.sendall(request(number))
    assert [answer(sock) for sock in socks] == list(range(120))


@pytest.mark.parametrize("size", [-1, 0, 7, FRAME_BYTES_MAX + 1])
def test_a_size_that_cannot_be_ends_the_connection(proxy, dial, size):
    before, sock = proxy.hostile, dial()
    sock.sendall(struct.pack(">i", size) + bytes(max(0, min(size, 100))))
    assert answer(sock) is None
    assert proxy.hostile == before + 1


def test_a_broker_that_is_not_there_hangs_up(dial):
    with socket.socket() as nobody:
        nobody.bind(ANY_PORT)
        with KafkaProxy([(ANY_PORT, nobody.getsockname())]) as proxy:
            assert answer(dial(proxy.addresses[0])) is None


# -- callbacks, processes and the end -------------------------------------------------------------


def test_a_callback_comes_before_each_frame_and_may_lose_it(proxy, dial):
    told = []

    def callback(n, direction, kind):
        told.append((n, direction, kind))
        return n != 3

    proxy.on_frame(callback)
    sock = dial()
    sock.sendall(request(1))
    assert answer(sock) == 1
    sock.sendall(request(2))
    assert answer(sock) is None
    kinds = [(1, "request"), (2, "reply"), (3, "request")]
    assert told == [(n, direction, Api.API_VERSIONS) for n, direction in kinds]


def test_a_callback_that_kills_the_client_comes_before_the_frame(proxied_kafka, proxy, topic, log):
    script = f"""if True:
        from confluent_kafka import Producer
        producer = Producer({{"bootstrap.servers": {proxied_kafka.bootstrap!r}}})
        producer.produce({topic!r}, b"one")
        producer.flush()
        print("acknowledged", flush=True)
    """
    for deadly, passes, expected in (("request", False, 0), ("request", None, 1), ("reply", None, 2)):
        client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)

        def callback(n, direction, kind, client=client, deadly=deadly, passes=passes):
            if kind is Api.PRODUCE and direction == deadly:
                client.kill()
                client.wait(DEADLINE_S)
                return passes
            return None

        before = proxy.count(Api.PRODUCE, "reply")
        proxy.on_frame(callback)
        out, _ = client.communicate(timeout=DEADLINE_S)
        assert (client.returncode, out) == (-signal.SIGKILL, b"")
        if passes is None:
            proxy.wait_count(Api.PRODUCE, before + 1, "reply")
        assert len(log()) == expected


def test_a_callback_cannot_call_the_proxy_and_its_error_is_not_lost(proxied_kafka, dial):
    proxy = KafkaProxy([(ANY_PORT, proxied_kafka.cluster.proxied_target(0))])
    proxy.on_frame(lambda *_: proxy.cut())
    sock = dial(proxy.addresses[0])
    sock.sendall(request(1))
    assert answer(sock) is None
    with pytest.raises(RuntimeError, match="callback"):
        proxy.close()
    proxy.close()


def test_closing_leaves_no_thread_no_connection_and_no_port(proxied_kafka, dial):
    before = set(threading.enumerate())
    proxy = KafkaProxy([(ANY_PORT, proxied_kafka.cluster.proxied_target(0))])
    hold = proxy.hold_request(Api.API_VERSIONS, contains=b"held")
    proxy.black_hole()
    dark = dial(proxy.addresses[0])
    dark.sendall(request(1)[:6])
    proxy.accept()
    idle, held = dial(proxy.addresses[0]), dial(proxy.addresses[0])
    idle.sendall(request(1))
    assert answer(idle) == 1
    held.sendall(request(2, body=b"held"))
    hold.arrived()
    started = time.monotonic()
    proxy.close()
    assert time.monotonic() - started < 60
    assert set(threading.enumerate()) <= before
    assert [answer(sock) for sock in (dark, idle, held)] == [None] * 3
    with pytest.raises(ConnectionRefusedError):
        dial(proxy.addresses[0])
    proxy.close()
    own_ends = {sock.fileno() for sock in (dark, idle, held)}
    assert sockets_at(proxy.addresses[0][1]) <= own_ends


def sockets_at(port):
    """This process's sockets with the port on one of their ends (``man 5 proc``, /proc/net/tcp)."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    of_port = {f"socket:[{line[9]}]" for line in lines if f":{port:04X}" in f"{line[1]} {line[2]}"}
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, by any other thread
            if str(entry.readlink()) in of_port:
                found.add(int(entry.name))
    return found


def test_it_runs_as_a_process_of_its_own(proxied_kafka, dial):
    tests = Path(__file__).parents[3]
    script = tests / "services/support/kafka/proxy.py"
    target = "{}:{}".format(*proxied_kafka.cluster.proxied_target(0))
    command = [sys.executable, script, "--listen", "127.0.0.1:0", "--target", target]
    environment = {**os.environ, "PYTHONPATH": str(tests), "PYTHONSAFEPATH": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            sock = dial(("127.0.0.1", int(process.stdout.readline().split(":")[-1])))
            sock.sendall(request(1))
            assert answer(sock) == 1
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
            out = process.stdout.read()
        finally:
            process.kill()
    assert [line.split()[:2] for line in out.splitlines()] == [["1", "request"], ["2", "reply"]]
