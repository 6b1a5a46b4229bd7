"""Three brokers, of which one at a time is killed, paused or restarted: the query goes on without an error.

And two at a time: nothing is acknowledged until one is back, and what lands late does not count twice.
"""

import signal
import threading
import time

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from services.support.kafka.query import (
    AWAY_S,
    FEW_AHEAD,
    GIVES_UP_S,
    WAIT_S,
    Once,
    Query,
    failing_at,
    meanwhile,
    within,
)
from support.wait import wait_until
from tidegate.committers.states import State
from tidegate.errors import ConflictError, OutcomeUnknownError, WalUnavailableError

pytestmark = [pytest.mark.xdist_group("kafka3"), pytest.mark.timeout(300)]
__all__ = ["failing_at", "meanwhile"]

SLOW = pytest.mark.slow
ASK_S = 2
QUICK = {"log_level": 0, "socket.timeout.ms": ASK_S * 1000}


@pytest.fixture
def brokers(kafka3):
    yield kafka3
    kafka3.heal()


@pytest.fixture
def query(brokers, tmp_path):
    made = Query(brokers.bootstrap, tmp_path, partitions=1, **FEW_AHEAD)
    yield made
    made.close()


class Topic:
    """One partition as the brokers see it."""

    def __init__(self, brokers, name):
        self._admin = AdminClient(brokers.client_settings | QUICK)
        self.name = name

    def _now(self):
        """Asked anew where the broker that was asked sleeps."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                return self._admin.list_topics(self.name, timeout=ASK_S).topics[self.name].partitions[0]
            except KafkaException:
                if time.monotonic() > end:
                    raise

    def leader(self):
        return self._now().leader

    def await_leader_other_than(self, *others):
        wait_until(lambda: self.leader() not in (-1, *others), f"{self.name} has another leader", WAIT_S)

    def await_in_sync(self, count):
        wait_until(lambda: len(self._now().isrs) == count, f"{self.name} has {count} in sync", WAIT_S)

    def lead_by_preferred(self):
        """The lead goes back to the first of the replicas, which lives: nobody crashes."""
        first = self._now().replicas[0]
        partition = TopicPartition(self.name, 0)
        self._admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(WAIT_S)
        wait_until(lambda: self.leader() == first, f"{first} leads {self.name}", WAIT_S)


# -- the leader is killed ---------------------------------------------------------------------------------

KILLED = [
    ("changelog", "a piece"),
    ("decisions", "decide.before_append"),
    pytest.param("changelog", "apply.after_chunk", marks=SLOW),
    pytest.param("changelog", "stage.before_ack", marks=SLOW),
    pytest.param("changelog", "manifest.before_write", marks=SLOW),
    pytest.param("decisions", "decide.after_append", marks=SLOW),
    pytest.param("decisions", "a piece", marks=SLOW),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind, place", KILLED)
def test_the_leader_is_killed_and_nobody_notices(query, brokers, failing_at, kind, place):
    driver = query.run(batches=1)
    topic = Topic(brokers, getattr(query, kind))

    def kill():
        brokers.kill(topic.leader())

    armed = Once(kill, 15)
    if place == "a piece":
        query.on_piece = armed
    else:
        armed = failing_at.at(place, kill)
    query.commit(driver, 1)
    query.commit(driver, 2)
    assert armed.done
    query.check()


@pytest.mark.slow
def test_the_leader_is_killed_while_another_driver_folds(query, brokers):
    """Append rule 1: whoever opens reads all, whichever broker leads by then."""
    query.run(batches=2)
    brokers.kill(Topic(brokers, query.decisions).leader())
    query.run()
    query.check()


# -- the lead moves while all is in use -------------------------------------------------------------------


class Traffic:
    """Appends and stages as long as it is let, and reads each at once; ``check`` reads all of it again."""

    def __init__(self, query):
        self._query, self.stop = query, threading.Event()
        self.records, self.blobs = {}, {}

    def run(self):
        log = self._query.log()
        while not self.stop.is_set():
            nth = len(self.records)
            record, blob = b"record %d" % nth, b"blob %d" % nth
            appended = log.append_decision(record)
            found = [entry.content for entry in log.decisions(appended.position)]
            assert found == [record]
            self.records[appended] = record
            (address,) = log.stage(f"s-{nth}", [blob])
            assert [found.content for found in log.read([address])] == [blob]
            self.blobs[address] = blob

    def check(self):
        log = self._query.log()
        kept = {(entry.position, entry.next_position): entry.content for entry in log.decisions()}
        assert kept == self.records
        assert dict(log.read(list(self.blobs))) == self.blobs
        assert len(self.records) > 2


@pytest.mark.slow
def test_the_lead_moves_while_it_is_written_and_read(query, brokers, meanwhile):
    """The leader sleeps until another leads, wakes, and gets the lead back: each record is there once."""
    query.log().create()
    topics = [Topic(brokers, name) for name in (query.decisions, query.changelog)]
    traffic = Traffic(query)
    running = meanwhile.start(traffic.run)

    def more():
        enough = len(traffic.records) + 3
        wait_until(lambda: len(traffic.records) >= enough or running.done(), "it goes on", WAIT_S)

    try:
        more()
        asleep = topics[0].leader()
        brokers.pause(asleep)
        topics[0].await_leader_other_than(asleep)
        more()
        brokers.resume(asleep)
        for topic in topics:
            topic.await_in_sync(3)
            topic.lead_by_preferred()
        more()
    finally:
        traffic.stop.set()
    running.result(WAIT_S)
    traffic.check()


@pytest.mark.slow
def test_each_in_turn_sleeps_while_a_driver_commits(query, brokers, meanwhile):
    def sleep_in_turn():
        topic = Topic(brokers, query.decisions)
        for n in range(brokers.brokers):
            brokers.pause(n)
            topic.await_leader_other_than(n)
            brokers.resume(n)
            brokers.heal()

    commit_while(query, meanwhile, sleep_in_turn)


@SLOW
def test_a_rolling_restart_while_a_driver_commits(query, brokers, meanwhile):
    def restart_in_turn():
        for n in range(brokers.brokers):
            brokers._processes[n].signal(signal.SIGTERM)
            brokers._processes[n].wait(WAIT_S)
            brokers.restart(n)

    commit_while(query, meanwhile, restart_in_turn)


def commit_while(query, meanwhile, work):
    """Batch after batch, without an error, until the work is done."""
    driver = query.run(batches=1)
    working, batches = meanwhile.start(work), 1
    while not working.done() or batches < 3:
        query.commit(driver, batches)
        batches += 1
    working.result()
    query.check(batches)


# -- too few in sync --------------------------------------------------------------------------------------


def two_go(query, brokers, topic):
    """Only the leader of the topic is left: it takes what it gets, and acknowledges nothing."""
    driver = query.run(batches=1)
    query.impatient(driver)
    leader = Topic(brokers, topic).leader()

    def kill():
        for n in set(range(3)) - {leader}:
            brokers.kill(n)

    return driver, kill


@pytest.mark.slow
def test_two_of_three_die_while_it_decides(query, brokers, failing_at):
    driver, kill = two_go(query, brokers, query.decisions)
    failing_at.at("decide.before_append", kill)
    with within(GIVES_UP_S), pytest.raises(OutcomeUnknownError):
        query.commit(driver, 1)
    brokers.heal()
    query.run()
    query.check()


@pytest.mark.slow
def test_back_before_the_fence(query, brokers, failing_at):
    """The leader has the record, and keeps it if it leads again: either way the answer is so."""
    driver, kill = two_go(query, brokers, query.decisions)
    failing_at.at("decide.before_append", kill)
    query.on_state = lambda state: brokers.heal() if state is State.FENCING else None
    try:
        attempt = query.commit(driver, 1).attempt
    except ConflictError:
        assert len(query.attempts()) == 1
    else:
        assert query.attempts()[1] == attempt
    attempts = query.attempts()
    query.on_state = lambda _: None
    query.run()
    query.check()
    assert query.attempts()[: len(attempts)] == attempts


@pytest.mark.slow
def test_two_of_three_die_while_it_stages(query, brokers, failing_at):
    driver, kill = two_go(query, brokers, query.changelog)
    query.on_piece = Once(kill, 15)
    with within(GIVES_UP_S), pytest.raises(WalUnavailableError):
        query.commit(driver, 1)
    brokers.heal()
    assert len(query.attempts()) == 1
    query.run()
    query.check()


@pytest.mark.slow
def test_refused_for_too_few_in_sync(query, brokers, failing_at):
    """With all three demanded, one that is down stops every write; ConflictError only on proof."""
    strict = Query(brokers.bootstrap, query.folder, partitions=1, min_insync_replicas=3)
    driver = strict.run(batches=1)
    strict.impatient(driver)
    topic = Topic(brokers, strict.decisions)

    def kill():
        brokers.kill(next(n for n in range(3) if n != topic.leader()))
        topic.await_in_sync(2)
        refusing = strict.log(timeout_s=AWAY_S)
        with pytest.raises(WalUnavailableError):
            refusing.stage("refused", [b"x"])  # the leader answers, so only its reports tell
        with pytest.raises(OutcomeUnknownError):
            refusing.append_decision(b"refused")

    failing_at.at("decide.before_append", kill)
    strict.on_state = lambda state: brokers.heal() if state is State.FENCING else None
    with pytest.raises(ConflictError):
        strict.commit(driver, 1)
    assert len(strict.attempts()) == 1
    strict.on_state = lambda _: None
    strict.run()
    strict.check()
    strict.close()
