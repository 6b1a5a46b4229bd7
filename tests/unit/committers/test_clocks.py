"""The times of decisions while clocks of drivers and of the log differ."""

import datetime
import re
import uuid

import pytest

from support.clocks import ClockAhead
from tidegate.base.clock import Clock
from tidegate.committers.barrier import decided_of
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace, writer_is_alive
from tidegate.errors import ConfigError
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.manifest import Manifest
from tidegate.wal.memory_log import MemoryLog

HOUR_US = 3_600_000_000
EMPTY = Manifest("n", "a", 1, 4, (), {}, {}, {}, "")


class LogWithClock(MemoryLog):
    behind_us: int | None = 0

    def now_us(self):
        return None if self.behind_us is None else Clock().now_us() - self.behind_us


@pytest.fixture
def driver():
    name = uuid.uuid4().hex
    url = f"memory://{name}"
    made = Coordinator(
        Endpoints("n", url, url), LogWithClock(name, "n"), MemoryStore(name, "n"), clock=ClockAhead()
    )
    open_namespace(made, "q")
    return made


def write(driver, batch_id):
    barrier = ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, batch("q", batch_id), driver.folded.key_groups)
    return commit(driver, barrier)


@pytest.mark.parametrize("behind_us", [None, 0, -10 * HOUR_US, HOUR_US - 60_000_000])
def test_clocks_that_agree_about_the_hour_are_fine(driver, behind_us):
    driver.log.behind_us = behind_us
    assert write(driver, 0).version == 1


def test_a_clock_ahead_of_the_logs_is_refused_before_deciding(driver):
    driver.log.behind_us = HOUR_US + 60_000_000
    with pytest.raises(ConfigError, match=r"1\.0 h ahead of the log's clock"):
        write(driver, 0)
    assert driver.decisions.catch_up().last_version == 0


def test_a_clock_that_goes_back_during_a_batch_is_refused_before_deciding(driver):
    driver.log.behind_us = None
    driver.clock.ahead_us = 2 * HOUR_US
    barrier = ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, batch("q", 0), driver.folded.key_groups)
    began_us = driver.clock.now_us()
    driver.clock.ahead_us = 0
    with pytest.raises(ConfigError, match=r"2\.0 h ahead of this machine's clock"):
        decided_of(driver, barrier, EMPTY, "m", "d", began_us)


@pytest.mark.parametrize("behind_us", [None, 0])
def test_the_right_clock_continues_after_one_that_was_ahead(driver, behind_us, caplog):
    """Times only increase (I2): each version is a microsecond later, and one warning names it."""
    driver.log.behind_us = None
    driver.clock.ahead_us = 2 * HOUR_US
    first = write(driver, 0)
    driver.clock.ahead_us, driver.log.behind_us = 0, behind_us
    times = [write(driver, number).decided_at_us for number in (1, 2)]
    assert times == [first.decided_at_us + 1, first.decided_at_us + 2]
    warnings = [record.message for record in caplog.records if "2.0 h ahead of" in record.message]
    assert len(warnings) == 1
    driver.clock.ahead_us, driver.log.behind_us = 3 * HOUR_US, None
    assert write(driver, 3).decided_at_us > times[1] + HOUR_US // 2


def test_a_time_ahead_by_more_than_the_retention_is_refused_until_a_named_time(driver):
    """Trimming keeps what a slow batch has staged only while the clocks differ by less than that."""
    driver.log.behind_us = None
    driver.clock.ahead_us = 27 * HOUR_US
    write(driver, 0)
    driver.clock.ahead_us = HOUR_US
    with pytest.raises(ConfigError, match=r"26\.0 h ahead of this machine's clock") as refused:
        write(driver, 1)
    decided, continues = re.findall(r"[\d-]{10} [\d:]{8} UTC", str(refused.value))[1:]
    lasts = datetime.datetime.fromisoformat(decided[:19]) - datetime.datetime.fromisoformat(continues[:19])
    assert lasts == datetime.timedelta(hours=24)
    assert "if this machine's clock is right" in str(refused.value)
    assert driver.decisions.catch_up().last_version == 1
    driver.clock.ahead_us = 3 * HOUR_US + 1_000_000  # the named time
    assert write(driver, 1).version == 2


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_killed_writer_with_a_clock_ahead_does_not_count_as_running_until_then(kind, tmp_path):
    name, clock = uuid.uuid4().hex, ClockAhead()
    url = f"memory://{name}" if kind == "memory" else f"sqlite://{tmp_path}"
    made = Coordinator(Endpoints("n", url, url), LogWithClock(name, "n"), open_store(url, "n", {}, clock))
    open_namespace(made, "q")
    clock.ahead_us = 2 * HOUR_US
    made.store.heartbeat(made.epoch)
    assert writer_is_alive(made)
    clock.ahead_us = 0
    assert not writer_is_alive(made)
    assert made.store.pointer().heartbeat_age_s == pytest.approx(7_200, abs=60)
