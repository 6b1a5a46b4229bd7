"""SIGSTOP at every named place, the log on Kafka: a driver that was overtaken changes nothing (T1, I6)."""

import random
import signal

import pytest

from crash.sweep.place import (
    BATCHES,
    DEADLINE_S,
    REACHED,
    ended,
    stops,
    wake,
    wakes_fenced,
)
from services.support.kafka.wire import Api
from tidegate.base import failpoints
from tidegate.errors import CorruptError, FencedError, WalGapError

pytest_plugins = ["services.support.kafka.sweep.place", "services.support.kafka.proxied"]

FENCED = FencedError.exit_code
OPENS_LATE = "open.before_append"
"""Who sleeps here has not opened yet: it opens when it wakes, as any new driver may."""


def retiring(name):
    return ["--keep-versions", "1"] if name.startswith("retire.") else []


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", [name for name in REACHED if name != OPENS_LATE])
def test_a_zombie_wakes_after_another_driver_finished(place, name):
    """It has one batch more to do, so wherever it slept it learns that it is not the writer any more."""
    zombie = place.start(*retiring(name), "--batches", str(BATCHES + 1), armed=f"{name}=stop")
    try:
        assert stops(zombie)
        place.run(*retiring(name))
        before, decided = place.check(), place.decided()
        wakes_fenced(zombie)
    finally:
        zombie.kill()
    assert before == place.check() == (BATCHES, BATCHES)
    assert place.decided() == decided
    assert decided.epoch == 2
    place.check_all_of_it()


def test_who_sleeps_before_it_opens_is_the_newest_when_it_wakes(place):
    zombie = place.start(armed=f"{OPENS_LATE}=stop")
    try:
        assert stops(zombie)
        place.run()
        before, decided = place.check(), place.decided()
        wake(zombie)
        events = ended(zombie)
    finally:
        zombie.kill()
    assert events[-1] == {"event": "done", "version": BATCHES}
    assert before == place.check() == (BATCHES, BATCHES)
    assert (place.decided().recent, decided.epoch, place.decided().epoch) == (decided.recent, 1, 2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["decide.before_append", "publish.before", "trim.before_decisions"])
def test_two_zombies_wake_in_turn(place, name):
    """The older wakes first, while the newer one sleeps; a third has finished."""
    zombies = []
    try:
        for _ in range(2):
            zombies.append(place.start("--batches", str(BATCHES + 1), armed=f"{name}=stop"))
            assert stops(zombies[-1])
        place.run()
        decided = place.decided()
        for zombie in zombies:
            wakes_fenced(zombie)
    finally:
        for zombie in zombies:
            zombie.kill()
    assert place.check() == (BATCHES, BATCHES)
    assert (place.decided(), decided.epoch) == (decided, 3)
    place.check_all_of_it()


@pytest.mark.one_in(4)
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name,decided",
    [("decide.before_append", 1), ("decide.after_append", 2), ("seal.after", 2), ("publish.before", 2)],
)
def test_behind_a_newer_open_nothing_is_decided_and_nothing_published(place, name, decided):
    """The newer driver has only claimed the epoch: all else about the zombie's version still fits."""
    nth = 3 if name == "seal.after" else 2  # of the second version; a version is sealed in two parts
    zombie = place.start(armed=f"{name}=stop@{nth}")
    newer = None
    try:
        assert stops(zombie)
        newer = place.start(armed="open.after_claim=stop")
        assert stops(newer)
        wakes_fenced(zombie)
        assert place.check() == (1, decided)
        wake(newer)
        assert ended(newer)[0] == {"event": "opened", "epoch": 2, "recovered": [2][: decided - 1]}
    finally:
        for driver in filter(None, (zombie, newer)):
            driver.kill()
    assert place.check() == (BATCHES, BATCHES)
    place.check_all_of_it()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["stage.before_ack", "manifest.after_write", "decide.before_append"])
