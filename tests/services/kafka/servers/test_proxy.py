"""The proxy is transparent until it is told otherwise, and then does what the rule says and nothing else."""

import random
import time

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from services.support.kafka.wire import Api
from services.support.proxy.kafka_clients import DEADLINE_S, REQUEST_S, answer, is_silent, request

pytest_plugins = ["services.support.kafka.proxied"]
pytestmark = pytest.mark.slow  # a tool of these tests, which they would miss soon enough


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
