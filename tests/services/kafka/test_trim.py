"""``trim_blobs`` by the broker's clock: what is old and not needed goes, what is young or needed stays."""

import threading
import time
import zlib

import pytest

from services.support.kafka.world import DEADLINE_S, world_on
from tidegate.errors import WalGapError
from tidegate.testing.log.harness import in_threads
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.log import Blob

LARGE_BYTES = 2_500_000
"""More than two messages hold."""
FOREVER_US = 2**60


@pytest.fixture
def world(kafka):
    with world_on(kafka.bootstrap, timeout_s=10.0) as made:
        made.log().create()
        yield made


@pytest.fixture
def log(world):
    return world.log()


def segments(partition, partitions=2):
    """Names of segments that go to this partition."""
    numbered = (f"s{partition}-{n}" for n in range(10_000))
    return (name for name in numbered if zlib.crc32(name.encode()) % partitions == partition)


def stamp_us(world, address):
    """When the broker took a blob's last message, by its clock."""
    place = parse_address(address, "")
    of = {message.offset(): message.timestamp()[1] for message in world.raw(world.changelog, place.partition)}
    return of[place.offsets[-1]] * 1000


def staged_later(world, log, address, segment, blobs):
    """Staged when the broker's clock has moved on since it took the other: the address, and its stamp."""
    until = time.monotonic() + DEADLINE_S
    while True:
        staged = log.stage(segment, blobs)
        at_us = stamp_us(world, staged[0])
        if at_us > stamp_us(world, address):
            return staged, at_us
        assert time.monotonic() < until


def is_gone(log, address):
    try:
        list(log.read([address]))
    except WalGapError:
        return True
    return False


# -- what goes, what stays ---------------------------------------------------------------------------


def test_old_orphans_go_and_young_ones_stay(world, log):
    name = segments(0)
    (old,) = log.stage(next(name), [b"old"])
    (young,), at_us = staged_later(world, log, old, next(name), [b"young"])
    assert log.trim_blobs([], stamp_us(world, old)).bytes == 0  # as old as the limit is not older
    assert not is_gone(log, old)
    assert log.trim_blobs([], at_us).bytes >= len(b"old")
    assert is_gone(log, old)
    assert list(log.read([young])) == [Blob(young, b"young")]
    assert log.trim_blobs([], at_us).bytes == 0


def test_what_is_needed_stays_however_old_and_what_was_before_it_goes(world, log):
    name = segments(0)
    (orphan,) = log.stage(next(name), [b"orphan"])
    (needed,) = log.stage(next(name), [b"needed"])
    log.stage(next(name), [b"behind it"])
    log.trim_blobs([needed], FOREVER_US)
    assert is_gone(log, orphan)
    assert list(log.read([needed])) == [Blob(needed, b"needed")]


def test_each_partition_is_cut_at_its_own_place(world, log):
    names = segments(0), segments(1)
    (orphan_0,), (orphan_1,) = (log.stage(next(name), [b"orphan"]) for name in names)
    (needed,) = log.stage(next(names[1]), [b"needed"])
    (young,), at_us = staged_later(world, log, needed, next(names[0]), [b"young"])
    log.trim_blobs([needed], at_us)
    assert is_gone(log, orphan_0)
    assert is_gone(log, orphan_1)
    assert sorted(log.read([needed, young])) == sorted([Blob(needed, b"needed"), Blob(young, b"young")])
    log.trim_blobs([], at_us)
    assert is_gone(log, needed)
    assert list(log.read([young])) == [Blob(young, b"young")]


def test_a_frame_of_several_messages_stays_or_goes_as_one(world, log):
    name = segments(0)
    large = bytes(range(250)) * (LARGE_BYTES // 250)
    (first,) = log.stage(next(name), [large])
    (needed,), at_us = staged_later(world, log, first, next(name), [large])
    assert len(parse_address(needed, "").offsets) == 3
    log.trim_blobs([needed], FOREVER_US)
    assert is_gone(log, first)
    assert list(log.read([needed])) == [Blob(needed, large)]
    # A time between its messages: the rest of an orphan is no blob, nor wrong bytes.
    log.trim_blobs([], at_us)
    log.trim_blobs([], at_us + 1_000)
    assert is_gone(log, needed)


def test_frames_whose_messages_lie_between_each_others(world, log):
    """Tasks wrote to one partition at once: the first message of what is needed counts."""
    name = segments(0)
    blobs = [bytes([n]) * LARGE_BYTES for n in range(3)]
    addresses = {}

    def stage(n):
        (addresses[n],) = world.log().stage(next(names[n]), [blobs[n]])

    names = [iter([next(name)]) for _ in blobs]
    in_threads(3, stage)
    by_place = sorted(addresses, key=lambda n: parse_address(addresses[n], "").offsets[0])
    for n in by_place:
        log.trim_blobs([addresses[m] for m in by_place[by_place.index(n) :]], FOREVER_US)
        for kept in by_place[by_place.index(n) :]:
            assert list(log.read([addresses[kept]])) == [Blob(addresses[kept], blobs[kept])]
    log.trim_blobs([], FOREVER_US)
    assert all(is_gone(log, address) for address in addresses.values())


def test_what_is_staged_while_a_trim_looks_at_times_stays(world, log, monkeypatch):
    """Where nothing was young enough when it looked, only what was there before goes."""
    names = segments(0), segments(1)
    (orphan,) = log.stage(next(names[0]), [b"orphan"])
    _, at_us = staged_later(world, log, orphan, next(names[1]), [b"another partition's"])
    looked, meanwhile = log._first_since, []

    def looks_and_another_stages(*arguments):
        found = looked(*arguments)
        meanwhile.extend(world.log().stage(next(names[0]), [b"young"]))
        return found

    monkeypatch.setattr(log, "_first_since", looks_and_another_stages)
    log.trim_blobs([], at_us)
    assert is_gone(log, orphan)
    assert list(log.read(meanwhile)) == [Blob(meanwhile[0], b"young")]


# -- at once ------------------------------------------------------------------------------------------------


def test_two_trimmers_beside_staging_drop_nothing_young_or_needed(world, log):
    """Each with a time of its own, as two drivers have; what is staged meanwhile is younger than both."""
    names = [segments(0), segments(1)]
    orphans = [log.stage(next(name), [b"orphan %d" % n])[0] for n in range(3) for name in names]
    needed = {
        log.stage(next(name), [b"needed %d" % n * 300_000])[0]: b"needed %d" % n * 300_000
        for n in range(2)
        for name in names
    }
    (last,), later_us = staged_later(world, log, [*needed][-1], next(names[0]), [b"first"])
    young = {last: b"first"}
    done = threading.Event()

    def work(worker):
        mine = world.log()
        if worker < 2:
            while not done.is_set():
                mine.trim_blobs([*needed], later_us - worker * 1_000)
            return
        try:
            for n in range(12):
                content = b"young %d" % n * (300_000 if n % 4 == 0 else 1)
                (address,) = mine.stage(next(names[n % 2]), [content])
                young[address] = content
        finally:
            done.set()

    in_threads(3, work)
    assert {blob.address: blob.content for blob in log.read([*needed, *young])} == needed | young
    assert all(is_gone(log, address) for address in orphans)
