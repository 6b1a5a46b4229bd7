"""SIGKILL and SIGSTOP at every named place of the protocol, then three ways to finish.

Each case is real: a process of its own, a log in files, a store in SQLite. Whatever was
killed where, an independent reader finds at every version exactly the batches up to it (I1),
each batch in one version (I2), and nothing that was decided lost (I4).
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tidegate import failpoints
from tidegate.errors import FencedError
from tidegate.sinks.open_store import open_store
from tidegate.testing.driver_process import MARKER, expected_at
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log

ROOT = Path(__file__).resolve().parents[2]
BATCHES, SEED, ROWS, KEY_GROUPS = 3, 5, 30, 8
DEADLINE_S = 30.0
CODE = ("committers", "sinks", "spark", "src", "wal")

NOT_REACHED = frozenset[str]()
"""Names that a driver process never hits; why."""
REACHED = tuple(name for name in failpoints.NAMES if name not in NOT_REACHED)
STOPPED_AT = (
    "stage.before_ack",
    "decide.before_append",
    "decide.after_append",
    "apply.after_chunk",
    "publish.before",
    "publish.after",
    "retire.after_announce",
    "retire.after_group",
)


class Place:
    """A log, a store and a checkpoint in one folder, and the processes that work on them."""

    def __init__(self, folder):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.checkpoint = folder / "checkpoint"

    def start(self, *more, armed=""):
        command = [sys.executable, "-m", "tidegate.testing.driver_process", "--wal", self.wal]
        command += ["--store", self.store, "--checkpoint", str(self.checkpoint), "--batches", str(BATCHES)]
        command += ["--seed", str(SEED), "--rows", str(ROWS), "--key-groups", str(KEY_GROUPS)]
        command += ["--summary-every", "1", "--wal-retain", "0.001", *more]  # so the log is cut on the way
        environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *more, armed="", code=0):
        """One process to its end; its events. The exit code is checked."""
        process = self.start(*more, armed=armed)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, (process.returncode, out, err)
        return [json.loads(line) for line in out.splitlines()]

    def decided(self):
        """The state of the decision log, read by nobody who wrote it."""
        log = open_log(self.wal, "crash")
        try:
            return fold_all(View(), log.decisions()).state
        finally:
            log.close()

    def check(self):
        """I1 at every visible version, I2; how many versions are visible, and decided."""
        state = self.decided()
        facts = state.recent if state else ()
        assert [fact.origin.batch_id for fact in facts] == list(range(len(facts)))
        store = open_store(self.store, "crash")
        try:
            visible = store.pointer().visible if store.identity() else 0
            entries = store.catalog() if visible else []
            oldest = max(store.pointer().horizon, 1) if visible else 1
            assert [entry.version for entry in entries] == list(range(oldest, visible + 1))
            for entry in entries:
                fact = facts[entry.version - 1]
                assert (entry.digest, entry.attempt) == (fact.digest, fact.attempt)
                _check_version(store, entry)
            return visible, len(facts)
        finally:
            store.close()


def _check_version(store, entry):
    expected = expected_at(SEED, entry.version, ROWS)
    assert set(entry.tables) == set(expected)
    for table, at in entry.tables.items():
        found = {}
        for group in range(KEY_GROUPS):
            for batch in store.scan(table, group, entry.version, at.start):
                found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        assert found == expected[table], (entry.version, table)
        if table == MARKER:
            assert len(set(found.values())) == 1


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# -- SIGKILL --------------------------------------------------------------------------------------


def by_restarting(place):
    place.run()
    assert place.check() == (BATCHES, BATCHES)


def by_a_second_driver(place):
    """It lost all that Spark noted as committed (T9), so that it replays everything."""
    shutil.rmtree(place.checkpoint / "commits", ignore_errors=True)
    place.run()
    assert place.check() == (BATCHES, BATCHES)


def by_recover(place):
    """Without the query: no new batch, but all that was decided."""
    before = place.decided()
    place.run("--recover")
    visible, decided = place.check()
    assert visible == decided == (before.last_version if before else 0)


@pytest.mark.parametrize("finish", [by_restarting, by_a_second_driver, by_recover])
@pytest.mark.parametrize("hit", ["first", "later"])
@pytest.mark.parametrize("name", REACHED)
def test_killed_at(place, name, hit, finish):
    nth = 3 if hit == "later" else 1
    if hit == "later" and name.startswith("open."):
        # A process opens once: the later open is that of a driver that finds work half done.
        place.run(armed="seal.after=kill@3", code=-signal.SIGKILL)
        nth = 1
    more = ["--keep-versions", "1"] if name.startswith("retire.") else []
    nth = 2 if hit == "later" and name.startswith(("retire.", "trim.")) else nth
    place.run(*more, armed=f"{name}=kill@{nth}", code=-signal.SIGKILL)
    visible, decided = place.check()
    assert decided - visible in (0, 1)
    finish(place)


def test_killed_again_and_again(place):
    """Every process dies a step further; together they get there."""
    for name in REACHED:
        process = place.start("--keep-versions", "1", armed=f"{name}=kill")
        process.communicate(timeout=DEADLINE_S)
        place.check()
    place.run()
    assert place.check() == (BATCHES, BATCHES)


# -- SIGSTOP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STOPPED_AT)
def test_a_zombie_wakes_after_another_driver_finished(place, name):
    """T1: it is fenced, and changes nothing, wherever it slept."""
    more = ["--keep-versions", "1"] if name.startswith("retire.") else []
    zombie = place.start(*more, armed=f"{name}=stop")
    try:
        _wait_until_stopped(zombie)
        place.run(*more)
        before = place.check()
        os.kill(zombie.pid, signal.SIGCONT)
        out, err = zombie.communicate(timeout=DEADLINE_S)
    finally:
        zombie.kill()
    assert zombie.returncode == FencedError.exit_code, (out, err)
    assert json.loads(out.splitlines()[-1])["error"] == "FencedError"
    assert before == place.check() == (BATCHES, BATCHES)
    assert place.decided().epoch == 2


def _wait_until_stopped(process):
    watched, end = psutil.Process(process.pid), time.monotonic() + DEADLINE_S
    while watched.status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the process did not stop at its failpoint"
        time.sleep(0.01)


# -- the list -----------------------------------------------------------------------------------------


def _call_sites():
    """Every name that the code hits, with the files that do."""
    sites = {}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.hit":
                    (argument,) = node.args
                    assert isinstance(argument, ast.Constant), f"{path}: a failpoint's name is a literal"
                    sites.setdefault(argument.value, []).append(path)
    return sites


def test_every_name_has_a_call_site():
    assert set(failpoints.NAMES) <= set(_call_sites())


def test_every_call_site_has_a_name_of_the_list():
    assert set(_call_sites()) <= set(failpoints.NAMES)
