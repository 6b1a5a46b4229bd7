"""The threads of a coordinator: heartbeat, retirement, repair. An error ends none of them."""

import contextlib
import threading
import time

import pytest

from support.places import opened
from support.wait import wait_until
from tidegate.committers.background import worker
from tidegate.committers.background.worker import Background
from tidegate.committers.operations.verify import verify
from tidegate.errors import StoreUnavailableError
from tidegate.options import Options
from tidegate.sinks.memory.store import MemoryStore

DEADLINE_S = 60.0


def test_a_heartbeat_ends_with_its_query(place):
    driver = opened(place)
    alive = threading.Event()
    alive.set()
    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch, alive.is_set)
    try:
        alive.clear()
        assert work._ending.wait(DEADLINE_S)
    finally:
        work.stop()
    assert work.ended


def test_a_version_after_the_end_of_its_query_is_not_waited_for(place):
    """Red before: the close of a sink that migrated a state after its query waited ``apply_deadline_s``."""
    driver = opened(place)
    work = Background(driver.log, driver.store, driver.options, lambda: driver.epoch)
    work._end()
    wait_until(lambda: not any(thread.is_alive() for thread in work._threads))
    work.published()
    begun = time.monotonic()
    work.drain(20)
    assert time.monotonic() - begun < 10


def test_a_query_that_cannot_be_asked_for_counts_as_one_that_runs(place, caplog):
    """The thread ended there, and with it every sign of life of a driver that went on."""
    driver, asked = opened(place), iter([OSError("no answer"), True, False])

    def alive():
        answer = next(asked)
        if isinstance(answer, OSError):
            raise answer
        return answer

    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch, alive)
    try:
        assert work._ending.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "heartbeat failed, tried again in 0.01 s: no answer" in caplog.text
    assert next(asked, None) is None


@pytest.mark.parametrize(
    "error, level", [(StoreUnavailableError("away"), "WARNING"), (ValueError("away"), "ERROR")]
)
def test_a_heartbeat_that_fails_is_tried_again_and_stops_nothing(place, monkeypatch, caplog, error, level):
    driver = opened(place)
    beats, well = iter([error]), threading.Event()

    def heartbeat(_):
        for fails_with in beats:
            raise fails_with
        well.set()

    monkeypatch.setattr(driver.store, "heartbeat", heartbeat)
    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch)
    try:
        assert well.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "heartbeat failed, tried again in 0.01 s: away" in caplog.text
    assert [one.levelname for one in caplog.records] == [level]


def test_an_error_that_nobody_foresaw_does_not_end_retirement(place, monkeypatch, caplog):
    driver, tried, well = opened(place), iter([ValueError("a bug")]), threading.Event()

    def retire(*_):
        for error in tried:
            raise error
        well.set()
        return 0

    monkeypatch.setattr(worker, "retire_up_to", retire)
    work = Background(driver.log, driver.store, driver.options, lambda: driver.epoch)
    try:
        work.published()
        wait_until(lambda: "a bug" in caplog.text)
        work.published()
        assert well.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "Traceback" in caplog.text


def test_what_a_server_lost_is_put_back_while_no_batch_comes(place):
    class Restarted(MemoryStore):
        changed = False

        def unverified(self):
            return self.changed

        @contextlib.contextmanager
        def comparing(self, epoch):
            self.changed = False
            with super().comparing(epoch) as oldest:
                yield oldest

    driver = opened(place, 2, kind=Restarted)
    work = Background(driver.log, driver.store, Options(key_groups=4, heartbeat_s=0.01), lambda: driver.epoch)
    try:
        driver.store.changed = True
        wait_until(lambda: not driver.store.changed)
    finally:
        work.stop()
    assert not verify(driver.log, driver.store).findings
