"""Failpoints: one list of names, each with a call site; armed by a variable; harmless when not."""

import ast
import functools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tidegate.base import failpoints
from tidegate.base.failpoints import NAMES, OF_COMMANDS, FailpointError, arm, hit

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    arm(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))


@functools.cache
def call_sites():
    """The name in every ``failpoints.hit("...")`` of the library."""
    sites = Counter()
    for folder in ("src", "wal", "sinks", "committers", "spark"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("failpoints.hit", "hit"):
                    (name,) = node.args
                    assert isinstance(name, ast.Constant), f"{path}: a failpoint's name stands in its call"
                    sites[name.value] += 1
    return sites


def test_no_name_stands_in_the_list_twice():
    assert len(set(NAMES)) == len(NAMES)


def test_every_call_site_has_its_name_in_the_list():
    assert set(call_sites()) <= {*NAMES, *OF_COMMANDS}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_call_site(name):
    assert call_sites()[name] >= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_armed_and_raises_there_only(name):
    arm(f"{name}=raise")
    for other in NAMES:
        if other != name:
            hit(other)
    with pytest.raises(FailpointError, match=name):
        hit(name)


def test_a_failpoint_acts_once_at_its_hit():
    arm("publish.before=raise@3")
    hit("publish.before")
    hit("publish.before")
    with pytest.raises(FailpointError):
        hit("publish.before")
    hit("publish.before")


def test_several_are_armed_at_once():
    arm(" publish.before=raise , publish.after=raise@2, publish.after=raise@3,")
    with pytest.raises(FailpointError):
        hit("publish.before")
    hit("publish.after")
    for _ in range(2):
        with pytest.raises(FailpointError):
            hit("publish.after")


@pytest.mark.parametrize("nothing", [None, ""])
def test_disarming_forgets_everything(nothing):
    arm("publish.before=raise")
    arm(nothing)
    hit("publish.before")
    hit("no such name")  # one comparison, nothing looked up


def test_arming_again_counts_from_the_start():
    for _ in range(3):
        arm("publish.before=raise@2")
        hit("publish.before")


@pytest.mark.parametrize(
    "specification",
    ["publish", "publish.before", "publish.before=", "publish.before=explode", "nowhere=kill",
     "publish.before=raise@x", "publish.before=raise@-1", "publish.before=raise@0",
     "publish.before=raise@1.5", "publish.before=raise@٣", "publish.after=raise,publish.before"],
)  # fmt: skip
def test_a_specification_that_would_never_act_is_refused(specification):
    """A crash test whose failpoint is misspelt would pass for the wrong reason (T50)."""
    with pytest.raises(ValueError, match="cannot arm"):
        arm(specification)


SCRIPT = """
from tidegate.base.failpoints import hit
print("before", flush=True)
hit("publish.before")
print("after", flush=True)
"""


def started(action):
    environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: f"publish.before={action}"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_kill_ends_the_process_at_once():
    with started("kill") as process:
        assert process.stdout.read() == "before\n"
    assert process.returncode == -signal.SIGKILL


def test_stop_waits_for_sigcont():
    with started("stop") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert process.stdout.readline() == "before\n"
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == "after\n"
    assert process.returncode == 0


def test_a_process_with_a_specification_that_is_wrong_does_not_start():
    with started("explode") as process:
        assert process.stdout.read() == ""
    assert process.returncode != 0


STOPS_IN_A_THREAD = """
import os, threading
from tidegate.base import failpoints

def strike():
    for _ in range(20):
        failpoints.stop()
        os.write(1, b"x")

striking = threading.Thread(target=strike)
striking.start()
striking.join()
"""


def test_a_thread_that_stops_its_process_goes_on_only_when_that_is_woken():
    """With a signal for the process the thread went on until the main thread had taken it."""
    written = 0
    with subprocess.Popen([sys.executable, "-c", STOPS_IN_A_THREAD], stdout=subprocess.PIPE) as process:
        os.set_blocking(process.stdout.fileno(), False)
        try:
            for stops in range(20):
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                written += len(process.stdout.read() or b"")
                assert written == stops
                os.kill(process.pid, signal.SIGCONT)
            assert process.wait(30) == 0
        finally:
            process.kill()
