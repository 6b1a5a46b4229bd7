"""Changes and records that are as large as they may be, and one byte larger; a log used across a fork."""

import contextlib
import json
import subprocess
import sys
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from services.support.kafka.query import Query
from support.wait import wait_until
from tidegate.committers.commit import commit
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.options import VALUE_BYTES_MAX
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.kafka.log import ENVELOPE_BYTES
from tidegate.wal.kafka.settings import PIECE_BYTES_MAX
from tidegate.wal.log import RECORD_BYTES_MAX
from tidegate.wal.open_log import open_log

pytestmark = pytest.mark.xdist_group("kafka")


@pytest.fixture
def query(kafka, tmp_path):
    made = Query(kafka.bootstrap, tmp_path)
    yield made
    made.log().drop()
    made.close()


@pytest.fixture
def log(query):
    made = query.log()
    made.create()
    return made


def incompressible(length):
    return b"".join(nth.to_bytes(8, "big") for nth in range(length // 8 + 1))[:length]


def test_the_largest_change_goes_through_a_driver(query):
    """16 MiB in one value: split over messages, whole again in the store."""
    value = incompressible(VALUE_BYTES_MAX)
    driver = query.run(batches=0)
    rows = {"large": {b"key": value, b"other": b"small"}}
    fact = commit(driver, ArrowBarrier(driver.log, rows, batch("lineage", 0), driver.folded.key_groups))
    found = query.store().get_many(ReadAt("large", fact.version), [b"key", b"other"]).to_pylist()
    assert found == [value, b"small"]


def test_partitions_that_the_change_log_gets_are_learned_of_while_a_driver_writes(kafka, query):
    """The next batch failed at once: its producer did not know the partition that the driver had chosen."""
    driver = query.run(batches=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    more = NewPartitions(driver.log._changelog, 40)
    for made in admin.create_partitions([more]).values():
        made.result(30)
    for number in range(1, 5):
        rows = {"t": {b"k%d" % at: b"%d" % number for at in range(50)}}
        commit(driver, ArrowBarrier(driver.log, rows, batch("lineage", number), driver.folded.key_groups))


@pytest.mark.parametrize(
    "more, pieces", [(-1, 1), (0, 1), (1, 2), (PIECE_BYTES_MAX, 2), (PIECE_BYTES_MAX + 1, 3)]
)
def test_a_blob_around_the_limit_of_a_message(log, more, pieces):
    blob = incompressible(PIECE_BYTES_MAX + more)
    (address,) = log.stage("large", [blob])
    assert len(parse_address(address, "").offsets) == pieces
    assert [found.content for found in log.read([address])] == [blob]


def test_blobs_around_the_limit_together(log):
    blobs = [incompressible(PIECE_BYTES_MAX + more) for more in (-1, 0, 1)] + [b""]
    addresses = log.stage("large", blobs)
    found = dict(log.read(addresses))
    assert [found[address] for address in addresses] == blobs


def test_the_longest_record(log):
    record = incompressible(RECORD_BYTES_MAX - ENVELOPE_BYTES)
    log.append_decision(record)
    with pytest.raises(ConfigError, match="too long"):
        log.append_decision(record + b"x")
    assert [entry.content for entry in log.decisions()] == [record]


FORKS = """
import json, os, select, sys
from tidegate.wal.open_log import open_log

url, options, closes, in_use = json.loads(sys.argv[1])
log = open_log(url, "query", options)

def work(who):
    log.append_decision(who.encode())
    (address,) = log.stage("of-" + who, [who.encode()])
    assert [found.content for found in log.read([address])] == [who.encode()]
    assert who.encode() in [entry.content for entry in log.decisions()]
    log.checks()

log.create()
work("parent")
reading = log.read(log.stage("many", [b"1", b"2", b"3"])) if in_use else iter(())
next(reading, None)
child = os.fork()
if child == 0:
    work("child")
    if closes:
        log.close()
    sys.exit(7)
ended, _, _ = select.select([os.pidfd_open(child)], [], [], 20)
if not ended:
    os.kill(child, 9)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert len(list(reading)) == (2 if in_use else 0)
work("again")
if closes:
    log.close()
"""


@pytest.mark.parametrize(
    "closes, in_use",
    [
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_a_log_that_is_used_on_both_sides_of_a_fork(query, kafka, closes, in_use):
    """Both work and end; what the parent had lent out when it forked is not the child's to end."""
    options = {"topic_prefix": query.prefix, "partitions": 2}
    arguments = json.dumps([f"kafka://{kafka.bootstrap}", options, closes, in_use])
    done = subprocess.run(
        [sys.executable, "-c", FORKS, arguments], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = [entry.content for entry in query.log().decisions()]
    assert records == [b"parent", b"child", b"again"]


def test_a_quota_that_is_met_is_named(private_kafka, tmp_path):
    """Nothing is decided: a batch that is not staged in time fails with the quota's name."""
    cluster = private_kafka(brokers=1)
    query = Query(cluster.bootstrap, tmp_path)
    driver = query.run(batches=1)
    quota = ("--alter", "--add-config", "producer_byte_rate=10000", "--entity-type", "clients")
    cluster.tool("kafka.admin.ConfigCommand", *quota, "--entity-default")
    rows = {"large": {b"key": incompressible(6_000_000)}}
    slow = query.log(timeout_s=3.0)
    with pytest.raises(WalUnavailableError, match=r"above its quota: raise producer_byte_rate"):
        commit(driver, ArrowBarrier(slow, rows, batch("lineage", 1), driver.folded.key_groups))
    query.close()


def test_a_broker_that_takes_smaller_requests_than_a_record_is_refused(private_kafka, tmp_path):
    cluster = private_kafka(brokers=1, settings={"socket.request.max.bytes": 2_000_000})
    query = Query(cluster.bootstrap, tmp_path)
    with pytest.raises(
        ConfigError, match=r"socket.request.max.bytes is 2,000,000 at broker .*at least 8,454,144"
    ):
        open_namespace(query.driver(safe=True), "lineage")
    query.close()


@pytest.mark.parametrize("kind", ["decisions", "changelog"])
def test_a_topic_that_kafka_holds_equal_is_refused_before_anything_is_made(kafka, tmp_path, kind):
    """``a_b`` is escaped, so that no two namespaces collide; another user's topic may."""
    prefix = f"q{uuid.uuid4().hex[:12]}"
    planted = f"{prefix}.orders._eu.{kind}"
    admin = AdminClient(kafka.client_settings)
    admin.create_topics([NewTopic(planted, 1, 1)])[planted].result(30)
    log = open_log(kafka.url, "orders_eu", {"topic_prefix": prefix, "replication_factor": 1})
    with contextlib.closing(log):
        with pytest.raises(
            ConfigError, match=rf"collides with existing topic: {planted}.*nothing was made. Take"
        ):
            log.create()
        made = [name for name in admin.list_topics(timeout=30).topics if name.startswith(prefix)]
        assert made == [planted]
        admin.delete_topics([planted])[planted].result(30)
        wait_until(lambda: planted not in admin.list_topics(timeout=30).topics, "it is deleted")
        log.create()
        log.drop()


@pytest.mark.parametrize("below", ["", ".x", ".x.y"])
def test_a_prefix_within_another_namespaces_topics_is_refused(kafka, log, query, below):
    prefix = f"{query.prefix}.{query.namespace}{below}"
    inner = open_log(kafka.url, "x", {"topic_prefix": prefix, "replication_factor": 1})
    with contextlib.closing(inner):
        with pytest.raises(
            ConfigError, match=f"topic_prefix {prefix} begins with the name of another namespace's topics"
        ):
            inner.create()
        assert list(inner.decisions()) == []
