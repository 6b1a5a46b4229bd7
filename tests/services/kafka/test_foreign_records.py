"""Messages in the topics that the log did not write, or did not write once: void, or refused (I10)."""

import pytest
from confluent_kafka import Producer

from services.support.kafka.wire import Api
from services.support.kafka.world import DEADLINE_S, PARTITIONS, world_on
from support.wait import wait_until
from tidegate.errors import ConfigError, CorruptError, OutcomeUnknownError, WalGapError
from tidegate.wal.kafka.address import parse_address
from tidegate.wal.record import Decided, Genesis, Open, Summary

pytest_plugins = ["services.support.kafka.proxied"]


@pytest.fixture
def world(kafka):
    with world_on(kafka.bootstrap, timeout_s=10.0) as made:
        yield made


# -- the same again ---------------------------------------------------------------------------------


def test_a_produce_that_the_broker_gets_twice_is_one_record(proxied_kafka):
    """Its sequence number is known: what doubles records are copies by another producer, see below."""
    with world_on(proxied_kafka.bootstrap, proxied_kafka.direct) as world:
        doubled = proxied_kafka.proxy.duplicate(Api.PRODUCE, times=None)
        driver = world.open()
        world.commit(driver, 0, 1)
        assert doubled.hits >= 5  # Genesis, Open, Decided, Decided, Summary, and all frames
        doubled.remove()
        assert world.check(2).void == 0
        assert [type(one) for one in world.records()] == [Genesis, Open, Decided, Decided, Summary]


def test_late_copies_of_every_record_are_void(world):
    """But for a Summary's that comes before anything else: it says what is so."""
    driver = world.open()
    world.commit(driver, 0, 1)
    records = [message.value() for message in world.raw(world.decisions)]
    world.produce(world.decisions, *records)
    assert world.check(2).void == len(records) - 1
    world.commit(driver, 2)
    world.produce(world.decisions, *records)
    world.commit(driver, 3)
    assert world.check(4).void == 2 * len(records) - 1
    world.tidy(driver)  # cut in front of a Summary that counts, not of a copy
    world.commit(world.open(), 4)
    world.check(5)


@pytest.mark.slow
def test_records_of_another_namespace_are_void(world, kafka):
    driver = world.open()
    world.commit(driver, 0)
    with world_on(kafka.bootstrap) as other:
        other.commit(other.open(), 0, 1, 2)
        records = [message.value() for message in other.raw(other.decisions)]
    world.produce(world.decisions, *records)
    world.commit(driver, 1)
    assert world.check(2).void == len(records)


# -- what is no record ----------------------------------------------------------------------------------

FOREIGN = {
    "garbage": lambda _: b"\x01garbage" * 20,
    "of no format": lambda _: b"garbage" * 20,
    "of a newer release": lambda record: bytes([record[0] + 1]) + record[1:],
    "short": lambda _: b"x",
    "empty": lambda _: b"",
    "tombstone": lambda _: None,
    "half a record": lambda record: record[: len(record) // 2],
    "a record and more": lambda record: record + b"x",
    "a record with a bit flipped": lambda record: record[:-9] + bytes([record[-9] ^ 1]) + record[-8:],
}


SOME = ("garbage", "of no format", "of a newer release", "tombstone")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=() if what in SOME else pytest.mark.slow) for what in FOREIGN]
)
def test_what_is_no_record_is_refused_at_its_position(world, what):
    """Never skipped: who knows what it was."""
    driver = world.open()
    world.commit(driver, 0)
    last = world.raw(world.decisions)[-1].value()
    (offset,) = world.produce(world.decisions, FOREIGN[what](last))
    error: type[Exception] = CorruptError
    undecided = error
    if what == "of a newer release":  # whether that release takes this driver's decision is unknown
        error, undecided = ConfigError, OutcomeUnknownError
    for action, raised in (
        (lambda: world.commit(driver, 1), undecided),
        (driver.decisions.catch_up, error),
        (world.open, error),
    ):
        with pytest.raises(raised, match=rf"{world.prefix}.*position {offset}\b"):
            action()
    assert world.store().pointer().visible == 1


def test_foreign_messages_in_the_change_log_are_nobodys_business(world):
    """Between the pieces of a frame, too: it is read by the offsets of its own."""
    driver = world.open()
    for batch_id in range(4):
        for partition in range(PARTITIONS):
            world.produce(world.changelog, b"garbage", None, b"", partition=partition)
        world.commit(driver, batch_id)
    world.check(4)
    world.tidy(driver)
    world.check(4)


