"""A process that ends with the one that started it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

from tidegate.testing.process import forked

DEADLINE_S = 30.0


def test_where_the_kernel_sends_no_signal_of_ones_own_choice_a_thread_looks(monkeypatch):
    """F_SETSIG is Linux's: on macOS every process of `tidegate torture` ended in an AttributeError."""
    monkeypatch.delattr(fcntl, "F_SETSIG")
    parents_end, held = os.pipe()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(sentinel=parents_end))
    sent, killed = [], threading.Event()
    monkeypatch.setattr(os, "kill", lambda *arguments: (sent.append(arguments), killed.set()))
    forked._die_with_parent()
    assert sent == []
    os.close(held)
    assert killed.wait(DEADLINE_S)
    assert sent == [(os.getpid(), signal.SIGKILL)]
    os.close(parents_end)


MANY = """
import os, signal, sys, time
from pathlib import Path
from tidegate.testing.process import forked

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    forked.preload("tidegate.testing.process.driver")
    forked.begin()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in range(40):
        one = forked.Forked(time.sleep, (0.01,), Path(sys.argv[1]))
        os.kill(one.pid, signal.SIGINT)
        assert one.wait(30)
        assert one.exit_code == 0, (number, one.exit_code)
"""


def test_a_process_ignores_ctrl_c_from_its_first_moment_on(tmp_path):
    """One that had just begun to drop a namespace died of it, and the namespace stayed."""
    script = tmp_path / "many.py"
    script.write_text(MANY)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "output")],
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
