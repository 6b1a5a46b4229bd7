"""Drivers that commit pipelined, killed with versions in flight: a sample of the crash sweep, and failpoints.

``python -m crash.sweep.run --in-flight 2`` runs all of it. One thread does both sides, so that
the n-th I/O of one run is that of the next.
"""

import os
import random
import signal

import pytest

from crash.sweep import place as crash_place
from crash.sweep.run import ONLY, WAYS, cases, count, crash, sweep, working_folder

SEED = int(os.environ.get("TIDEGATE_SEED", "0"))
IN_FLIGHT = 2
SECOND_HALF = ("decide", "apply", "seal", "publish", "end")


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    return count(tmp_path_factory.mktemp("count") / "place", IN_FLIGHT)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.timeout(300)
def test_killed_at_an_io_i1_i2_i4_i7(points, way):
    chance, by_step = random.Random(f"{SEED} {way}"), {}
    for case in cases(points):
        if case.point.step in SECOND_HALF:
            by_step.setdefault(case.point.step, []).append(case)
    chosen = [chance.choice(found) for _, found in sorted(by_step.items())]
    assert len(chosen) == len(SECOND_HALF)
    with working_folder() as folder:
        wrong = [
            f"{result.case} {result.case.point}: {result.wrong}\n"
            f"{ONLY.format(case=result.case, way=way)} --in-flight {IN_FLIGHT}"
            for result in sweep(chosen, folder, 1, way, in_flight=IN_FLIGHT)
            if result.wrong
        ]
    assert not wrong, f"TIDEGATE_SEED={SEED}\n" + "\n".join(wrong)


def test_some_die_with_all_in_flight(points, tmp_path):
    """Else the sweep would show nothing new."""
    first = next(c for c in cases(points) if (c.mode, c.point.step) == ("before", "apply"))
    _, left = crash(first, tmp_path / "full", IN_FLIGHT)
    assert (left.visible, left.decided) == (0, IN_FLIGHT)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("finish", crash_place.FINISHES)
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("name", ["pipeline.before_complete", "pipeline.after_complete"])
def test_killed_between_decided_and_visible_i2_i4(tmp_path, name, nth, finish):
    place = crash_place.Place(tmp_path)
    place.run("--in-flight", "2", armed=f"{name}=kill@{nth}", code=-signal.SIGKILL)
    visible, decided = place.check()
    assert visible == (nth - 1 if name == "pipeline.before_complete" else nth)
    assert decided == nth + 1
    finish(place)
