"""tidegate demo --read: a store that moves, without Spark, and the program that it prints."""

import subprocess
import sys

import psutil
import pytest

from support.cli import refused
from support.wait import wait_until
from tidegate.cli.trials.demo_read import move_store
from tidegate.demo.run import _end
from tidegate.errors import ConfigError


def test_the_printed_program_reads_a_store_that_moves(tmp_path, capfd):
    folder = tmp_path / "it's here"
    move_store(folder, every_s=0.0, versions=3)
    program = (folder / "read.py").read_text()
    told = capfd.readouterr().out
    assert all(line in told for line in program.splitlines())
    done = subprocess.run(
        [sys.executable, folder / "read.py"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("version 3 has ")


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigError, match="is not an empty folder"):
        move_store(tmp_path)
    assert "is not an empty folder" in refused(2, "demo", "--folder", str(tmp_path))
    assert "--folder alone" in refused(2, "demo", "--read", "--store", "sqlite:///s")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_a_process_of_the_demo_has_started_ends_with_it():
    """Red before: a JVM whose start was interrupted stayed when the command had ended."""
    script = "sleep 600 & echo $!; wait"
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        ["sh", "-c", script], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    )
    child = int(process.stdout.readline())
    _end(process)
    process.stdout.close()
    wait_until(lambda: _is_gone(child), "it is gone")


def _is_gone(process_id):
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE  # nobody has asked for its end yet
    except psutil.NoSuchProcess:
        return True