# -- transactions: their markers take offsets (T19) ------------------------------------------------


class Transactions:
    """Foreign transactions on the topics: each leaves a marker behind, which no reader gets to see."""

    def __init__(self, world):
        self._world = world
        settings = {"bootstrap.servers": world.direct, "transactional.id": world.prefix, "linger.ms": 0}
        self._producer = Producer(settings)
        self._producer.init_transactions(DEADLINE_S)

    def send(self, topic, *values, commit=True):
        """On return the markers are there, too: the coordinator writes them later."""
        partitions = range(1 if topic == self._world.decisions else PARTITIONS)
        ends = [self._world.ends(topic, partition)[1] + len(values) + 1 for partition in partitions]
        self._producer.begin_transaction()
        for partition in partitions:
            for value in values:
                self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(DEADLINE_S) == 0
        if commit:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)

        def marked():
            return all(self._world.ends(topic, p)[1] >= end for p, end in zip(partitions, ends, strict=True))

        wait_until(marked, f"the markers in {topic}", DEADLINE_S)


@pytest.mark.slow
def test_records_on_both_sides_of_foreign_transactions_are_read_and_trimmed(world):
    driver, foreign = world.open(), Transactions(world)
    reader = world.driver()
    (genesis, *_) = (message.value() for message in world.raw(world.decisions))
    for batch_id, commit in enumerate((True, False, True)):
        world.commit(driver, batch_id)
        foreign.send(world.decisions, genesis, commit=commit)
        foreign.send(world.changelog, b"garbage", commit=commit)
        reader.decisions.catch_up()
        assert (reader.folded.last_version, reader.decisions.view.void) == (batch_id + 1, batch_id + 1)
    world.commit(driver, 3)
    view = world.check(4)
    positions = [message.offset() for message in world.raw(world.decisions)]
    assert (
        positions[-1] + 1 == len(positions) + 3 + 1
    )  # markers, and the aborted one that raw() does not show
    world.tidy(driver)
    first, _ = world.ends(world.decisions)
    assert first > 3
    assert first in [place.position for place in view.summaries]
    world.commit(driver, 4)
    world.commit(world.open(), 5)
    world.check(6)
    reader.decisions.catch_up()
    assert reader.folded.last_version == 6


def test_a_log_whose_end_is_a_marker_is_read_to_its_end(world):
    """Nothing comes from behind a marker, so a reader that waits for one more record waits in vain."""
    driver, foreign = world.open(), Transactions(world)
    world.commit(driver, 0)
    foreign.send(world.decisions, next(iter(world.raw(world.decisions))).value())
    driver.decisions.catch_up()
    position = driver.decisions.view.position
    assert world.ends(world.decisions)[1] == position + 1
    for _ in range(2):
        assert list(driver.log.decisions(position)) == []
    world.commit(driver, 1)
    assert world.check(2).void == 1


def test_a_cut_at_a_marker_is_refused(world):
    driver, foreign = world.open(), Transactions(world)
    world.commit(driver, 0)
    foreign.send(world.decisions, next(iter(world.raw(world.decisions))).value())
    world.commit(driver, 1)
    marker = world.raw(world.decisions)[-3].offset() + 1
    before = world.ends(world.decisions)
    with pytest.raises(CorruptError, match=f"no record at offset {marker}"):
        driver.log.trim_decisions(marker)
    assert world.ends(world.decisions) == before


@pytest.mark.parametrize("last", [False, True], ids=["", "the last"])
def test_an_address_of_a_marker_or_of_the_end_is_a_gap(world, last):
    """Never the message behind it, nor an endless wait."""
    log = world.log()
    log.create()
    (address,) = log.stage("s", [b"a frame"])
    place = parse_address(address, "")
    Transactions(world).send(world.changelog, b"foreign")
    if not last:
        log.stage("s", [b"another"])
    marker, end = place.offsets[0] + 2, world.ends(world.changelog, place.partition)[1]
    assert end == marker + (1 if last else 2)
    for nowhere in (marker, end):
        with pytest.raises(WalGapError, match=f"partition {place.partition} has nothing at offset {nowhere}"):
            list(log.read([address, str(place._replace(offsets=(nowhere,)))]))
