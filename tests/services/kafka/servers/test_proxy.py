"""The proxy is transparent until it is told otherwise, and then does what the rule says and nothing else."""

import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.support.kafka.proxy import KafkaProxy
from services.support.kafka.wire import FRAME_BYTES_MAX, Api

pytest_plugins = ["services.support.kafka.proxied"]
pytestmark = pytest.mark.slow  # a tool of these tests, which they would miss soon enough

DEADLINE_S = 20.0
ANY_PORT = ("127.0.0.1", 0)
REQUEST_S = 1.0
QUICK = {"socket.timeout.ms": int(REQUEST_S * 1000), "retry.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


class Sender:
    """One producer through the proxy; what became of its messages."""

    def __init__(self, bootstrap, topic, **settings):
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **QUICK, **given})
        self.topic, self.errors = topic, []

    def send(self, *values):
        for value in values:
            self.producer.produce(self.topic, value, on_delivery=lambda error, _: self.errors.append(error))
        return self

    def flush(self):
        assert self.producer.flush(DEADLINE_S) == 0
        return self.errors

    def close(self):
        if self.producer is not None:
            self.producer.purge()
            self.producer.flush(DEADLINE_S)
            self.producer = None  # the last reference: its threads and connections end


@pytest.fixture
def proxy(proxied_kafka):
    return proxied_kafka.proxy


@pytest.fixture
def topic(proxied_kafka):
    name = f"p{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": proxied_kafka.direct})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(DEADLINE_S)
    return name


