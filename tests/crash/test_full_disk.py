"""A disk that fills up under log and store: each driver ends with an error of ours, nothing is half visible,
and with room again everything is finished (I1, I2, I4, I7).
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.errors import ConfigError, OutcomeUnknownError, StoreUnavailableError, WalUnavailableError

LIFE = str(Path(__file__).with_name("full_disk.py"))
CODES = {0} | {
    each.exit_code for each in (ConfigError, OutcomeUnknownError, StoreUnavailableError, WalUnavailableError)
}
FIRST = [0, 4_000, 50_000, 400_000, 2_000_000]
"""Bytes that are free while the namespace is made."""


def mounted(options, folder):
    """Runs a command with a file system of its own mounted there; only that command sees it."""
    return ("unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o {options} none {folder} && exec "$@"', "sh")


MOUNTS = (
    shutil.which("unshare")
    and subprocess.run([*mounted("size=1m", "/mnt"), "true"], check=False).returncode == 0
)


def lives(folder, how, rooms, prefix=()):
    """The exit codes of drivers with so much room; the script looks at what is there after each."""
    (folder / "small").mkdir()
    command = [*prefix, sys.executable, LIFE, str(folder), how, *map(str, rooms)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    codes = json.loads(done.stdout)
    assert set(codes) <= CODES
    assert any(codes), "no disk was too small: the test proves nothing"
    return done.stderr


@pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")
def test_a_disk_fills_up(tmp_path):
    told = lives(tmp_path, "disk", [*FIRST, 0, 60_000], mounted("size=8m", tmp_path / "small"))
    assert "database or disk is full; make room on this disk" in told


def test_files_may_not_grow(tmp_path):
    told = lives(tmp_path, "limit", [100, 5_000, 33_000])
    assert "disk I/O error; check its disk: it is full, limited for this user, or failing" in told
    assert "File too large; make room on the disk of the log" in told


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not MOUNTS, reason="no file system can be mounted here")
def test_a_disk_fills_up_anywhere(tmp_path):
    """With every so many bytes that are left, one driver after the other."""
    rooms = [*FIRST, *range(0, 400_000, 9_000), *range(0, 40_000, 1_500)]
    # The last driver has room for all: 9 files, each with a -wal of up to 4 MB.
    lives(tmp_path, "disk", rooms, mounted("size=64m", tmp_path / "small"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_files_may_not_grow_beyond_any_length(tmp_path):
    rooms = [*range(60, 20_000, 700), *range(20_000, 140_000, 2_900), *range(60, 9_000, 300)]
    lives(tmp_path, "limit", rooms)
