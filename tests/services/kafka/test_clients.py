"""What a client that is used again must not bring along from its last use."""

import time
import uuid

import pytest

from services.support.kafka.wire import Api, not_led_here
from tidegate.wal.kafka.settings import PIECE_BYTES_MAX
from tidegate.wal.open_log import open_log

pytest_plugins = ["services.support.kafka.proxied"]

LATER_US = 3_600_000_000


@pytest.fixture
def logs(proxied_kafka):
    """The same log twice: past the proxy, and through it."""
    options = {"topic_prefix": f"r{uuid.uuid4().hex[:8]}", "partitions": 1}
    made = [open_log(f"kafka://{at}", "n", options) for at in (proxied_kafka.direct, proxied_kafka.bootstrap)]
    made[0].create()
    yield made
    made[0].drop()
    for log in made:
        log.close()


def test_an_error_of_an_earlier_read_is_not_the_next_ones(proxied_kafka, logs):
    """The consumer had fetched ahead, where it was trimmed then: its next reader is not told of that."""
    other, slow = logs
    other.append_decision(b"a record")
    addresses = other.stage("s-1", [b"one", b"two"])
    reading = slow.read(addresses)
    next(reading)  # both are fetched; the consumer goes on, to the offset behind them
    held = proxied_kafka.proxy.hold_request(Api.FETCH, times=None)
    held.arrived()
    (last,) = other.stage("s-2", [b"%d" % n for n in range(9)])[-1:]
    other.trim_blobs([last], int(time.time() * 1e6) + LATER_US)
    held.remove()
    held.release()  # that offset is out of range by now
    assert len(list(reading)) == 1  # what was asked for had come
    for _ in range(20):
        assert [entry.content for entry in slow.decisions()] == [b"a record"]
        assert len(list(slow.read([last]))) == 1


def test_a_piece_that_was_refused_is_not_written_by_the_answer_to_a_later_one_i3(proxied_kafka, logs):
    """Of a producer that is new to a partition the broker takes any message as its first. So if it refuses
    one, for it does not lead the partition yet, it takes the next; and librdkafka reports both as delivered,
    the lost one without an offset (rd_kafka_dr_implicit_ack).
    """
    direct, through = logs
    blobs = [bytes([n]) * PIECE_BYTES_MAX for n in range(4)]
    refused = proxied_kafka.proxy.answer(Api.PRODUCE, not_led_here(through._changelog, 0))
    addresses = through.stage("s-1", blobs)
    assert refused.hits == 1
    assert {blob.address: blob.content for blob in direct.read(addresses)} == dict(
        zip(addresses, blobs, strict=True)
    )


def test_what_is_gone_before_the_first_blob_that_is_asked_for_does_not_matter(logs):
    log, _ = logs
    log.stage("s-1", [b"one", b"two"])
    wanted = log.stage("s-2", [b"three", b"four"])
    log.trim_blobs(wanted, int(time.time() * 1e6) + LATER_US)
    assert sorted(blob.content for blob in log.read(wanted)) == [b"four", b"three"]