@pytest.fixture
def sender(proxied_kafka, topic):
    """Makes a sender; by default one that is not idempotent: what it sends twice is there twice."""
    made = []

    def make(*, idempotent=False, **settings):
        made.append(Sender(proxied_kafka.bootstrap, topic, enable_idempotence=idempotent, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log(proxied_kafka, topic):
    """What the topic holds, read without the proxy unless told."""

    def read(bootstrap=proxied_kafka.direct):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        try:
            partition = TopicPartition(topic, 0, 0)
            _, end = consumer.get_watermark_offsets(partition, timeout=DEADLINE_S)
            consumer.assign([partition])
            values, deadline = [], time.monotonic() + DEADLINE_S
            while len(values) < end:
                assert time.monotonic() < deadline, (len(values), end)
                for message in consumer.consume(end - len(values), 0.2):
                    assert message.error() is None, message.error()
                    values.append(message.value())
            return values
        finally:
            consumer.close()

    return read


@pytest.fixture
def dial(proxied_kafka):
    """Plain connections to the proxy."""
    with contextlib.ExitStack() as opened:

        def connect(address=proxied_kafka.proxy.addresses[0]):
            return opened.enter_context(socket.create_connection(address, DEADLINE_S))

        yield connect


def request(correlation_id, key=Api.API_VERSIONS, body=b""):
    """A frame that every broker answers: ApiVersions, version 0."""
    frame = struct.pack(">hhih", key, 0, correlation_id, 1) + b"x" + body
    return struct.pack(">i", len(frame)) + frame


def answer(sock):
    """The correlation id of the next reply; None: the connection has ended."""
    try:
        head = sock.recv(4, socket.MSG_WAITALL)
        return (
            struct.unpack(">i", sock.recv(*struct.unpack(">i", head), socket.MSG_WAITALL)[:4])[0]
            if head
            else None
        )
    except ConnectionResetError:
        return None


def is_silent(sock, seconds=0.3):
    sock.settimeout(seconds)
    try:
        return sock.recv(1) is None
    except TimeoutError:
        return True
    finally:
        sock.settimeout(DEADLINE_S)


# -- transparent ----------------------------------------------------------------------------------


def test_megabytes_pass_both_ways_byte_for_byte(proxied_kafka, sender, log):
    draw = random.Random(7)
    values = [draw.randbytes(draw.choice((0, 1, 4096, 70_000, 900_000))) for _ in range(40)]
    values += [draw.randbytes(900_000) for _ in range(8)]
    assert sender(idempotent=True, socket_timeout_ms=60_000).send(*values).flush() == [None] * len(values)
    assert log(proxied_kafka.bootstrap) == values
    assert log() == values


def test_every_frame_is_seen_and_counted(proxy, sender):
    before, seen = proxy.count(Api.PRODUCE), len(proxy.seen)
    sender().send(b"one").flush()
    assert proxy.count(Api.PRODUCE) == before + 1
    new = proxy.seen[seen:]
    produce = [frame for frame in new if frame.kind is Api.PRODUCE]
    assert [frame.direction for frame in produce] == ["request", "reply"]
    assert all(frame.version >= 7 and frame.size > 40 for frame in produce)
    assert [frame.n for frame in new] == list(range(new[0].n, new[0].n + len(new)))
    proxy.wait_count(Api.PRODUCE, before + 1)
    with pytest.raises(TimeoutError, match="PRODUCE"):
        proxy.wait_count(Api.PRODUCE, before + 2, timeout=0.05)


def test_an_api_without_a_name_is_a_number(proxy, dial):
    dial().sendall(request(1, key=9999))
    proxy.wait_count(9999, 1)


# -- lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("idempotent, expected", [(True, [b"one"]), (False, [b"one", b"one"])])
def test_a_lost_reply_is_a_written_message_that_is_sent_again(
    proxy, sender, log, close, idempotent, expected
):
    before = proxy.count(Api.PRODUCE)
    lost = proxy.drop_reply(Api.PRODUCE, close=close)
    started = time.monotonic()
    assert sender(idempotent=idempotent).send(b"one").flush() == [None]
    elapsed = time.monotonic() - started
    assert log() == expected
    assert (lost.hits, proxy.count(Api.PRODUCE)) == (1, before + 2)
    assert close or elapsed >= REQUEST_S


@pytest.mark.parametrize("close", [True, False])
def test_a_lost_request_never_reaches_the_broker(proxy, sender, log, close):
    before = proxy.count(Api.PRODUCE), proxy.count(Api.PRODUCE, "reply")
    lost = proxy.drop_request(Api.PRODUCE, close=close)
    assert sender().send(b"one").flush() == [None]
    assert log() == [b"one"]
    assert (proxy.count(Api.PRODUCE), proxy.count(Api.PRODUCE, "reply")) == (before[0] + 2, before[1] + 1)
    assert lost.hits == 1


def test_a_silent_connection_stays_open_and_silent(proxy, dial):
    for rule in (proxy.drop_reply, proxy.drop_request):
        rule(Api.API_VERSIONS, close=False)
        silent, other = dial(), dial()
        silent.sendall(request(1))
        other_may_start = proxy.count(Api.API_VERSIONS) + 1
        silent.sendall(request(2))
        proxy.wait_count(Api.API_VERSIONS, other_may_start)
        other.sendall(request(3))
        assert answer(other) == 3
        assert is_silent(silent)


def test_a_connection_that_is_to_be_closed_is_closed_at_once(proxy, dial):
    for rule, replies in ((proxy.drop_reply, 1), (proxy.drop_request, 0)):
        before = proxy.count(Api.API_VERSIONS, "reply")
        rule(Api.API_VERSIONS, contains=b"marked")  # others' clients may still be asking
        sock = dial()
        sock.sendall(request(1, body=b" marked"))
        assert answer(sock) is None
        assert proxy.count(Api.API_VERSIONS, "reply") >= before + replies


def test_a_rule_takes_only_what_it_names_and_so_often(proxy, dial):
    rule = proxy.drop_request(Api.API_VERSIONS, times=2, contains=b"marked")
    other = proxy.drop_request(Api.API_VERSIONS, times=None, where=lambda frame: frame.endswith(b"hit"))
    elsewhere = proxy.drop_request(Api.API_VERSIONS, route=1)
    kind = proxy.drop_request(Api.METADATA)

    def comes_back(body):
        sock = dial()
        sock.sendall(request(5, body=body))
        return answer(sock) == 5

    assert [comes_back(body) for body in (b"plain", b" marked", b" marked", b" marked")] == [
        True,
        False,
        False,
        True,
    ]
    assert [comes_back(b"a hit"), comes_back(b"a hit"), comes_back(b"hit!")] == [False, False, True]
    other.remove()
    assert comes_back(b"a hit")
    assert (rule.hits, other.hits, elsewhere.hits, kind.hits) == (2, 2, 0, 0)
    rule.wait(hits=2)
    with pytest.raises(TimeoutError, match="drop_request"):
        rule.wait(0.05, hits=3)


# -- held -----------------------------------------------------------------------------------------


def test_a_held_request_outlives_its_deadline_and_its_client_and_lands_later(proxied_kafka, sender, log):
    hold = proxied_kafka.proxy.hold_request(Api.PRODUCE)
    late = sender(delivery_timeout_ms=500).send(b"late")
    hold.arrived()
    assert [error.code() for error in late.flush()] == [KafkaError._MSG_TIMED_OUT]
    assert log() == []
    late.close()
    assert sender().send(b"next").flush() == [None]
    assert log(proxied_kafka.bootstrap) == [b"next"]
    assert hold.release() == 1
    assert log(proxied_kafka.bootstrap) == [b"next", b"late"]
    assert hold.release() == 0


def test_a_held_request_lands_though_its_connection_was_cut(proxy, sender, log):
    hold = proxy.hold_request(Api.PRODUCE, contains=b"late")
    late = sender().send(b"late")
    hold.arrived()
    assert proxy.cut() >= 1
    assert late.flush() == [None]  # the second try
    assert log() == [b"late"]
    assert hold.release() == 1
    assert log() == [b"late", b"late"]


def test_a_held_request_of_a_patient_client_is_answered(proxy, sender, log):
    hold = proxy.hold_request(Api.PRODUCE)
    patient = sender(socket_timeout_ms=60_000).send(b"one")
    hold.arrived()
    assert patient.producer.flush(0.2) == 1
    assert hold.release() == 1
    assert patient.flush() == [None]
    assert log() == [b"one"]


def test_what_follows_a_held_frame_on_its_connection_waits(proxy, dial):
    for rule in (proxy.hold_request, proxy.hold_reply):
        hold = rule(Api.API_VERSIONS, contains=b"held")
        sock = dial()
        sock.sendall(request(1) + request(2, body=b"held") + request(3))
        assert answer(sock) == 1
        hold.arrived()
        assert is_silent(sock)
        assert hold.release() == 1
        assert [answer(sock), answer(sock)] == [2, 3]


def test_a_held_reply_of_work_that_is_done(proxy, sender, log):
    hold = proxy.hold_reply(Api.PRODUCE)
    patient = sender(socket_timeout_ms=60_000).send(b"one")
    hold.arrived()
    assert log() == [b"one"]
    assert patient.producer.flush(0.2) == 1
    assert hold.release() == 1
    assert patient.flush() == [None]
    assert log() == [b"one"]


def test_a_held_reply_whose_client_is_gone_goes_nowhere(proxy, dial):
    hold = proxy.hold_reply(Api.API_VERSIONS)
    dial().sendall(request(1))
    hold.arrived()
    assert proxy.cut() >= 1  # a client that another test left may have connected once more
    assert hold.release() == 0


@pytest.mark.parametrize("which", ["hold_request", "hold_reply"])
def test_discarding_loses_the_frame_and_its_connection(proxy, dial, which):
    hold = getattr(proxy, which)(Api.API_VERSIONS)
    sock = dial()
    sock.sendall(request(1))
    hold.arrived()
    with pytest.raises(TimeoutError):
        hold.wait(0.05, hits=2)
    assert hold.discard() == 1
    assert answer(sock) is None
    assert hold.release() == 0


# -- twice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent, expected", [(True, [b"one"]), (False, [b"one", b"one"])])
def test_a_request_that_arrives_twice_is_answered_once(proxy, sender, log, idempotent, expected):
    before = proxy.count(Api.PRODUCE)
    rule = proxy.duplicate(Api.PRODUCE)
    assert sender(idempotent=idempotent).send(b"one").flush() == [None]
    assert log() == expected
    assert (rule.hits, proxy.count(Api.PRODUCE)) == (1, before + 1)


def test_the_client_gets_the_first_of_two_replies(proxied_kafka, proxy, topic):
    rule = proxy.duplicate(Api.DELETE_TOPICS, contains=topic.encode())
    admin = AdminClient({"bootstrap.servers": proxied_kafka.bootstrap})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(DEADLINE_S)  # the second one found no topic
    assert rule.hits == 1


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
