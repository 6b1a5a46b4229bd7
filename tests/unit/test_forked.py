"""A process that ends with the one that started it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace

from tidegate.testing import forked

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
