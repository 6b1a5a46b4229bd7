"""A driver does not open on a log that is set up so that a promise cannot be kept."""

import logging
import uuid

import pytest

from tidegate.base.checks import Check
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.wal.memory_log import MemoryLog

FAILED = Check("replication", "fail", "1 copy; give it 3", "durable before acknowledged (I3)")
WARNED = Check("partitions", "warn", "1", "speed")
PASSED = Check("cleanup", "pass", "delete", "nothing is lost (I10)")


class CheckedLog(MemoryLog):
    found: tuple[Check, ...] = ()

    def checks(self):
        return list(self.found)


def driver_on(*found, options=None):
    name = uuid.uuid4().hex
    log = CheckedLog(name, "n")
    log.found = found
    return Coordinator(
        Endpoints("n", f"memory://{name}", f"memory://{name}"),
        log,
        MemoryStore(name, "n"),
        options or Options(),
    )


def test_a_failed_check_is_refused_before_anything_is_appended():
    driver = driver_on(PASSED, WARNED, FAILED)
    with pytest.raises(ConfigError, match=r"replication: 1 copy.*durable before acknowledged.*allow_unsafe"):
        open_namespace(driver, "q")
    assert list(driver.log.decisions()) == []
    assert driver.store.identity() is None


def test_what_cannot_work_is_refused_also_with_allow_unsafe():
    never = Check("d: cleanup", "fail", "compact; set delete", "order", "topic a.d", may_be_allowed=False)
    driver = driver_on(FAILED, never, options=Options(allow_unsafe=True))
    with pytest.raises(ConfigError) as caught:
        open_namespace(driver, "q")
    assert "d: cleanup: compact; set delete (topic a.d; at stake: order)" in str(caught.value)
    assert "allow_unsafe" not in str(caught.value)
    assert "1 copy" not in str(caught.value)
    assert list(driver.log.decisions()) == []


def test_the_same_finding_at_two_places_is_told_once_with_both(caplog):
    both = [Check(f"{n}: copies", "fail", "1 replica", "I3", f"topic a.{n}") for n in ("d", "c")]
    other = Check("c: size", "warn", "small", "room", "topic a.c")
    driver = driver_on(*both, other, options=Options(allow_unsafe=True))
    with caplog.at_level(logging.WARNING, "tidegate"):
        open_namespace(driver, "q")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith("d and c: copies: 1 replica (topic a.d; topic a.c; at stake: I3)")
    assert second.endswith("c: size: small (topic a.c; at stake: room)")


def test_a_check_that_fails_later_is_refused_too():
    driver = driver_on(PASSED)
    open_namespace(driver, "q")
    before = list(driver.log.decisions())
    driver.log.found = (FAILED,)
    with pytest.raises(ConfigError, match="replication"):
        open_namespace(driver, "q")
    assert list(driver.log.decisions()) == before


def test_with_allow_unsafe_each_finding_is_a_warning(caplog):
    driver = driver_on(PASSED, WARNED, FAILED, options=Options(allow_unsafe=True))
    with caplog.at_level(logging.WARNING, "tidegate"):
        open_namespace(driver, "q")
    assert driver.epoch == 1
    told = [record.getMessage() for record in caplog.records]
    assert [("replication" in line, "partitions" in line) for line in told] == [(False, True), (True, False)]
