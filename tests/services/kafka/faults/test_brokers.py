"""The only broker is killed at every step of the protocol, and comes back in time, or too late.

In time: the commit succeeds, nobody notices. Too late: an error that says the truth, within the deadlines.
Either way what was acknowledged is there afterwards, and a restart ends with every batch once (I1 to I4).
"""

import pytest

from services.support.kafka.query import (
    AWAY_S,
    FEW_AHEAD,
    GIVES_UP_S,
    Once,
    Query,
    failing_at,
    meanwhile,
    within,
)
from services.support.kafka.server import KafkaCluster
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import OutcomeUnknownError, StoreUnavailableError, WalUnavailableError
from tidegate.wal.log import Appended

pytestmark = pytest.mark.xdist_group("kafka-brokers")
__all__ = ["failing_at", "meanwhile"]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory):
    with KafkaCluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster


@pytest.fixture
def broker(mortal):
    yield mortal
    mortal.heal()


@pytest.fixture
def query(broker, tmp_path):
    made = Query(broker.bootstrap, tmp_path, **FEW_AHEAD)
    yield made
    made.close()


@pytest.fixture
def bounce(broker, meanwhile):
    """Kill the broker now, and start it again on another thread."""

    def kill_and_restart():
        broker.kill(0)
        meanwhile.start(broker.restart, 0)

    return kill_and_restart


def arm(query, failing_at, place, action):
    """Act once at the place, in the batch that is committed next."""
    if place in FIRST_PIECES:
        act = Once(action, FIRST_PIECES[place])
        query.on_piece = act
        return act
    return failing_at.at(place, action)


FIRST_PIECES = {"first piece": 1, "a piece": 15}
"""Places within the staging, by how many pieces of rows were handed over before."""

