"""Options are checked when they are made; endpoints and messages never show a password."""

import dataclasses
import math

import pytest

from tidegate.errors import ConfigError
from tidegate.options import (
    KEEP_VERSIONS_MAX,
    KEY_BYTES_MAX,
    MAX_LAYERS_MAX,
    VALUE_BYTES_MAX,
    Options,
    SinkOptions,
)
from tidegate.options.endpoints import Endpoints
from tidegate.wal.fold import RECENT_MAX

OPTIONS = {field.name for field in dataclasses.fields(Options) if "text" in field.metadata}
FIXED = {field.name for field in dataclasses.fields(Options)} - OPTIONS


def test_the_defaults_are_valid_and_pinned():
    """Users lean on them: a new default belongs into the change log."""
    options = Options()
    assert {name: getattr(options, name) for name in OPTIONS} == {
        "key_groups": None,
        "keep_versions": None,
        "max_lease_s": 600.0,
        "apply_deadline_s": 300.0,
        "parallelism": None,
        "small_batch_rows": 50_000,
        "value_bytes_max": 16 * 1024 * 1024,
        "wal_retain_s": 86_400.0,
        "on_bad_record": "fail",
        "allow_unsafe": False,
        "wait_replicas": 0,
        "wait_aof": False,
        "function_deadline_s": 60.0,
        "local_dir": None,
        "affinity": True,
        "ttl": None,
        "table_key_groups": None,
        "state_cache_bytes": 256 * 1024 * 1024,
        "state_memory_bytes": 128 * 1024 * 1024,
        "commit": "sync",
        "alarm_s": 60.0,
        "metrics_port": None,
    }


def test_a_constant_is_no_option():
    """A test sets it like one, and neither types nor pages nor messages name it."""
    assert SinkOptions.__annotations__.keys() == OPTIONS
    for name in FIXED:
        assert getattr(Options.of({name: getattr(Options(), name)}), name) == getattr(Options(), name)
        with pytest.raises(ConfigError) as refused:
            Options.of({"unknown": 1})
        assert name not in str(refused.value)


def test_times_and_limits_follow_from_options_unless_a_test_sets_them():
    options = Options(small_batch_rows=7, apply_deadline_s=100.0, alarm_s=10.0)
    assert (options.stage_max_rows, options.apply_max_changes) == (7, 7)
    assert (options.decide_s, options.stuck_s, options.behind_s) == (20.0, 10.0, 150.0)
    options = Options(driver_stage_max_rows=0, decide_deadline_s=1, stuck_alarm_s=2, behind_alarm_s=3)
    assert (options.stage_max_rows, options.apply_max_changes) == (0, 50_000)
    assert (options.decide_s, options.stuck_s, options.behind_s) == (1, 2, 3)


WHOLE = {
    "key_groups": (1, 32_768),
    "keep_versions": (1, 1_000),
    "summary_every": (1, None),
    "commit_in_flight": (1, 100),
    "max_layers": (1, MAX_LAYERS_MAX),
    "parallelism": (1, None),
    "wait_replicas": (0, None),
    "small_batch_rows": (0, 100_000),
    "state_cache_bytes": (0, None),
    "state_memory_bytes": (0, None),
    "driver_apply_max_changes": (0, None),
    "driver_apply_max_bytes": (0, None),
    "driver_stage_max_rows": (0, 100_000),
    "driver_stage_max_bytes": (0, None),
    "frame_bytes": (1, None),
    "key_bytes_max": (1, KEY_BYTES_MAX),
    "value_bytes_max": (1, VALUE_BYTES_MAX),
    "max_leases": (1, 8_000),
}
SECONDS = [
    "apply_deadline_s",
    "decide_deadline_s",
    "heartbeat_s",
    "max_lease_s",
    "behind_alarm_s",
    "function_deadline_s",
    "stuck_alarm_s",
    "alarm_s",
]


def test_versions_in_flight_count_among_those_that_are_kept_i11():
    """Else the log's state never knew all of them, and nothing was trimmed."""
    Options(keep_versions=KEEP_VERSIONS_MAX)
    Options(keep_versions=KEEP_VERSIONS_MAX - 2, commit="pipelined")
    Options(keep_versions=KEEP_VERSIONS_MAX - 5, commit="pipelined", commit_in_flight=5)
    with pytest.raises(ConfigError, match=r"keep_versions is 999; .*it must be at most 998"):
        Options(keep_versions=KEEP_VERSIONS_MAX - 1, commit="pipelined")


@pytest.mark.parametrize("value", ["Pipelined", "async", "", None, True, 1])
def test_a_batch_ends_in_one_of_two_ways(value):
    with pytest.raises(ConfigError, match=r"commit is .*it must be 'sync' or 'pipelined'"):
        Options(commit=value)
    assert Options(commit="pipelined").commit == "pipelined"


