"""Cells whose drivers are Spark applications: their schedule, what is refused, their rows. Without Spark."""

import itertools
import os
import threading

import msgspec
import pytest

from tidegate.base import failpoints
from tidegate.errors import ConfigError
from tidegate.torture import run
from tidegate.torture.cell.readers import Notes, Plan, _value
from tidegate.torture.driver.faults import FAULTS, SPARK, WITH_SPARK
from tidegate.torture.driver.side_work import side_work_at
from tidegate.torture.driver.workloads import (
    STATEFUL,
    VALUE,
    WORKLOADS,
    changes_of,
    decoded,
    derived_of,
    encoded,
    rows_after,
)
from tidegate.torture.history.events import Fault, Scanned
from tidegate.torture.history.files import Recorder, boot_id, read_file
from tidegate.torture.run import torture
from tidegate.torture.schedule import (
    FINISHES,
    Environment,
    cell_of,
    cells,
    round_size,
    shape_of,
    skipped,
    workloads_of,
)
from tidegate.torture.spark_app import pool, strikes
from tidegate.torture.spark_app.rows import next_state, write_files
from tidegate.torture.spark_app.strikes import TaskStrike

CLUSTER, LOCAL = "local-cluster[2,1,1024]", "local[2]"
WHERE = "file:///nowhere/wal", "sqlite:///nowhere/store"


def environment(master):
    return Environment("sqlite:///s", spark=master)


def first_round(master):
    here = environment(master)
    return list(itertools.islice(cells(3, FAULTS, here), round_size(FAULTS, here)))


# -- the schedule ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", [CLUSTER, LOCAL, "spark://h:7077"])
def test_every_cell_is_run_or_listed_as_not_run(master):
    ran = first_round(master)
    left_out = sum(skip.cells for skip in skipped(FAULTS, environment(master)))
    assert len(ran) + left_out == len(failpoints.NAMES) * len(FAULTS) * len(FINISHES)
    assert {cell.fault for cell in ran} == set(WITH_SPARK) - (
        {"executor", "shuffle"} if master == LOCAL else set()
    )
    assert not any(side_work_at(cell.failpoint) for cell in ran)


def test_tasks_have_the_faults_of_tasks_alone():
    in_tasks = {cell.fault for cell in first_round(CLUSTER) if cell.failpoint.startswith("stage.")}
    assert in_tasks == set(SPARK)
    assert {cell.failpoint[:6] for cell in first_round(CLUSTER) if cell.fault == "shuffle"} == {"stage."}


def test_without_spark_its_faults_are_not_run():
    reasons = {skip.fault: skip.reason for skip in skipped(FAULTS, environment("")) if not skip.failpoint}
    assert all("--spark MASTER" in reasons[fault] for fault in SPARK)


def test_a_cell_has_two_tables_one_of_them_with_state():
    chosen = {workloads_of(cell, 5, tuple(WORKLOADS)) for cell in first_round(CLUSTER)}
    assert {name for names in chosen for name in names} == set(WORKLOADS)
    assert all([name in STATEFUL for name in names] == [True, False] for names in chosen)
    assert workloads_of(cell_of("publish.before:kill:same"), 5, ("marker",)) == ("marker",)


