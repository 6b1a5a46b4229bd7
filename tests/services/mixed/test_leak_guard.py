"""What a guarded process does when the one that started it ends, in whatever way."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from services.support.leak_guard import Guarded

STARTS = """
import signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from services.support.leak_guard import Guarded
process = Guarded(["sleep", "600"], Path(sys.argv[2]))
print(process.pid, flush=True)
time.sleep(600)
"""


def wait_until_gone(pid):
    end = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, f"{pid} is still there"
            time.sleep(0.01)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_starter(tmp_path, how, paused):
    command = [sys.executable, "-c", STARTS, Path(__file__).parents[2], tmp_path / "output"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as starter:
        pid = int(starter.stdout.readline())
        if paused:
            psutil.Process(pid).suspend()
        starter.send_signal(how)
    wait_until_gone(pid)


def test_its_exit_code_and_what_it_printed(tmp_path):
    output = tmp_path / "output"
    process = Guarded(["sh", "-c", "echo out; echo err >&2; exit 3"], output)
    assert process.wait(30) == 3
    assert not process.alive()
    assert output.read_text() == "out\nerr\n"
    process.kill()  # nothing to do
    process.signal(signal.SIGTERM)


def test_killed(tmp_path):
    process = Guarded(["sleep", "600"], tmp_path / "output")
    assert process.alive()
    process.signal(signal.SIGSTOP)
    process.kill()
    wait_until_gone(process.pid)
    assert process.wait(0) == -signal.SIGKILL


def test_a_program_that_is_not_there(tmp_path):
    with pytest.raises(RuntimeError, match=r"no-such-program did not start: [^$]*FileNotFoundError"):
        Guarded(["no-such-program"], tmp_path / "output")


@pytest.mark.xdist_group("probe")
def test_a_group_stays_on_one_worker(request):
    """Else each worker starts servers of its own, and tests that want a machine to themselves get none."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@probe")
