"""A writer that ended on its own account is closed at once; a killed one counts as running for 30 s."""

import re
import signal
import subprocess
import sys

import pytest

from support.cli import done, done_json, options_for, refused
from support.places import barrier_of, driver_at, new_place
from tidegate.base.clock import Clock
from tidegate.committers.background import process_end
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import describe_writer, process_writer
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import LineageError
from tidegate.testing.arrow_barrier import batch
from tidegate.wal.fold import replay_of

NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
DEADLINE_S = 120
WRITER = """
import sys
from tidegate.committers.background import process_end
from tidegate.committers.background.worker import Background
from tidegate.testing.example import BATCHES, Example

process_end.catch_sigterm()
example = Example(*sys.argv[1:])
for rows in BATCHES[:2]:
    example.write(rows)
driver = example.driver
driver.store.heartbeat(driver.epoch)
work = Background(driver.log, driver.store, driver.options, lambda: driver.epoch)
print("open", flush=True)
sys.stdin.readline()
"""
HOLDS_A_LOCK = """
import threading, time
from tidegate.committers.background import process_end

lock = threading.Lock()
process_end.SIGTERM_S = 0.2
process_end.at_end(lock.acquire)
process_end.catch_sigterm()
with lock:
    print("open", flush=True)
    while True:
        time.sleep(0.05)
"""
COMMANDS = [
    ("recover",),
    ("restore", "--to", 1, "--yes"),
    ("adopt", "--lineage", NEW, "--yes"),
    ("drop", "--yes"),
]


@pytest.fixture
def writer(tmp_path):
    words = [sys.executable, "-c", WRITER, f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def end_by_itself(process):
    process.communicate("\n", DEADLINE_S)


def end_by_sigterm(process):
    process.terminate()
    process.wait(DEADLINE_S)


@pytest.mark.parametrize("end, code", [(end_by_itself, 0), (end_by_sigterm, -signal.SIGTERM)])
def test_a_writer_that_ended_is_closed_and_no_command_needs_force(writer, tmp_path, end, code):
    options = options_for(tmp_path)
    assert "seems to be running" in refused(2, "recover", *options)
    end(writer)
    assert writer.returncode == code
    assert done_json("status", *options)["heartbeat_age_s"] is None
    assert re.search(r"closed \d+ s ago", done("status", *options))
    assert done_json("status", *options)["closed_age_s"] < DEADLINE_S
    for words in COMMANDS:
        done(*words, *options)


def test_a_killed_writer_counts_as_running(writer, tmp_path):
    writer.kill()
    writer.wait(DEADLINE_S)
    for words in COMMANDS:
        assert "A killed one counts as running for 30 s" in refused(2, *words, *options_for(tmp_path))


def test_a_command_that_fenced_a_killed_writer_leaves_none_that_counts_as_running(writer, tmp_path):
    writer.kill()
    writer.wait(DEADLINE_S)
    options = options_for(tmp_path)
    done("restore", "--to", 1, "--yes", "--force", *options)
    assert re.search(r"closed \d+ s ago", done("status", *options))
    done("adopt", "--lineage", NEW, "--yes", *options)


def test_a_writers_id_names_its_host_process_and_start():
    words = describe_writer(process_writer(Clock()))
    assert "(host " in words
    assert ", process " in words
    assert ", open since 20" in words
    assert describe_writer("8a1f") == "driver 8a1f"


def test_an_own_handler_of_sigterm_stays(monkeypatch):
    handlers = []
    monkeypatch.setattr(signal, "getsignal", lambda _: print)
    monkeypatch.setattr(signal, "signal", lambda *words: handlers.append(words))
    process_end.catch_sigterm()
    assert handlers == []


def other_batch(state):
    """As the check of a query whose checkpoint is an older copy, with other offsets."""
    replay_of(state, batch("q", 0, fingerprint="other"))


@pytest.mark.parametrize("lineage, check", [("another", None), ("q", other_batch)])
def test_a_second_query_gets_the_name_of_the_living_writer(lineage, check):
    place = new_place()
    first = driver_at(place)
    first.decisions.writer = "host-1:7:2026-11-24T12:00:00Z:ab"
    open_namespace(first, "q")
    commit(first, barrier_of(first, 0))
    first.store.heartbeat(first.epoch)
    with pytest.raises(
        LineageError, match=r"living writer.*ab \(host host-1, process 7, open since.*epoch 1"
    ) as raised:
        open_namespace(driver_at(place), lineage, check)
    assert "adopt" not in str(raised.value), "that would fence the living writer"
    first.store.end_heartbeat(first.epoch)
    with pytest.raises(LineageError, match=r"deleted or replaced|older copy") as raised:
        open_namespace(driver_at(place), lineage, check)
    assert "living writer" not in str(raised.value)
    first.decisions.catch_up()
    assert first.folded.epoch == 1, "nothing was appended"


def test_a_sigterm_ends_a_process_whose_main_thread_has_a_lock_that_a_closer_needs():
    words = [sys.executable, "-c", HOLDS_A_LOCK]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "open\n"
            process.terminate()
            assert process.wait(30) == -signal.SIGTERM
        finally:
            process.kill()