def test_every_option_is_covered_here():
    assert {
        *WHOLE,
        *SECONDS,
        "wal_retain_s",
        "on_bad_record",
        "allow_unsafe",
        "wait_aof",
        "local_dir",
        "ttl",
        "table_key_groups",
        "state_spill",
        "affinity",
        "commit",
        "metrics_port",
    } == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_held_to_its_range(name):
    least, most = WHOLE[name]
    for value in (least, least + 1, *([most] if most else [10**12])):
        assert getattr(Options(**{name: value}), name) == value
    for value in (least - 1, -(10**30), *([most + 1, 10**30] if most else [])):
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            Options(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [True, False, 1.0, "1", [1], math.nan])
def test_a_whole_number_is_nothing_else(name, value):
    with pytest.raises(ConfigError, match=name):
        Options(**{name: value})


@pytest.mark.parametrize("name", [*WHOLE, *SECONDS])
def test_only_what_is_found_out_later_may_be_none(name):
    if getattr(Options(), name) is None:
        return
    with pytest.raises(ConfigError, match=name):
        Options(**{name: None})


@pytest.mark.parametrize("name", SECONDS)
def test_a_duration_is_held_to_its_range(name):
    for value in (0.001, 1, 86_399.9):
        assert getattr(Options(**{name: value, "wal_retain_s": 10 * 86_400}), name) == value
    for value in (0, -1, 86_400, math.inf, -math.inf, math.nan, True, "5"):
        with pytest.raises(ConfigError, match=name):
            Options(**{name: value})


def test_parallelism_may_follow_the_executors():
    assert Options(parallelism="executors").tasks is None
    assert Options().tasks is None
    assert Options(parallelism=3).tasks == 3
    for value in ("executor", "", "Executors", "3"):
        with pytest.raises(ConfigError, match=f"parallelism is '{value}'; .* or 'executors'"):
            Options.of({"parallelism": value})


def test_more_tasks_than_key_groups_are_refused():
    assert Options(parallelism=7, key_groups=7).tasks == 7
    with pytest.raises(ConfigError, match=r"parallelism is 8, there are 7 key groups: .* at most 7"):
        Options(parallelism=8, key_groups=7)


@pytest.mark.parametrize("value", [None, "/data/local", ["/data1/local", "/data2/local"], ("/a",)])
def test_local_dir_is_a_folder_or_several(value):
    assert Options(local_dir=value).local_dir == value


@pytest.mark.parametrize(
    "value",
    [
        *("", "data", "./data", "~/data", "file:///data", "/a\0b", 7, b"/a", True),
        *([], ["/a", "/a"], ["/a", "/a/"], ["/a", "b"], [None], {"/a": 1}),
    ],
)
def test_local_dir_is_an_absolute_path(value):
    with pytest.raises(ConfigError, match="local_dir is"):
        Options.of({"local_dir": value})


def test_the_log_is_kept_at_least_ten_apply_deadlines():
    for value in (3_000, 3_000.1, 86_400, 10 * 366 * 86_400 - 1):
        assert Options(wal_retain_s=value).wal_retain_s == value
    for value in (0, -1, math.inf, math.nan, True, "5", None, 10 * 366 * 86_400):
        with pytest.raises(ConfigError, match="wal_retain_s is"):
            Options.of({"wal_retain_s": value})
    assert Options(wal_retain_s=0.5, apply_deadline_s=0.05)
    for given in ({"wal_retain_s": 2_999.9}, {"apply_deadline_s": 8_641}):
        with pytest.raises(ConfigError, match=r"wal_retain_s .* at least 10 times apply_deadline_s"):
            Options(**given)


def test_no_more_versions_are_kept_than_there_are_facts():
    """Versions are retired by their facts."""
    assert KEEP_VERSIONS_MAX == RECENT_MAX


def test_an_unknown_option_is_named_with_those_there_are():
    with pytest.raises(
        ConfigError,
        match=r"unknown option a_b, key_group; the options are affinity, alarm_s, allow_unsafe, ",
    ):
        Options.of({"key_group": 1, "a_b": 2, "parallelism": 3})


# -- endpoints and passwords --------------------------------------------------------------------


def test_endpoints_refuse_a_namespace_that_is_no_name():
    with pytest.raises(ConfigError, match="namespace name 'a b'"):
        Endpoints("a b", "memory://x", "memory://x")


def test_endpoints_never_show_a_password():
    """T48."""
    endpoints = Endpoints(
        "n",
        "kafka://u:secret@h:9092",
        "redis://:secret@h/0",
        {"sasl.password": "secret"},
        {"password": "secret"},
    )
    for text in (repr(endpoints), str(endpoints), f"{endpoints}", repr([endpoints])):
        assert "secret" not in text
        assert "redis" in text


@pytest.mark.parametrize("name", ["allow_unsafe", "wait_aof", "affinity"])
@pytest.mark.parametrize("value", [None, 0, 1, "yes", [True]])
def test_a_switch_is_true_or_false(name, value):
    assert getattr(Options.of({name: True}), name) is True
    with pytest.raises(ConfigError, match=name):
        Options(**{name: value})
