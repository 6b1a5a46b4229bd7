"""Trimming by real processes: killed in it, stopped in it, and beside others that append and fold."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support import driver_process
from support.driver_process import expected_at
from tidegate.base import failpoints
from tidegate.committers.apply.apply import chunks_of, plan, read_manifest
from tidegate.errors import FencedError, WalGapError
from tidegate.sinks.open_store import open_store
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Summary, decode_record

BATCHES, SEED, ROWS, KEY_GROUPS = 8, 7, 20, 4
DEADLINE_S = 60.0
TRIMS = ("--summary-every", "2", "--wal-retain", "0.001", "--keep-versions", "2")
NAMES = tuple(name for name in failpoints.NAMES if name.startswith(("summary.", "trim.")))


class Place:
    """A log, a store and a checkpoint in one folder, and drivers that retire and trim as they go."""

    def __init__(self, folder):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.checkpoint = folder / "checkpoint"
        self.changelog = folder / "wal" / "crash" / "changelog"

    def start(self, *more, armed=""):
        command = [sys.executable, driver_process.__file__, "--wal", self.wal]
        command += ["--store", self.store, "--checkpoint", str(self.checkpoint), "--batches", str(BATCHES)]
        command += ["--seed", str(SEED), "--rows", str(ROWS), "--key-groups", str(KEY_GROUPS), *TRIMS, *more]
        environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *more, armed="", code=0):
        process = self.start(*more, armed=armed)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, (process.returncode, out, err)
        return [json.loads(line) for line in out.splitlines()]

    def make_old(self):
        """So that whatever is not needed is dropped: files are younger than a file time tells exactly."""
        for path in self.changelog.glob("*.seg"):
            os.utime(path, (1, 1))

    def check(self):
        """Every readable version is right (I1), the log has all that it or an unpublished one needs (I4)."""
        log, store = open_log(self.wal, "crash"), open_store(self.store, "crash")
        try:
            state, pointer = fold_all(View(), log.decisions()).state, store.pointer()
            assert state.last_version - pointer.visible in (0, 1)
            for fact in state.recent:
                if fact.version >= pointer.horizon:
                    manifest = read_manifest(log, fact)
                    assert all(list(chunks_of(work, log)) for work in plan(manifest, fact, 1))
            for entry in store.catalog():
                if entry.version >= pointer.horizon:
                    _check_version(store, entry)
            return pointer.visible, state
        finally:
            store.close()
            log.close()

    def first_record(self):
        log = open_log(self.wal, "crash")
        return decode_record(next(log.decisions()).content, "first record")


def _check_version(store, entry):
    expected = expected_at(SEED, entry.version, ROWS)
    for table in entry.tables:
        found = {}
        for group in range(KEY_GROUPS):
            for rows in store.scan(entry.read_at(table), group):
                found.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert found == expected[table], (entry.version, table)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def _wait_until_stopped(process):
    watched, end = psutil.Process(process.pid), time.monotonic() + DEADLINE_S
    while watched.status() != psutil.STATUS_STOPPED:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the process did not stop at its failpoint"
        time.sleep(0.01)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
def test_killed_in_a_trim_nothing_is_lost(place, name):
    place.run("--batches", "4")
    place.make_old()
    place.run(armed=f"{name}=kill", code=-signal.SIGKILL)
    visible, before = place.check()
    assert visible >= 5
    place.make_old()
    place.run("--recover")
    place.run()
    visible, after = place.check()
    assert visible == BATCHES
    assert after.recent[: len(before.recent)] == before.recent
    assert isinstance(place.first_record(), Summary)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("trim.")])
def test_a_zombie_trims_late_and_harms_nobody(place, name):
    """T1: it stopped in its trim; others decided, retired and trimmed; then it goes on."""
    place.run("--batches", "3")
    zombie = place.start("--batches", "6", armed=f"{name}=stop")
    try:
        _wait_until_stopped(zombie)
        place.make_old()
        place.run()
        place.make_old()
        before = place.check()
        os.kill(zombie.pid, signal.SIGCONT)
        out, err = zombie.communicate(timeout=DEADLINE_S)
    finally:
        zombie.kill()
    assert zombie.returncode == FencedError.exit_code, (out, err)  # in the batch after it
    assert place.check() == before
    assert before[0] == BATCHES
    place.run()
    assert place.check()[0] == BATCHES


APPENDER = """
import sys
from tidegate.wal.file.log import FileLog
log = FileLog(sys.argv[1], "n", lock_timeout_s=60)
for number in range(1, int(sys.argv[2])):
    (address,) = log.stage(f"s-{number}", [b"%d" % number])
    log.append_decision(b"%d %s" % (number, address.encode()))
