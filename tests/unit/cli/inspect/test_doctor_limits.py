"""`tidegate doctor` on limits: descriptors, threads, tables."""

import resource
import types

import pytest

from tidegate.cli.inspect import doctor_limits
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.wal.record import Folded, TableAt

SQLITE = ["file:///data/wal", "sqlite:///data/store"]


@pytest.fixture
def limits(monkeypatch, tmp_path):
    """Limits of descriptors and threads, soft and hard; no container."""
    by_kind = {resource.RLIMIT_NOFILE: (1_024, 4_096), resource.RLIMIT_NPROC: (4_000, 4_000)}
    monkeypatch.setattr(resource, "getrlimit", by_kind.__getitem__)
    monkeypatch.setattr(doctor_limits, "PIDS", (tmp_path / "pids.max", tmp_path / "pids.current"))
    return by_kind


def checks(urls=SQLITE):
    return {check.check: (check.outcome, check.found) for check in doctor_limits.check_limits(urls)}


def test_the_usual_limits_are_enough_for_one_namespace(limits):
    assert checks() == {
        "descriptors": ("pass", "1,024 (ulimit -n); one namespace needs 212"),
        "threads": ("pass", "4,000 of this user (ulimit -u); one namespace needs 60, Spark's own excluded"),
    }


def test_a_limit_below_the_need_is_a_warning_with_both_numbers(limits):
    limits[resource.RLIMIT_NOFILE] = (128, 4_096)
    limits[resource.RLIMIT_NPROC] = (50, 50)
    seen = checks()
    assert seen["descriptors"] == (
        "warn",
        "128 (ulimit -n); one namespace needs 212: raise it, this user may set up to 4,096",
    )
    assert seen["threads"][0] == "warn"


def test_a_hard_limit_below_the_need_is_for_an_administrator(limits):
    """The advice was to raise 128, of which this user may set up to 128."""
    limits[resource.RLIMIT_NOFILE] = (128, 128)
    outcome, found = checks()["descriptors"]
    assert outcome == "warn"
    assert found.endswith("needs 212: an administrator has to raise it, this user may set up to 128")


def test_the_need_is_that_of_the_given_log_and_stores(limits):
    limits[resource.RLIMIT_NOFILE] = (200, resource.RLIM_INFINITY)
    assert checks([None])["descriptors"][0] == "pass"
    urls = ["kafka://b:9092", "redis+cluster://r:6379", "cassandra://c/k"]
    assert checks(urls)["descriptors"] == ("warn", "200 (ulimit -n); one namespace needs 224: raise it")
    assert checks(["memory://x", "no-url"])["descriptors"][0] == "pass"


def test_no_limit(limits):
    limits[resource.RLIMIT_NOFILE] = limits[resource.RLIMIT_NPROC] = (resource.RLIM_INFINITY,) * 2
    assert checks() == {"descriptors": ("pass", "no limit; one namespace needs 212")}


def test_the_threads_of_a_container(limits):
    limits[resource.RLIMIT_NPROC] = (resource.RLIM_INFINITY,) * 2
    most, used = doctor_limits.PIDS
    most.write_text("max\n")
    used.write_text("300\n")
    assert "threads" not in checks()
    most.write_text("350\n")
    assert checks()["threads"] == (
        "warn",
        "350 of this container (pids.max), 300 of them used; one namespace needs 60, Spark's own excluded",
    )


@pytest.mark.parametrize(
    "count,outcome,found",
    [(0, "pass", "no table yet"), (10, "pass", "10 tables of"), (600, "warn", "600 tables of about 768")],
)
def test_tables_are_compared_with_their_room(count, outcome, found):
    state = Folded("u", "n", 4, "", tables={f"table-{number:04}": TableAt("") for number in range(count)})
    check = doctor_limits.check_tables(state)
    assert (check.outcome, check.found[: len(found)]) == (outcome, found)


@pytest.fixture
def balance():
    """Check the balance of a namespace whose last versions had these numbers of tasks."""

    def check(key_groups, *tasks, horizon=0):
        entries = [
            CatalogEntry(version, "", "", None, 0, {}, {}, {"flights": {"sink": each, "local.top": 1}})
            for version, each in enumerate(tasks, 1)
        ]
        store = types.SimpleNamespace(catalog=lambda first, last: entries[first - 1 : last])
        identity = types.SimpleNamespace(key_groups=key_groups)
        found = doctor_limits.check_balance(store, identity, Pointer(visible=len(tasks), horizon=horizon))
        return found.outcome, found.found

    return check


def test_key_groups_that_go_evenly_to_the_tasks_pass(balance):
    assert balance(128, 12, 12) == ("pass", "128 key groups, and 12 tasks in the last 2 versions")
    assert balance(128, 4, 8) == ("pass", "128 key groups, and 4 or 8 tasks in the last 2 versions")
    assert balance(128) == ("pass", "128 key groups, no version yet")


def test_an_imbalance_over_ten_percent_is_a_warning_with_numbers(balance):
    outcome, found = balance(256, 8, 30, 8)
    assert outcome == "warn"
    assert found.startswith("of 30 tasks 16 have 9 of the 256 key groups, the others 8: 12 % more work")
    assert "512 key groups would do" in found
    assert "set parallelism to a divisor of 256" in found


def test_versions_that_are_long_ago_or_cannot_be_read_do_not_count(balance):
    assert balance(256, 30, *[8] * 20)[0] == "pass"
    assert balance(256, 30, 8, horizon=2)[0] == "pass"