SLOW = pytest.mark.slow
IN_TIME = [
    "a piece",
    "decide.before_append",
    pytest.param("first piece", marks=SLOW),
    pytest.param("stage.before_ack", marks=SLOW),
    pytest.param("manifest.before_write", marks=SLOW),
    pytest.param("decide.after_append", marks=SLOW),
    pytest.param("apply.before_chunk", marks=SLOW),
    pytest.param("publish.before", marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("place", IN_TIME)
def test_killed_and_back_in_time(query, failing_at, bounce, place):
    driver = query.run(batches=1)
    armed = arm(query, failing_at, place, bounce)
    query.commit(driver, 1)
    query.commit(driver, 2)
    assert armed.done
    query.check()


TOO_LATE = [
    pytest.param("a piece", WalUnavailableError, 1, marks=SLOW),
    ("decide.before_append", OutcomeUnknownError, 1),
    pytest.param("apply.before_chunk", StoreUnavailableError, 2, marks=SLOW),
    pytest.param("first piece", WalUnavailableError, 1, marks=SLOW),
    pytest.param("stage.before_ack", WalUnavailableError, 1, marks=SLOW),
    pytest.param("manifest.before_write", WalUnavailableError, 1, marks=SLOW),
    pytest.param("decide.after_append", StoreUnavailableError, 2, marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize("place, error, decided", TOO_LATE)
def test_killed_and_back_too_late(query, broker, failing_at, place, error, decided):
    """What the error says is so: the version is decided, or not."""
    driver = query.run(batches=1)
    query.impatient(driver)
    armed = arm(query, failing_at, place, lambda: broker.kill(0))
    with within(GIVES_UP_S), pytest.raises(error):
        query.commit(driver, 1)
    assert armed.done
    broker.restart(0)
    attempts = query.attempts()
    assert len(attempts) == decided
    query.run()
    query.check()
    assert query.attempts()[:decided] == attempts


@pytest.mark.slow
def test_applied_already_when_it_is_killed(query, broker, failing_at):
    """The flip needs the store alone; the next batch says what is the matter."""
    driver = query.run(batches=1)
    query.impatient(driver)
    failing_at.at("publish.before", lambda: broker.kill(0))
    query.commit(driver, 1)
    assert driver.store.pointer().visible == 2
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        query.commit(driver, 2)
    broker.restart(0)
    query.run()
    query.check()


# -- while a driver opens ---------------------------------------------------------------------------------


def work_left(query, failing_at):
    """A version that is decided, and not applied."""
    driver = query.run(batches=1)

    def leave():
        raise RuntimeError("left")

    failing_at.at("apply.before_chunk", leave)
    with pytest.raises(RuntimeError, match="left"):
        query.commit(driver, 1)
    return query.attempts()


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "open.before_append",
        pytest.param("open.after_append", marks=SLOW),
        pytest.param("open.after_claim", marks=SLOW),
    ],
)
def test_killed_while_opening_and_back_in_time(query, failing_at, bounce, place):
    attempts = work_left(query, failing_at)
    armed = failing_at.at(place, bounce)
    query.run()
    assert armed.done
    query.check()
    assert query.attempts()[:2] == attempts


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, error",
    [
        ("open.before_append", OutcomeUnknownError),
        ("open.after_append", StoreUnavailableError),
        ("open.after_claim", StoreUnavailableError),
    ],
)
def test_killed_while_opening_and_back_too_late(query, broker, failing_at, place, error):
    attempts = work_left(query, failing_at)
    armed = failing_at.at(place, lambda: broker.kill(0))
    driver = query.driver(AWAY_S)
    with within(GIVES_UP_S), pytest.raises(error):
        open_namespace(driver, "lineage")
    assert armed.done
    broker.restart(0)
    query.run()
    query.check()
    assert query.attempts()[:2] == attempts


@pytest.mark.slow
def test_opened_while_it_is_down(query, broker):
    query.run(batches=1)
    broker.kill(0)
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        query.run(deadline_s=AWAY_S)
    broker.restart(0)
    query.run()
    query.check()


# -- the log alone: a large change-log, and a reader --------------------------------------------------------

BLOBS = 1500


def blob(nth):
    return b"%d " % nth * 4000


def blobs(action, at):
    act = Once(action, at)
    for nth in range(BLOBS):
        act()
        yield blob(nth)


def read_all(log, addresses, action=lambda: None, at=1):
    """What lies at the addresses, in their order; the action happens after a few."""
    act, found = Once(action, at), {}
    for address, content in log.read(addresses):
        assert address not in found
        found[address] = content
        act()
    return [found[address] for address in addresses]


@pytest.fixture
def acked(query):
    """What was acknowledged before, and must be there afterwards."""
    log = query.log()
    log.create()
    return [log.append_decision(b"record %d" % nth) for nth in range(3)], log.stage("early", [b"x", b"y"])


def check_acked(query, acked):
    appended, addresses = acked
    log = query.log()
    found = [(Appended(*entry[:2]), entry.content) for entry in log.decisions()]
    assert found[:3] == [(where, b"record %d" % nth) for nth, where in enumerate(appended)]
    assert read_all(log, addresses) == [b"x", b"y"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [BLOBS // 2, pytest.param(BLOBS, marks=SLOW)])
def test_killed_while_a_large_change_log_is_staged(query, acked, bounce, at):
    log = query.log()
    addresses = log.stage("large", blobs(bounce, at))
    assert len(set(addresses)) == BLOBS
    assert read_all(query.log(), addresses) == [blob(nth) for nth in range(BLOBS)]
    check_acked(query, acked)


@pytest.mark.slow
def test_not_acknowledged_is_an_error_and_the_log_works_on(query, broker, acked):
    log = query.log(timeout_s=AWAY_S)
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        log.stage("large", blobs(lambda: broker.kill(0), BLOBS // 2))
    broker.restart(0)
    assert read_all(log, log.stage("again", [b"1", b"2"])) == [b"1", b"2"]
    check_acked(query, acked)


@pytest.mark.slow
def test_killed_while_a_reader_reads(query, acked, bounce):
    log = query.log()
    addresses = log.stage("many", map(blob, range(BLOBS)))
    assert read_all(query.log(), addresses, bounce, 10) == [blob(nth) for nth in range(BLOBS)]
    check_acked(query, acked)


@pytest.mark.slow
def test_a_reader_says_so_when_it_stays_away(query, broker, acked):
    log = query.log()
    addresses = log.stage("many", map(blob, range(BLOBS)))
    reader = query.log(timeout_s=AWAY_S)
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        read_all(reader, addresses, lambda: broker.kill(0), 10)
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        list(reader.decisions())
    broker.restart(0)
    assert read_all(reader, addresses[:5]) == [blob(nth) for nth in range(5)]
    check_acked(query, acked)