"""
TRIMMER = """
import sys
from tidegate.wal.file.log import FileLog
log = FileLog(sys.argv[1], "n", lock_timeout_s=60)
last = -1
while last < int(sys.argv[2]) - 1:
    entries = list(log.decisions())
    kept = entries[len(entries) // 2:]
    log.trim_decisions(kept[0].position)
    log.trim_blobs([entry.content.split()[1].decode() for entry in kept], 1)
    last = int(entries[-1].content.split()[0])
print(last)
"""


def test_one_trims_in_a_loop_while_another_appends_and_a_third_folds(tmp_path):
    from tidegate.wal.file.log import FileLog

    log, count = FileLog(tmp_path, "n"), 300
    log.create()
    (address,) = log.stage("s-0", [b"0"])
    log.append_decision(b"0 " + address.encode())
    arguments = [str(tmp_path), str(count)]
    processes = [
        subprocess.Popen([sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True)
        for script in (APPENDER, TRIMMER)
    ]
    end = time.monotonic() + DEADLINE_S
    position, seen, cut = 0, -1, 0
    try:
        while seen < count - 1:
            assert time.monotonic() < end, [process.poll() for process in processes]
            try:
                found = list(log.decisions(position))
            except WalGapError:  # cut over our heads: start again with the first record that is kept
                position, cut = 0, cut + 1
                continue
            numbers = [int(entry.content.split()[0]) for entry in found]
            if position and found:
                assert numbers[0] == seen + 1
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            if found:
                position, seen = found[-1].next_position, numbers[-1]
        for process in processes:
            _, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            process.kill()
    left = list(log.decisions())
    assert len(left) < count
    addresses = [entry.content.split()[1].decode() for entry in left]
    assert {blob.content for blob in log.read(addresses)} == {e.content.split()[0] for e in left}


def test_a_process_killed_in_the_middle_of_cutting_leaves_a_whole_log(tmp_path):
    """At whatever instruction it dies: old file or new file, and the next one goes on."""
    from tidegate.wal.file.log import FileLog

    log = FileLog(tmp_path, "n")
    log.create()
    positions = [log.append_decision(b"%d" % number * 1_000).position for number in range(200)]
    script = """
import sys
from tidegate.wal.file.log import FileLog
log = FileLog(sys.argv[1], "n", lock_timeout_s=60)
print("ready", flush=True)
for position in map(int, sys.argv[2:]):
    log.trim_decisions(position)
    print(position, flush=True)
"""
    first = 0
    for kill_after in (1, 7, 20):
        command = [sys.executable, "-c", script, str(tmp_path), *map(str, positions[first + 1 : -1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(1 + kill_after):
                line = process.stdout.readline()
            process.kill()
        found = [entry.position for entry in FileLog(tmp_path, "n").decisions()]
        assert found == positions[positions.index(found[0]) :]
        assert found[0] >= int(line)
        first = positions.index(found[0])
    appended = log.append_decision(b"more")
    assert [entry.content for entry in log.decisions(appended.position)] == [b"more"]
    assert not Path(tmp_path, "n", "decisions.new").exists() or log.trim_decisions(positions[-1]) is None
