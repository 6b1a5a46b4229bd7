"""Pipelined commits: decided at once, visible in order, with a limit in flight, never stale, never silent."""

import threading

import numpy as np
import pytest

from support.committers.pipelines import DEADLINE_S, Gates, barrier_of, check_content, visible
from support.places import driver_at, fails
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.committers.background.pipeline import Pipeline, PipelineThread
from tidegate.committers.commit import until_decided
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.recover import recover
from tidegate.committers.steps.phase_times import Phases
from tidegate.committers.steps.retire import BEHIND_LEAST
from tidegate.committers.steps.trim import keep_from_us
from tidegate.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.observe.events import Labels
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import BYTES_SCHEMA, ArrowBarrier

# -- order and room ---------------------------------------------------------------------------------


def test_a_commit_returns_decided_and_becomes_visible_behind_it_i7(place, gates, make):
    driver, pipeline = make()
    gates.close("seal")
    first = pipeline.commit(barrier_of(driver, 0))
    second = pipeline.commit(barrier_of(driver, 1))
    assert (first.version, second.version, pipeline.in_flight) == (1, 2, 2)
    assert driver.folded.last_version == 2
    assert visible(place) == 0
    gates.open("seal")
    pipeline.drain(DEADLINE_S)
    assert pipeline.in_flight == 0
    check_content(place, 2)
    published = [name.split()[1] for name in gates.went if name.startswith("publish")]
    assert published == ["v1", "v2"]


def test_no_more_are_decided_than_may_be_in_flight_i11(place, gates, make):
    driver, pipeline = make(commit_in_flight=2)
    gates.close("publish")
    for batch_id in range(2):
        pipeline.commit(barrier_of(driver, batch_id))
    facts = []
    third = threading.Thread(target=lambda: facts.append(pipeline.commit(barrier_of(driver, 2))))
    third.start()
    wait_until(lambda: sum(name.startswith("log.stage") for name in gates.went) >= 6, "the third is staged")
    assert driver.folded.last_version == 2, "it is staged, and waits for room before it is decided"
    assert facts == []
    gates.open("publish")
    third.join(DEADLINE_S)
    assert [fact.version for fact in facts] == [3]
    pipeline.drain(DEADLINE_S)
    check_content(place, 3)


def test_room_is_waited_for_no_longer_than_the_deadline(place, gates, make):
    driver, pipeline = make(commit_in_flight=1, apply_deadline_s=0.2)
    gates.close("seal")
    pipeline.commit(barrier_of(driver, 0))
    with pytest.raises(StoreUnavailableError, match="1 versions are decided and not visible"):
        pipeline.commit(barrier_of(driver, 1))
    assert driver.folded.last_version == 1, "nothing of the second is decided"
    with pytest.raises(StoreUnavailableError, match="stay decided"):
        pipeline.drain(np.float32(0.05))
    threading.Timer(0.05, gates.open, ["seal"]).start()
    pipeline.drain(1e12)  # more than a lock can wait


def test_what_reads_state_waits_until_its_base_version_is_visible_i1(place, gates, make):
    driver, pipeline = make()
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    seen = []

    class Stateful(ArrowBarrier):
        def stage(self, spec, base_version):
            seen.append((base_version, visible(place)))
            return super().stage(spec, base_version)

    barrier = barrier_of(driver, 1, needs_visible_base=True)
    stateful = Stateful(**{name: getattr(barrier, name) for name in barrier.__dataclass_fields__})
    running = threading.Thread(target=lambda: pipeline.commit(stateful))
    running.start()
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    assert seen == []
    gates.open("publish")
    running.join(DEADLINE_S)
    assert seen == [(1, 1)]
    pipeline.drain(DEADLINE_S)
    check_content(place, 2)


def test_frames_that_the_driver_staged_are_not_read_back(gates, make):
    """Red before: the completing side had the frames of no batch, and read each from the log."""
    driver, pipeline = make()

    class OnDriver(ArrowBarrier):
        def stage(self, spec, base_version):
            acks = super().stage(spec, base_version)
            addresses = [frame.address for ack in acks for frame in ack.frames]
            driver.held = {blob.address: bytes(blob.content) for blob in driver.log.read(addresses)}
            return acks

    gates.close("begin")
    for batch_id in range(2):
        barrier = barrier_of(driver, batch_id)
        pipeline.commit(OnDriver(**{name: getattr(barrier, name) for name in barrier.__dataclass_fields__}))
    driver.held = {}
    before = [call for call in gates.went if call.startswith("log.read")]
    gates.open("begin")
    pipeline.drain(DEADLINE_S)
    assert before == [call for call in gates.went if call.startswith("log.read")] != []


