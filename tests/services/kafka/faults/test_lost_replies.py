"""Replies of the broker that never come (T25): the connection is closed instead, or stays open and silent.

A loss costs time, and at most a trim that is done again later. No batch fails by it, and none is in twice.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter

import pytest

from services.support.kafka.wire import Api
from services.support.kafka.world import world_on
from tidegate.committers.operations.drop import drop_namespace
from tidegate.errors import OutcomeUnknownError, WalUnavailableError

pytest_plugins = ["services.support.kafka.proxied"]

TIMEOUT_S = 3.0
VERSIONS = 4
ERRORS_MAX = 0
"""So many of a run's losses may reach the user, for whom a fresh driver then goes on."""
CALLS = {
    "create": [1],
    "checks": [1],
    "decisions": [1, 2, 3, 4, 5],
    "append_decision": [1, 2, 3, 4, 5],  # Genesis, Open, Decided, Decided, Summary
    "stage": [1, 3, 4],  # frames, a manifest, frames
    "read": [1, 2],
    "trim_decisions": [1],
    "trim_blobs": [1, 2],
    "drop": [1],
}
"""In the middle of which calls of the log, by their number, a reply is lost."""
KINDS = {
    Api.API_VERSIONS: CALLS,
    Api.METADATA: CALLS,
    Api.FIND_COORDINATOR: {"decisions", "read", "trim_decisions", "trim_blobs"},
    Api.INIT_PRODUCER_ID: {"append_decision", "stage"},
    Api.PRODUCE: {"append_decision", "stage"},
    Api.LIST_OFFSETS: {"decisions", "trim_decisions", "trim_blobs"},
    Api.FETCH: {"decisions", "read", "trim_decisions"},
    Api.CREATE_TOPICS: {"create"},
    Api.DESCRIBE_CONFIGS: {"checks"},
    Api.DELETE_RECORDS: {"trim_decisions", "trim_blobs"},
    Api.DELETE_TOPICS: {"drop"},
}
"""Every kind of request that the log uses, and the calls that send it."""
WRITES = [Api.PRODUCE, Api.CREATE_TOPICS, Api.DELETE_RECORDS, Api.DELETE_TOPICS]
SOME_CALLS = {"create": [1], "append_decision": [2, 3], "stage": [3], "trim_decisions": [1], "drop": [1]}


class Losses:
    """Loses one reply in each of the calls, of the next of the kinds in turn that the call sends."""

    def __init__(self, proxy, kinds, *, close, calls=CALLS):
        self._proxy, self._close, self._losing = proxy, close, calls
        self._kinds = {
            call: itertools.cycle([kind for kind in kinds if call in KINDS[kind]] or [None]) for call in CALLS
        }
        self._calls = Counter()
        self.hits = Counter()
        self.clients = None
        """Whose log has to connect anew for each loss, so that those of connecting can be lost, too."""

    @contextlib.contextmanager
    def around(self, call):
        self._calls[call] += 1
        kind = next(self._kinds[call]) if self._calls[call] in self._losing.get(call, ()) else None
        if kind is None:
            yield
            return
        self.clients.close()
        rule = self._proxy.drop_reply(kind, close=self._close)
        try:
            yield
        finally:
            rule.remove()
            self.hits[kind] += rule.hits


class Query:
    """Batches one after the other, by a driver that is replaced after an error, as Spark does it."""

    def __init__(self, world, losses):
        self._world, self._losses = world, losses
        self.errors = []
        self.stop()

    def stop(self):
        self.driver = self._trimmer = None

    def run(self, batch_id):
        while True:
            try:
                self._run(batch_id)
                return
            except (WalUnavailableError, OutcomeUnknownError) as error:
                self.errors.append(error)
                self.stop()

    def _run(self, batch_id):
        if self.driver is None:
            driver = self._world.driver()
            self._losses.clients = driver.log
            self._world.take(driver)
            self.driver, self._trimmer = driver, self._world.trimmer(driver)
        self._world.commit(self.driver, batch_id)
        # As in the background: what fails there is done again later.
        with contextlib.suppress(WalUnavailableError):
            self._world.tidy(self.driver, self._trimmer)


