"""The schedule: complete, the same for the same seed, and nothing is left out silently."""

import itertools

import pytest

from tidegate.base import failpoints
from tidegate.errors import ConfigError
from tidegate.torture.driver.faults import FAULTS, OUTSIDE, TABLE
from tidegate.torture.schedule import (
    FINISHES,
    Environment,
    Skipped,
    cell_of,
    cells,
    check_names,
    round_size,
    shape_of,
    skipped,
)

SQLITE, REDIS, CLUSTER = "sqlite:///s", "redis://h:1", "redis+cluster://h:1"


def first_round(seed, store=REDIS, faults=FAULTS, planned=()):
    here = Environment(store, planned)
    return list(itertools.islice(cells(seed, faults, here), round_size(faults, here)))


@pytest.mark.parametrize("store", [SQLITE, REDIS, CLUSTER])
@pytest.mark.parametrize("planned", [(), ("broker-away", "cut")])
def test_every_failpoint_fault_and_way_is_run_or_told_as_not_run(store, planned):
    faults = (*FAULTS, *planned)
    run = first_round(3, store, faults, planned)
    assert len({str(cell) for cell in run}) == len(run)
    left_out = sum(skip.cells for skip in skipped(faults, Environment(store, planned)))
    assert len(run) + left_out == len(failpoints.NAMES) * len(faults) * len(FINISHES)
    assert {cell.fault for cell in run if cell.alone} >= {*planned}, "others would meet the fault too"
    assert {cell.round for cell in run} == {1}


def test_the_crash_table_comes_first():
    size = round_size(TABLE, Environment(REDIS))
    run = first_round(3)
    assert {cell.fault for cell in run[:size]} == set(TABLE)
    assert not {cell.fault for cell in run[size:]} & set(TABLE)


def test_the_crash_table_has_every_failpoint():
    assert {cell.failpoint for cell in first_round(1)} == set(failpoints.NAMES)


def test_the_second_round_has_the_same_cells_in_another_order():
    faults, size = ("kill", "io"), round_size(("kill", "io"), Environment(SQLITE))
    both = list(itertools.islice(cells(5, faults, Environment(SQLITE)), 2 * size))
    one, two = both[:size], both[size:]
    assert {cell[:3] for cell in one} == {cell[:3] for cell in two}
    assert [cell[:3] for cell in one] != [cell[:3] for cell in two]
    assert {cell.round for cell in two} == {2}


def test_a_seed_gives_one_schedule():
    assert first_round(7) == first_round(7)
    assert first_round(7) != first_round(8)
    cell = first_round(7)[0]
    assert shape_of(cell, 7) == shape_of(cell, 7)
    assert {shape_of(cell, seed) for seed in range(50)} > {shape_of(cell, 7)}


def test_nothing_that_is_possible_is_no_endless_search():
    assert list(cells(1, ["reshard"], Environment(SQLITE))) == []


def test_a_proxy_needs_a_plain_server():
    for url in (SQLITE, CLUSTER, "rediss://h:1", "redis://:secret@h:1", "redis://h:1/3", "cassandra://h/k"):
        (skip,) = skipped(["net-lost"], Environment(url))
        assert "redis://host:port" in skip.reason
    assert [skip for skip in skipped(["net-lost"], Environment("redis://h:1/0")) if not skip.failpoint] == []
    logs_in = Environment("redis://h:1/0", logs_in=True)
    (skip,) = skipped(["net-lost"], logs_in)
    assert "does not log in" in skip.reason
    assert round_size(["net-lost"], logs_in) == 0
    assert list(cells(1, ["net-lost"], logs_in)) == []


def test_a_disk_is_filled_where_it_is_ours():
    assert [skip for skip in skipped(["full"], Environment(SQLITE)) if not skip.failpoint] == []
    for url in (CLUSTER, "redis://h:1", "cassandra://h/k"):
        (skip,) = skipped(["full"], Environment(url))
        assert "only sqlite://" in skip.reason


@pytest.mark.parametrize("fault", OUTSIDE)
def test_what_is_done_to_redis_from_outside_needs_redis(fault):
    for url in (SQLITE, "cassandra://h/k"):
        (skip,) = skipped([fault], Environment(url))
        assert "only Redis" in skip.reason
    for url in (REDIS, CLUSTER, "rediss+sentinel://h:1/m"):
        assert skipped([fault], Environment(url)) == []


def test_what_the_topology_lacks_is_told_and_counted():
    here = Environment(CLUSTER, lacking={"reshard": "one primary"})
    (skip,) = skipped(["reshard", "evict-base"], here)
    assert skip == Skipped("", "reshard", len(failpoints.NAMES) * len(FINISHES), "one primary")


def test_a_namespace_is_old_but_where_its_making_is_disturbed():
    shapes = [(cell, shape_of(cell, seed)) for seed in range(20) for cell in first_round(seed)]
    young = [cell for cell, shape in shapes if not shape.old]
    assert young
    assert all(cell.failpoint.startswith("open.") and cell.fault not in OUTSIDE for cell in young)


def test_cells_are_named():
    cell = cell_of("publish.before:kill:second")
    assert cell_of(str(cell)) == cell
    assert str(cell_of("publish.before:kill:second:12")) == "publish.before:kill:second:12"


@pytest.mark.parametrize(
    "text",
    [
        *("", "publish.before", "publish.before:kill", "publish.before:kill:never", "publish:kill:same"),
        *("publish.before:kill:same:0", "publish.before:kill:same:x", "publish.before:kill:same:1:1"),
    ],
)
def test_what_is_no_cell_is_refused(text):
    with pytest.raises(ConfigError, match="cell"):
        cell_of(text)


def test_faults_are_checked():
    assert check_names("fault", ["stop", "kill"], FAULTS) == ("kill", "stop")
    with pytest.raises(ConfigError, match="kil"):
        check_names("fault", ["kil"], FAULTS)
    with pytest.raises(ConfigError, match="no fault"):
        check_names("fault", [], FAULTS)