def test_schemas_of_what_is_in_flight_are_known_before_the_store_has_them(place, gates, make):
    driver, pipeline = make()
    gates.close("begin")
    assert pipeline.schemas() == {}
    pipeline.commit(barrier_of(driver, 0))
    assert pipeline.schemas() == {BYTES_SCHEMA.schema_id: BYTES_SCHEMA}
    assert MemoryStore(place, "n").schemas() == {}


def test_schemas_of_a_version_that_another_attempt_won_are_known_once_it_is_visible(place, make):
    """Its manifest is another's, so they are the store's: asking waits until that has them, once."""
    driver, pipeline = make()
    in_flight_version = until_decided(driver, barrier_of(driver, 0))
    pipeline._put(in_flight_version._replace(manifest=None))
    pipeline._start()
    assert BYTES_SCHEMA.schema_id not in pipeline.schemas()
    assert visible(place) == 1
    assert BYTES_SCHEMA.schema_id in driver.store.schemas()
    assert pipeline.schemas() == {}


def test_phases_are_those_of_each_version_by_itself(gates, make, place):
    driver, _ = make()
    told = []
    pipeline = PipelineThread(driver, told.append)
    for batch_id in range(2):
        driver.watch = Phases()
        pipeline.commit(barrier_of(driver, batch_id))
    assert pipeline.close() is None
    assert [in_flight_version.decided.version for in_flight_version in told] == [1, 2]
    for in_flight_version in told:
        named = ["staging", "staged", "deciding", "folding", "decided", "sealed"]
        assert list(in_flight_version.machine.watch.seconds) == named


def test_summaries_are_made_of_the_decided_state_and_found_valid(place, gates, make):
    driver, pipeline = make(summary_every=1)
    gates.close("seal")
    pipeline.commit(barrier_of(driver, 0))
    pipeline.commit(barrier_of(driver, 1))
    driver.decisions.catch_up()
    assert [at.version for at in driver.decisions.view.summaries] == [1, 2]
    assert driver.decisions.view.void == 0
    assert keep_from_us(driver.folded, driver.clock.now_us(), 0.0) == driver.folded.decided_at_us


# -- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error,kind",
    [
        (CorruptError("simulated"), CorruptError),
        (StoreUnavailableError("simulated"), StoreUnavailableError),
        (ValueError("simulated"), TidegateError),
    ],
)
def test_an_error_in_the_background_ends_the_line_and_is_raised_with_its_cause_i7_i10(
    place, gates, make, error, kind
):
    driver, pipeline = make(apply_deadline_s=0.2)
    gates.close("seal")
    pipeline.commit(barrier_of(driver, 0))
    pipeline.commit(barrier_of(driver, 1))
    gates.errors["apply"] = gates.errors["seal"] = error
    gates.open("seal")
    wait_until(lambda: pipeline.failed is not None, "the line fails")
    for call in (
        lambda: pipeline.commit(barrier_of(driver, 2)),
        lambda: pipeline.drain(DEADLINE_S),
        pipeline.check,
    ):
        with pytest.raises(kind, match="version 1, which an earlier batch decided") as raised:
            call()
        assert raised.value.__cause__ is pipeline.failed
    assert driver.folded.last_version == 2, "nothing more is decided"
    assert isinstance(pipeline.close(), kind)
    gates.errors.clear()
    assert visible(place) == 0
    another = driver_at(place, port=gates)
    assert open_namespace(another, "query-1") == [1, 2]
    check_content(place, 2)


def test_what_fails_while_older_versions_are_retired_lets_nothing_more_be_decided(
    place, gates, make, monkeypatch
):
    driver, pipeline = make(commit_in_flight=2, max_layers=3)
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    waits, raised = threading.Event(), []
    monkeypatch.setattr(type(driver), "waiting_for", lambda *_: waits.set())

    def second():
        try:
            pipeline.commit(barrier_of(driver, 1))
        except CorruptError as error:
            raised.append(error)

    with driver.priority.retiring():
        for _ in range(BEHIND_LEAST):
            driver.priority.published()
        running = threading.Thread(target=second)
        running.start()
        assert waits.wait(DEADLINE_S)
        gates.errors["publish"] = CorruptError("simulated")
        gates.open("publish")
        wait_until(lambda: pipeline.failed is not None, "the line fails")
    running.join(DEADLINE_S)
    assert len(raised) == 1
    assert driver.folded.last_version == 1, "nothing more is decided"