def test_a_log_that_was_removed_and_made_again_meanwhile_is_another_log(place, name):
    """T20: positions and names are the same again, but what is written there decides nothing."""
    zombie = place.start("--deadline", "5", armed=f"{name}=stop@3")
    try:
        assert stops(zombie)
        before = place.visible()
        with place.opened() as (log, _):
            log.drop()
            log.create()
        wake(zombie)
        events = ended(zombie, WalGapError.exit_code)
    finally:
        zombie.kill()
    assert events[-1]["error"] == "WalGapError"
    assert place.visible() == before >= 1
    # Before its manifest it is refused in time; later its decision lands there, and begins no log.
    place.run(code=(WalGapError if name == "stage.before_ack" else CorruptError).exit_code)
    assert place.visible() == before


# -- two that do not give way -------------------------------------------------------------------------

ROUNDS, DUEL_BATCHES = 12, 6
STOPS_EACH = 3


def stops_of(chance):
    """Failpoints to stop at, for one driver."""
    chosen = {chance.choice(failpoints.NAMES): chance.choice((1, 1, 2)) for _ in range(STOPS_EACH)}
    return ",".join(f"{name}=stop@{nth}" for name, nth in chosen.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_two_drivers_stopped_and_resumed_by_turns(place, seed):
    """Whenever one sleeps the other goes on; who is fenced starts again, as a scheduler would do it."""
    chance, running, codes = random.Random(seed), [None, None], []
    try:
        for turn in range(ROUNDS):
            at = turn % 2
            if running[at] is None:
                more = ["--batches", str(DUEL_BATCHES), "--keep-versions", "2"]
                running[at] = place.start(*more, armed=stops_of(chance))
            else:
                wake(running[at])
            if not stops(running[at]):
                codes.append(running[at].returncode)
                running[at].communicate(timeout=DEADLINE_S)
                running[at] = None
            visible, decided = place.check()
            assert decided - visible in (0, 1)
        for driver in filter(None, running):
            while stops(driver):
                wake(driver)
            codes.append(driver.returncode)
            driver.communicate(timeout=DEADLINE_S)
    finally:
        for driver in filter(None, running):
            driver.kill()
    assert set(codes) <= {0, FENCED}, codes
    assert FENCED in codes
    place.run("--batches", str(DUEL_BATCHES), "--keep-versions", "2")
    assert place.check() == (DUEL_BATCHES, DUEL_BATCHES)
    place.check_all_of_it()


def test_two_drivers_started_at_once(place):
    """Neither sleeps: both make the topics, the first record and the store, and one of them wins."""
    drivers = [place.start("--deadline", "30") for _ in range(2)]
    try:
        codes = [driver.wait(DEADLINE_S) for driver in drivers]
        told = [driver.communicate() for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
    assert set(codes) <= {0, FENCED}, told
    place.run()
    assert place.check() == (BATCHES, BATCHES)
    place.check_all_of_it()


# -- what a dead driver sent --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "decided",
        pytest.param("open", marks=pytest.mark.slow),
        pytest.param("summary", marks=pytest.mark.slow),
    ],
)
def test_a_record_arrives_after_its_driver_died_and_another_finished(watched_place, proxied_kafka, kind):
    """T17: it was on its way; behind the other's Open it is void."""
    place = watched_place
    held = proxied_kafka.proxy.hold_request(Api.PRODUCE, contains=f'"kind":"{kind}"'.encode())
    driver = place.start(wal=f"kafka://{proxied_kafka.bootstrap}")
    try:
        held.arrived(DEADLINE_S)
        driver.kill()
        assert driver.wait(DEADLINE_S) == -signal.SIGKILL
        driver.communicate()
        place.run()
        decided, records = place.decided(), count_records(place)
        assert held.release() == 1
    finally:
        driver.kill()
    assert count_records(place) == records + 1
    assert place.decided() == decided
    assert place.check() == (BATCHES, BATCHES)
    place.check_all_of_it()
    place.run("--batches", str(BATCHES + 1))
    assert place.check() == (BATCHES + 1, BATCHES + 1)


def count_records(place):
    with place.opened() as (log, _):
        return sum(1 for _ in log.decisions())
