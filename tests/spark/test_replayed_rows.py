"""Rows that differ when Spark makes them again, after some staging tasks have read them (I1, I2)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest

import tidegate
from services.support.jars import java

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file"), pytest.mark.timeout(400)]
CALLS = ["upsert", "load", "replace", "reduce", "apply_changes", "update", "nested", "adaptive"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text('{"x": 1}')
    return tmp_path


@pytest.fixture(scope="session")
def no_row_checksums(tmp_path_factory):
    """The folder of a shuffle manager whose outputs have no checksum of their rows."""
    folder, source = tmp_path_factory.mktemp("classes"), Path(__file__).with_name("NoRowChecksums.java")
    jars = Path(pyspark.__file__).parent / "jars"
    command = [java("javac"), "-proc:none", "-cp", f"{jars}/*", "-d", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return str(folder)


def stored(folder):
    """Return the rows' numbers, sorted; None: no version was decided."""
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        if not gate.version():
            return None
        with gate.snapshot() as snapshot:
            return sorted(int(key.rpartition("-")[2]) for key, _ in snapshot.table("t").scan())


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_no_version_mixes_two_runs_whatever_the_session_has_switched_off_i1(folder, drive, call):
    code, output = drive("replay_driver.py", folder, "chance", call, "on")
    assert (folder / "lost").exists(), output
    assert code == 0, output
    assert stored(folder) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_no_version_mixes_two_runs_though_the_shuffle_manager_writes_no_checksums_i1(
    folder, drive, call, no_row_checksums
):
    code, output = drive("replay_driver.py", folder, "chance", call, "on", no_row_checksums)
    assert (folder / "lost").exists(), output
    assert code == 0, output
    assert stored(folder) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["persisted", "action"])
def test_a_shuffle_of_the_users_own_job_that_was_made_again_is_refused_i1(
    folder, drive, call, no_row_checksums
):
    """To stage the version again would read the same rows."""
    code, output = drive("replay_driver.py", folder, "chance", call, "on", no_row_checksums)
    assert (folder / "lost").exists(), output
    assert code == 1, output
    assert "ConflictError: Spark made a shuffle again" in output
    assert stored(folder) is None


@pytest.mark.slow
@pytest.mark.parametrize("call", ["upsert", "persisted"])
def test_the_same_rows_are_made_again_without_an_error_i2(folder, drive, call):
    """Spark's checksums of both runs prove that the rows are the same."""
    code, output = drive("replay_driver.py", folder, "same", call, "session")
    assert (folder / "lost").exists(), output
    assert code == 0, output
    assert stored(folder) == list(range(400))


@pytest.mark.slow
@pytest.mark.parametrize("call", ["upsert", "persisted", "action"])
def test_without_the_checks_rows_are_lost(folder, drive, call):
    """So the tests above have a fault to notice."""
    code, output = drive("replay_driver.py", folder, "chance", call, "off")
    assert code == 0, output
    assert stored(folder) != list(range(400))