def test_what_fails_while_room_is_waited_for_is_raised_at_once(place, gates, make):
    driver, pipeline = make(commit_in_flight=1)
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    raised = []

    def second():
        try:
            pipeline.commit(barrier_of(driver, 1))
        except CorruptError as error:
            raised.append(error)

    running = threading.Thread(target=second)
    running.start()
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    gates.errors["publish"] = CorruptError("simulated")
    gates.open("publish")
    running.join(DEADLINE_S)
    assert len(raised) == 1
    assert driver.folded.last_version == 1


def test_a_failpoint_in_the_background_is_an_error_like_any_other(place, gates, make):
    driver, pipeline = make()
    failpoints.arm("pipeline.before_complete=raise")
    try:
        pipeline.commit(barrier_of(driver, 0))
        with pytest.raises(TidegateError, match="failpoint pipeline"):
            pipeline.drain(DEADLINE_S)
    finally:
        failpoints.arm(None)
    assert visible(place) == 0


def test_a_newer_driver_fences_what_is_in_flight_and_has_it_visible_i4_i6(place, gates, make):
    driver, pipeline = make()
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    pipeline.commit(barrier_of(driver, 1))
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    newer = driver_at(place, port=Gates())
    assert open_namespace(newer, "query-1") == [1, 2]
    gates.open("publish")
    with pytest.raises(FencedError):
        pipeline.drain(DEADLINE_S)
    check_content(place, 2)


def test_who_fenced_the_line_and_was_fenced_since_is_told_so_i10(place, gates, make):
    driver, pipeline = make()
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    wait_until(lambda: "publish" in gates.waiting, "it is about to be published")
    newer = driver_at(place, port=Gates())
    assert open_namespace(newer, "query-1") == [1]
    gates.open("publish")
    wait_until(lambda: pipeline.failed is not None, "the line fails")
    with pytest.raises(FencedError) as plain:
        pipeline.check()
    assert "has fenced that one since" not in str(plain.value)
    fenced_at = pipeline.line_epoch
    open_namespace(driver, "query-1")  # as decide does when it cannot learn what became of its record
    assert driver.epoch > newer.epoch > fenced_at == pipeline.line_epoch
    with pytest.raises(FencedError, match=f"has fenced that one since, at epoch {driver.epoch}: restart it"):
        pipeline.check()


def test_an_own_fencing_open_fences_nothing_that_is_in_flight(place, gates, make):
    """While version 2 is decided its reply is lost and the log is silent: the driver fences itself."""
    driver, pipeline = make(decide_deadline_s=0.1)
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    plain = driver.log.append_decision

    def lost(content):
        driver.log.append_decision = plain
        plain(content)
        gates.errors["decisions"] = WalUnavailableError("simulated")
        raise OutcomeUnknownError("simulated")

    def fencing(content):
        gates.errors.clear()
        return plain(content)

    def lost_then_fencing(content):
        try:
            lost(content)
        finally:
            driver.log.append_decision = fencing

    driver.log.append_decision = lost_then_fencing
    epoch = driver.epoch
    pipeline.commit(barrier_of(driver, 1))
    assert driver.epoch == epoch + 1
    assert MemoryStore(place, "n").pointer().epoch == epoch + 1
    gates.open("publish")
    pipeline.drain(DEADLINE_S)
    check_content(place, 2)


def test_a_repair_beside_may_publish_ahead_of_the_line(place, gates, make):
    """The background repairs with a driver of its own under the same epoch, up to the log's end."""
    driver, pipeline = make()
    gates.close("publish")
    pipeline.commit(barrier_of(driver, 0))
    pipeline.commit(barrier_of(driver, 1))
    wait_until(lambda: "publish" in gates.waiting, "the first is about to be published")
    beside = driver_at(place, port=Gates())
    beside.decisions.view, beside.decisions.writer = driver.decisions.view, driver.writer
    beside.decisions.epoch = beside.decisions.tried_epoch = driver.epoch
    assert recover(beside) == [1, 2]
    gates.open("publish")
    pipeline.drain(DEADLINE_S)
    check_content(place, 2)


def test_a_version_that_stops_the_line_is_watched_no_more(place, monkeypatch):
    driver = driver_at(place)
    open_namespace(driver, "query-1")
    phases = driver.watch = Phases(Labels("n"))
    pipeline = Pipeline(driver)
    pipeline.commit(barrier_of(driver, 0))
    monkeypatch.setattr(driver.store, "begin", fails(CorruptError("damaged")))
    pipeline.complete_next()
    assert isinstance(pipeline.failed, CorruptError)
    assert phases.phase is None
