"""A sample of the crash sweep (``make sweep`` runs all of it), and that the sweep can fail.

Of every kind of I/O in every step of the protocol one place to die before or after it, one in the
middle of it where half can be done, each finished in one of the ways. A seed chooses; a failure
prints the command that repeats its case.
"""

import os
import random
import signal
import sqlite3

import pytest

from crash.sweep.check import SweepError, check, check_end
from crash.sweep.io_crash import Meter, step
from crash.sweep.run import (
    BATCHES,
    ONLY,
    WAYS,
    Case,
    Place,
    cases,
    count,
    crash,
    finish,
    sweep,
    working_folder,
)

SEED = int(os.environ.get("TIDEGATE_SEED", "0"))
"""Another seed makes another sample: a nightly run takes the date."""
STEPS = "open checkpoint stage manifest decide apply seal publish summary retire trim end"
KINDS = "fsync make rename unlink write sql-write sql-commit sql-close"


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    return count(tmp_path_factory.mktemp("count") / "place")


def sample(points):
    """(case, way): of each kind and step one case to be torn, if any can be, and one other; ways by turns."""
    chance, by_kind = random.Random(SEED), {}
    for case in cases(points):
        by_kind.setdefault((case.point.kind, case.point.step, case.mode == "torn"), []).append(case)
    chosen = [chance.choice(found) for _, found in sorted(by_kind.items())]
    turn = chance.randrange(len(WAYS))
    return [(case, WAYS[(at + turn) % len(WAYS)]) for at, case in enumerate(chosen)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.timeout(300)
def test_killed_at_an_io_i1_i2_i4_i5_i7_i8_i11(points, way):
    chosen = [case for case, its in sample(points) if its == way]
    with working_folder() as folder:
        wrong = [
            f"{result.case} {result.case.point}: {result.wrong}\n{ONLY.format(case=result.case, way=way)}"
            for result in sweep(chosen, folder, 1, way)
            if result.wrong
        ]
    assert not wrong, f"TIDEGATE_SEED={SEED}\n" + "\n".join(wrong)


# -- the sweep itself -------------------------------------------------------------------------------


def test_every_step_and_every_kind_of_io_is_met(points):
    assert {point.step for point in points} == set(STEPS.split())
    assert {point.kind for point in points} == {kind.replace("-", " ") for kind in KINDS.split()}


def test_the_same_driver_does_the_same_io(points, tmp_path):
    """Else the n-th of one run were not the n-th of the next. File names hold random ids."""
    again = count(tmp_path / "again")
    assert [(p.kind, p.step, p.torn) for p in again] == [(p.kind, p.step, p.torn) for p in points]


def first(points, kind, step, mode):
    return next(c for c in cases(points) if (c.mode, c.point.kind, c.point.step) == (mode, kind, step))


@pytest.mark.parametrize("mode", ["before", "torn", "after"])
def test_a_write_is_not_done_half_done_and_done(points, mode, tmp_path):
    nth = first(points, "write", "decide", "before").nth
    sizes = {}
    for one in ("before", mode, "after"):
        place, _ = crash(Case(one, nth, points[nth - 1]), tmp_path / f"{len(sizes)}-{one}")
        sizes[one] = (place.folder / "wal" / "crash" / "decisions.log").stat().st_size
    assert sizes["before"] < sizes["after"]
    assert sizes["torn"] == (sizes["before"] + sizes["after"]) // 2 if mode == "torn" else mode in sizes


def test_a_torn_commit_is_there_in_part_and_is_not_seen(points, tmp_path):
    commits = [
        c for c in cases(points) if (c.mode, c.point.kind, c.point.step) == ("torn", "sql commit", "publish")
    ]
    torn = next(each for each in commits if each.point.file.startswith("meta.sqlite"))  # not of a new table
    place, left = crash(torn, tmp_path / "torn")
    assert (left.visible, left.decided) == (0, 1)
    wal = place.folder / "store" / "crash" / "meta.sqlite-wal"
    _, after = crash(torn._replace(mode="after"), tmp_path / "after")
    assert (after.visible, after.decided) == (1, 1)
    whole = tmp_path / "after" / "store" / "crash" / "meta.sqlite-wal"
    assert 0 < wal.stat().st_size < whole.stat().st_size
    finish(torn, "restart", place, left)


def test_what_is_done_inside_a_point_is_part_of_it():
    meter = Meter("count")
    meter.io("outer", "/a/b", lambda: meter.io("inner", "/c", lambda: None))
    assert meter.points == [("outer", "end", "b", False)]
    assert step() == "end"


@pytest.mark.parametrize("bad", ["", "before", "before@0@1", "count@3", "sometimes@3", "after@2,new"])
def test_a_specification_that_says_nothing_is_refused(bad):
    with pytest.raises(ValueError):  # noqa: PT011 - int's own message will do
        Meter(bad)


def test_a_driver_that_is_not_armed_dies_nowhere(tmp_path):
    place = Place(tmp_path)
    with pytest.raises(SweepError, match="exit code 0 instead of"):
        place.drive("old", 1, codes=(-signal.SIGKILL,))


# -- the checks can fail ----------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path):
    place = Place(tmp_path / "finished")
    place.folder.mkdir()
    place.drive("count,old", BATCHES)
    return place


def in_shards(place, sql):
    for path in (place.folder / "store" / "crash").glob("shard-*.sqlite"):
        with sqlite3.connect(path) as connection:
            connection.execute(sql)
        connection.close()


@pytest.mark.parametrize(
    "sql,named",
    [
        ("DELETE FROM t_aircraft WHERE version = (SELECT max(version) FROM t_aircraft)", "I1"),
        ("UPDATE t_aircraft SET value = CAST(value || '!' AS BLOB)", "I1"),
        ("INSERT INTO t_alerts SELECT kg, CAST('gone' AS BLOB), 1, CAST('-' AS BLOB) FROM floors", "I11"),
    ],
)
def test_a_store_that_is_wrong_is_found(finished, sql, named):
    check_end(finished.wal, finished.store, BATCHES, None)
    in_shards(finished, sql)
    with pytest.raises(SweepError, match=named):
        check_end(finished.wal, finished.store, BATCHES, None)


def test_a_segment_that_is_missing_is_found(finished):
    changelog = finished.folder / "wal" / "crash" / "changelog"
    max(changelog.glob("*.seg"), key=lambda path: path.stat().st_ctime).unlink()
    with pytest.raises(Exception, match="is missing"):
        check(finished.wal, finished.store)


def test_an_attempt_that_changed_is_found(finished):
    left = check(finished.wal, finished.store)
    with pytest.raises(SweepError, match="I4"):
        check_end(finished.wal, finished.store, BATCHES, left._replace(attempts={BATCHES: "another"}))