def test_a_namespace_of_a_spark_cell_is_new():
    for cell in first_round(CLUSTER):
        shape = shape_of(cell, 5, spark=True)
        assert not shape.old
        assert 1 <= shape.nth < shape.batches


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more,message",
    [
        ({"faults": ["executor"], "spark": LOCAL}, r"the driver is the only executor: give --spark local-c"),
        ({"faults": ["shuffle"], "spark": "local"}, "the driver is the only executor"),
        ({"only": ["publish.before:executor:same"]}, "the drivers are without Spark"),
        ({"only": ["publish.before:full:same"], "spark": CLUSTER}, "run it without --spark"),
        ({"only": ["retire.after_group:kill:same"], "spark": CLUSTER}, "run it without --spark"),
        ({"only": ["stage.before_ack:kill:same"], "spark": CLUSTER}, "Spark's tasks reach it"),
    ],
)
def test_a_fault_that_is_not_possible_is_refused(more, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        torture(*WHERE, folder=tmp_path / "r", **more)
    assert not (tmp_path / "r").exists()


def test_spark_needs_pyspark(monkeypatch, tmp_path):
    monkeypatch.setattr(pool.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[spark\]'"):
        torture(*WHERE, spark=LOCAL, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_is_not_resumed_with_another_master(tmp_path):
    asked = run._new_run(*WHERE, 5, WORKLOADS, FAULTS, (), CLUSTER)
    (tmp_path / run.RUN_FILE).write_bytes(msgspec.json.encode(asked))
    with pytest.raises(ConfigError, match=r"the run in .* was with --spark local-cluster"):
        torture(*WHERE, resume=tmp_path, spark=LOCAL)
    with pytest.raises(ConfigError, match="resume it so"):
        torture(*WHERE, resume=tmp_path)


# -- rows --------------------------------------------------------------------------------------------------


def test_a_file_has_the_rows_of_a_driver_without_spark(tmp_path):
    def of_batch(batch):
        return changes_of(WORKLOADS, "seed", batch)

    write_files(tmp_path, 5, of_batch)
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == [f"{batch:04}.json" for batch in range(5)]
    times = [path.stat().st_mtime for path in paths]
    assert times == sorted(set(times)), "the query reads them in this order"
    state = {name: {} for name in WORKLOADS}
    for batch, path in enumerate(paths):
        lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        for change in of_batch(batch):
            wanted = rows_after(change, state[change.table])
            rows = {}
            for line in (line for line in lines if line["t"] == change.table):
                key, value = line["k"].encode(), line["v"]
                if change.table in STATEFUL:
                    before = state[change.table].get(line["k"])
                    given = None if before is None else {VALUE: encoded(before).decode()}
                    value = next_state(key, [line], given, None)[VALUE]
                rows[key] = None if value is None else value.encode()
            assert rows == wanted
            state[change.table] |= {key.decode(): value and decoded(value) for key, value in wanted.items()}


def test_a_restart_leaves_the_files_of_earlier_batches(tmp_path):
    write_files(tmp_path, 2, lambda batch: changes_of(["marker"], "seed", batch))
    before = [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    write_files(tmp_path, 3, lambda batch: changes_of(["marker"], "other", batch))
    assert [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())][:2] == before


@pytest.mark.parametrize(
    "value", [{VALUE: '{"balance":1}'}, b'{"v":"{\\"balance\\":1}"}', {"value": b'{"balance":1}'}]
)
def test_a_reader_takes_the_value_out_of_its_column(value):
    assert _value(value) == {"balance": 1}


def test_a_reader_looks_up_the_values_that_a_base_had(tmp_path):
    given = {"where": None, "folder": "", "name": "r", "seed": "s", "seconds_max": 1.0}
    plan = Plan(**given, workloads=("bank",), derived=derived_of(["bank"]))
    with Recorder(tmp_path, "r", role="reader") as recorder:
        notes = Notes("pinned", plan, recorder, threading.Event())
        assert notes.asked("bank_values") == [""]
        notes.read("bank", [b"a1", b"a2"], {b"a1": {VALUE: '{"balance":1}'}}, began=0)
        assert set(notes.asked("bank_values")) == {"", '{"balance":1}'}
        notes.scanned("bank_values", {'{"balance":1}': {"n": 1}}, began=0)
    (scan,) = (line.event for line in read_file(tmp_path / "r.jsonl") if isinstance(line.event, Scanned))
    assert scan.content == {'{"balance":1}': {"n": 1}}


# -- faults of processes -----------------------------------------------------------------------------------


def test_a_strike_is_done_by_one_process(tmp_path):
    strike = TaskStrike(
        fault="executor", failpoint="seal.after", folder=str(tmp_path), name="d", boot=boot_id()
    )
    assert not strike.done
    assert strikes.noted(strike, "executor 7")
    assert strike.done
    assert not strikes.noted(strike, "executor 8")
    (fault,) = (line.event for line in read_file(tmp_path / "d.jsonl") if isinstance(line.event, Fault))
    assert (fault.kind, fault.target) == ("executor", "executor 7")


def test_shuffle_files_are_found_in_all_folders_of_an_executor(tmp_path):
    for name in ("a/0c/shuffle_0_1_0.data", "b/shuffle_0_1_0.index", "b/rdd_1_0"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = strikes.shuffle_files(f"{tmp_path}/a,{tmp_path}/b")
    assert sorted(path.name for path in found) == ["shuffle_0_1_0.data", "shuffle_0_1_0.index"]
    assert strikes.shuffle_files("") == []


def test_a_parent_is_found_and_a_missing_executor_is_not():
    assert strikes.parent_of(os.getpid()) == os.getppid()
    assert strikes.parent_of(2**22 + 1) == 0
    assert strikes.executors_of("app-that-is-not-there") == []
