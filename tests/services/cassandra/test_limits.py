"""A value that a node can never take is refused before it is decided; the largest one comes back."""

import os
import uuid

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BadRecordError, ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cassandra.node_checks import MIB
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import ReadAt
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

pytestmark = pytest.mark.slow


def driver_on(url):
    place = f"n{uuid.uuid4().hex[:12]}"
    store = CassandraStore(url, place, create=True, replication=1, timeout_s=30)
    where = Endpoints(place, f"memory://{place}", url)
    return Coordinator(where, MemoryLog(place, place), store, Options(key_groups=2, apply_deadline_s=60.0))


def write(driver, number, rows):
    return commit(driver, ArrowBarrier(driver.log, {"t": rows}, batch("q", number), 2))


@pytest.mark.parametrize(
    "setting, settings",
    [
        ("max_mutation_size", {"commitlog_segment_size": "2MiB"}),  # half of it
        ("native_transport_max_frame_size", {"native_transport_max_frame_size": "1MiB"}),
    ],
)
def test_a_value_that_a_node_cannot_take_is_refused_before_it_is_decided(
    setting, settings, private_cassandra
):
    driver = driver_on(private_cassandra(settings=settings).url)
    open_namespace(driver, "q")
    most = driver.store.value_bytes_max
    assert 0.9 * MIB < most < 2 * MIB
    with pytest.raises(
        BadRecordError, match=rf"key b'large'.*{most} are allowed.*{setting}.*is [\d,]+ bytes at 127"
    ):
        write(driver, 0, {b"large": b"x" * (most + 1)})
    assert driver.folded.last_version == driver.store.pointer().visible == 0
    rows = {b"k%d" % n: b"%d" % n + os.urandom(most - 1) for n in range(4)}
    write(driver, 0, rows)
    found = driver.store.get_stored(ReadAt("t", 1), list(rows)).to_pylist()
    assert [value[1:] for value in found] == list(rows.values())
    driver.store.close()


def test_a_node_that_refuses_our_own_requests_is_refused_at_open(private_cassandra):
    driver = driver_on(private_cassandra(settings={"batch_size_fail_threshold": "4KiB"}).url)
    with pytest.raises(ConfigError, match=r"batch_size_fail_threshold 4,096: .*raise it to 10,240"):
        open_namespace(driver, "q")
    assert driver.store.identity() is None
    driver.store.close()
