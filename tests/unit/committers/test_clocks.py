"""A decision is never stamped more than an hour ahead of this machine's clock, nor of the log's."""

import datetime
import re
import uuid

import pytest

from support.clocks import ClockAhead
from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError
from tidegate.options import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

HOUR_US = 3_600_000_000


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


def test_a_clock_that_went_back_is_refused_before_deciding(driver):
    driver.log.behind_us = None
    driver.clock.ahead_us = 3 * HOUR_US
    write(driver, 0)
    driver.clock.ahead_us = HOUR_US
    with pytest.raises(ConfigError, match=r"2\.0 h ahead of this machine's clock") as refused:
        write(driver, 1)
    decided, continues = re.findall(r"[\d-]{10} [\d:]{8} UTC", str(refused.value))[1:]
    lasts = datetime.datetime.fromisoformat(decided[:19]) - datetime.datetime.fromisoformat(continues[:19])
    assert lasts == datetime.timedelta(hours=1)
    assert "if this machine's clock is right" in str(refused.value)
    assert driver.decisions.catch_up().last_version == 1
    driver.clock.ahead_us = 2 * HOUR_US + 1_000_000  # the named time
    assert write(driver, 1).version == 2