def whole_run(world, losses):
    """Batches, Summaries and trims by two drivers, one after the other, and the drop of it all."""
    query = Query(world, losses)
    for batch_id in range(VERSIONS):
        if batch_id == VERSIONS - 1:
            query.stop()
        query.run(batch_id)
    world.tidy(query.driver)
    world.check(VERSIONS)
    assert world.ends(world.decisions)[0] > 0
    drop_namespace(query.driver)
    assert not world.topics()
    assert len(query.errors) <= ERRORS_MAX, query.errors


@pytest.fixture
def losing(proxied_kafka):
    """Runs all of it, and loses replies on the way; how many of which kind."""

    def run(*kinds, **options):
        losses = Losses(proxied_kafka.proxy, kinds, **options)
        bootstrap, direct = proxied_kafka.bootstrap, proxied_kafka.direct
        with world_on(bootstrap, direct, timeout_s=TIMEOUT_S, around=losses.around) as world:
            whole_run(world, losses)
        return losses.hits

    return run


# -- a whole run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_every_kind_in_turn_the_connection_is_closed(losing, turn):
    hits = losing(*list(KINDS)[::turn], close=True)
    assert hits.total() > sum(map(len, CALLS.values())) / 2, hits


@pytest.mark.slow
def test_writes_in_turn_the_connection_stays_silent(losing):
    hits = losing(*WRITES, close=False, calls=SOME_CALLS)
    assert all(hits[kind] for kind in WRITES), hits


@pytest.mark.slow
@pytest.mark.parametrize("close", [True, False], ids=["closed", "silent"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_kind(losing, kind, close):
    assert losing(kind, close=close)[kind]


def test_the_kinds_that_are_lost_are_all_that_the_log_uses(proxied_kafka):
    """Else a new kind of request would be lost in no test."""
    proxy = proxied_kafka.proxy
    before = len(proxy.seen)
    with world_on(proxied_kafka.bootstrap, proxied_kafka.direct) as world:
        driver = world.open()
        world.commit(driver, 0, 1, 2)
        world.tidy(driver)
        world.open()
        drop_namespace(driver)
    telemetry = {Api.GET_TELEMETRY_SUBSCRIPTIONS, Api.PUSH_TELEMETRY}
    assert {one.kind for one in proxy.seen[before:]} - telemetry == set(KINDS)


# -- what an error of an append proves -------------------------------------------------------------------


@dataclasses.dataclass
class Appending:
    """One append through the proxy, by a log that has appended before."""

    world: object
    log: object

    def fails(self, error):
        before = self.records()
        with pytest.raises(error) as raised:
            self.log.append_decision(b"new")
        return raised.value, self.records() - before

    def records(self):
        return Counter(message.value() for message in self.world.raw(self.world.decisions))


@pytest.fixture
def appending(proxied_kafka):
    with world_on(proxied_kafka.bootstrap, proxied_kafka.direct, timeout_s=1.5) as world:
        log = world.log()
        log.create()
        log.append_decision(b"old")
        yield Appending(world, log)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_produce_that_is_lost_again_and_again_is_an_unknown_outcome(appending, proxied_kafka, what):
    proxy = proxied_kafka.proxy
    lose = proxy.drop_request if what == "request" else proxy.drop_reply
    rule = lose(Api.PRODUCE, times=None)
    _, landed = appending.fails(OutcomeUnknownError)
    assert rule.hits > 1
    assert landed == Counter({b"new": 1} if what == "reply" else {})


def test_a_record_that_landed_is_never_told_as_not_written(appending, proxied_kafka):
    """The broker falls silent between the acknowledgement and the look at the topic's id."""
    proxy = proxied_kafka.proxy
    before = proxy.count(Api.PRODUCE, "reply")
    proxy.drop_request(
        None, times=None, close=False, where=lambda _: proxy.count(Api.PRODUCE, "reply") > before
    )
    _, landed = appending.fails(OutcomeUnknownError)
    assert landed == Counter({b"new": 1})


def test_a_log_that_cannot_be_reached_before_an_append_has_not_written_it(appending, proxied_kafka):
    appending.log.close()
    proxied_kafka.proxy.refuse()
    error, landed = appending.fails(WalUnavailableError)
    assert "Connection refused" in str(error)
    assert not landed
