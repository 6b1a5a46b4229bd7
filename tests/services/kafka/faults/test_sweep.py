"""A sample of the crash sweep on Kafka (``sweep/run.py`` is all of it), and that the sweep can fail.

Of every kind of request that changes something, and of one that only reads, places to die at before the
request and after it; a seed chooses. A failure prints the command that repeats its case.
"""

import argparse
import os
import random
from collections import Counter

import pytest

from crash.sweep.check import SweepError
from crash.sweep.run import WAYS, working_folder
from services.support.kafka.sweep.run import BATCHES, MODES, ONLY, Case, Sweep, cases, parse
from services.support.kafka.wire import Api

pytest_plugins = ["services.support.kafka.proxied"]

SEED = int(os.environ.get("TIDEGATE_SEED", "0"))
"""Another seed makes another sample: a nightly run takes the date."""
PRODUCES = 15
"""A driver makes more of these requests; so many there are for sure."""
SAMPLE = {
    "CREATE_TOPICS": (1, 2),
    "DELETE_RECORDS": (3, 2),
    "PRODUCE": (PRODUCES, 5),
    "LIST_OFFSETS": (40, 1),
}
"""Of the first so many of a kind, how many."""


@pytest.fixture
def kafka_sweep(proxied_kafka):
    with working_folder() as folder:
        yield Sweep(proxied_kafka, folder)


def sample():
    """(case, way), the ways by turns."""
    chance, chosen = random.Random(SEED), []
    for kind, (most, count) in SAMPLE.items():
        places = [Case(mode, kind, nth) for nth in range(1, most + 1) for mode in MODES]
        chosen += chance.sample(places, count)
    turn = chance.randrange(len(WAYS))
    return [(case, WAYS[(at + turn) % len(WAYS)]) for at, case in enumerate(chosen)]


@pytest.mark.slow
def test_killed_at_a_request_i1_i2_i4_i5_i7_i8_i11(kafka_sweep):
    results = list(kafka_sweep.run(sample()))
    wrong = [
        f"{r.wrong or 'the driver did not get there'}\n{ONLY.format(case=r.case, way=r.way)}"
        for r in results
        if r.wrong or not r.reached
    ]
    assert not wrong, f"TIDEGATE_SEED={SEED}\n" + "\n".join(wrong)


# -- the sweep itself -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "case,made,topics",
    [
        (Case("before", "CREATE_TOPICS", 1), False, False),
        (Case("after", "CREATE_TOPICS", 1), False, True),
        (Case("before", "PRODUCE", 1), False, True),
        (Case("after", "PRODUCE", 1), True, True),
    ],
    ids=str,
)
def test_before_it_is_not_done_and_after_it_is_done(kafka_sweep, case, made, topics):
    """The first message is the log's first record."""
    with kafka_sweep.place(case) as place:
        assert place.die(case, 1)
        assert place.check().made == made
        assert place.topics_are_there() == topics


@pytest.mark.slow
def test_a_place_that_is_not_reached_is_a_run_to_the_end(kafka_sweep):
    result = kafka_sweep.run_case(Case("after", "CREATE_TOPICS", 9), "restart")
    assert (result.reached, result.wrong) == (False, "")


@pytest.mark.slow
def test_every_kind_of_request_is_met(kafka_sweep):
    counts = kafka_sweep.count()
    assert {"CREATE_TOPICS", "DELETE_RECORDS", "FETCH", "LIST_OFFSETS", "METADATA", "PRODUCE"} <= set(counts)
    assert all(counts[kind] >= most for kind, (most, _) in SAMPLE.items())


def test_cases_are_printed_as_they_are_read():
    counts = Counter({"PRODUCE": 2, "METADATA": 1})
    assert [str(case) for case in cases(counts)] == [
        "before-METADATA@1",
        "after-METADATA@1",
        "before-PRODUCE@1",
        "before-PRODUCE@2",
        "after-PRODUCE@1",
        "after-PRODUCE@2",
    ]
    assert [parse(str(case)) for case in cases(counts)] == cases(counts)
    for bad in ("during-PRODUCE@1", "after-NOTHING@1", "after-PRODUCE", "after-PRODUCE@x"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(bad)


# -- the checks can fail ----------------------------------------------------------------------------


def test_what_is_lost_or_left_over_is_found(kafka_sweep):
    with kafka_sweep.place("finished") as place:
        place.go_on(BATCHES)
        left = place.check()
        place.check_end(BATCHES, left)
        with pytest.raises(SweepError, match="I4"):
            place.check_end(BATCHES, left._replace(attempts={BATCHES: "another"}))
        with place.log() as log:
            log.stage("orphan-1", [b"nobody's"])
        with pytest.raises(SweepError, match=r"I11: orphans.*orphan-1"):
            place.check_end(BATCHES, place.check())


def test_a_store_without_its_log_is_found(kafka_sweep):
    with kafka_sweep.place("dropped") as place:
        place.go_on(1)
        with place.log() as log:
            log.drop()
        with pytest.raises(SweepError, match=r"visible 1, decided 0"):
            place.check()


def test_kinds_that_are_swept_have_names():
    assert set(SAMPLE) <= set(Api.__members__)
