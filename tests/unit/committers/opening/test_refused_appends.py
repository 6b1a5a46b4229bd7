"""A log that refuses its user: nobody waits, and what may be there is not denied."""

import uuid

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.adopt import adopt
from tidegate.errors import ConfigError, ConflictError, OutcomeUnknownError, WalUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

LONG_S = 3_600.0
"""Whoever waits for this long has not seen that it is refused."""
TRIES_MOST = 5


class Guarded(MemoryLog):
    """Each append, or read, does the next of what a test put down; when there is nothing, as usual."""

    def __init__(self, *args):
        super().__init__(*args)
        self.appends, self.reads, self.tried, self.held = [], [], 0, []

    def append_decision(self, content):
        self.tried += 1
        assert self.tried <= TRIES_MOST, "it tries on, though it is refused"
        does = self.appends.pop(0) if self.appends else super().append_decision
        return does(content)

    def decisions(self, position=0):
        if self.reads:
            self.reads.pop(0)()
        return super().decisions(position)

    def lands(self):
        for content in self.held:
            super().append_decision(content)

    # -- what a test puts down ------------------------------------------------------------------

    def held_back(self, content):
        self.held.append(content)
        raise OutcomeUnknownError("no answer")

    def lost_reply(self, content):
        super().append_decision(content)
        raise OutcomeUnknownError("no answer")


def refused(*_):
    raise ConfigError("this user lacks the right Write")


def refused_unproven(content):
    try:
        refused()
    except ConfigError as error:
        raise OutcomeUnknownError(f"{error}: it may be there") from error


@pytest.fixture
def driver():
    name = uuid.uuid4().hex
    log, where = Guarded(name, "n"), f"memory://{name}"
    options = Options(key_groups=4, decide_deadline_s=LONG_S)
    return Coordinator(Endpoints("n", where, where), log, MemoryStore(name, "n"), options)


def opened(driver):
    open_namespace(driver, "query-1")
    driver.log.tried = 0
    return driver


def commits(driver, batch_id=0):
    rows = {"aircraft": {b"N1": b"%d" % batch_id}}
    return commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", batch_id), 4))


def test_a_refused_decision_is_not_waited_for(driver):
    opened(driver).log.appends = [refused_unproven] * TRIES_MOST
    with pytest.raises(OutcomeUnknownError, match=r"did not prove it; its last error: .* right Write"):
        commits(driver)
    assert driver.log.tried == 2, "the decision, and the fence"


def test_a_fence_behind_a_refused_decision_proves_that_it_is_not_there(driver):
    opened(driver).log.appends = [refused_unproven]
    with pytest.raises(ConflictError, match="a fencing record now precedes any late copy"):
        commits(driver)
    commits(driver)


def test_a_refused_open_is_not_waited_for(driver):
    opened(driver)
    driver.log.appends = [refused_unproven] * TRIES_MOST
    with pytest.raises(OutcomeUnknownError, match=r"kept opening it; its last error: .* right Write"):
        open_namespace(driver, "query-1")
    assert driver.log.tried == 1


def test_a_refused_first_record_is_not_waited_for(driver):
    driver.log.appends = [refused_unproven] * TRIES_MOST
    with pytest.raises(WalUnavailableError, match=r"did not take the first record .* right Write"):
        open_namespace(driver, "query-1")
    assert driver.log.tried == 1


def test_what_a_person_asked_for_is_not_waited_for_when_it_is_refused(driver):
    commits(opened(driver))
    driver.log.tried = 0
    log = driver.log
    usual = super(Guarded, log).append_decision
    log.appends = [usual, *[refused_unproven] * TRIES_MOST]
    with pytest.raises(OutcomeUnknownError, match=r"did not prove it; its last error: .* right Write"):
        adopt(driver, "query-2")
    assert log.tried == 2, "the Open, and the record"


def test_a_refusal_behind_a_decision_that_may_still_come_does_not_deny_it(driver):
    """The password was changed between two tries: ConfigError would prove that nothing was decided (I10)."""
    opened(driver).log.appends = [driver.log.held_back, *[refused] * TRIES_MOST]
    with pytest.raises(OutcomeUnknownError, match="right Write"):
        commits(driver)
    driver.log.lands()
    driver.log.appends = []
    open_namespace(driver, "query-1")
    assert driver.folded.last_version == 1


def test_a_log_that_is_not_read_any_more_does_not_deny_a_decision_that_is_there(driver):
    opened(driver).log.appends = [driver.log.lost_reply, *[refused] * TRIES_MOST]
    driver.log.reads = [refused] * 3
    with pytest.raises(OutcomeUnknownError, match="right Write"):
        commits(driver)
    driver.log.appends, driver.log.reads = [], []
    open_namespace(driver, "query-1")
    assert driver.folded.last_version == 1


def test_a_decision_that_is_refused_before_it_is_sent_is_said_to_be_refused(driver):
    opened(driver).log.appends = [refused]
    with pytest.raises(ConfigError, match="right Write"):
        commits(driver)
    assert driver.log.tried == 1
    commits(driver)
