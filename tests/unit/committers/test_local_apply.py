"""Applying in processes of this machine: what they do, how they fail, and that none is left over."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import types

import msgspec
import psutil
import pytest

from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.committers.apply import apply, processes
from tidegate.committers.apply import worker as local_worker
from tidegate.committers.apply.processes import JOBS_DEFAULT_MAX, PIECE, _Worker, jobs_here, shares
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.errors import (
    BY_NAME,
    ConfigError,
    CorruptError,
    IncompleteError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
)
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

NAMESPACE, TABLE, ROWS, KEY_GROUPS = "crowd", "t", 12_000, 8
DEADLINE_S = 60.0
PARENT = """
import signal, sys
import msgspec
from tidegate.committers.apply.apply import ApplyWork
from tidegate.committers.apply.processes import local_apply
from tidegate.options.endpoints import Endpoints

where = msgspec.json.decode(sys.stdin.buffer.readline(), type=Endpoints)
local_apply(where, 2, 3600)(msgspec.json.decode(sys.stdin.buffer.readline(), type=list[ApplyWork]))
"""
"""A program whose processes apply; it can be ended in any way."""


@pytest.fixture
def place(tmp_path):
    """A namespace with one version, decided and not applied: more changes than a driver applies itself."""
    where = Endpoints(NAMESPACE, f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    with driver_of(where, frame_bytes=200, key_groups=KEY_GROUPS) as driver:
        open_namespace(driver, "query")
        rows = {b"%d" % key: b"value-%d" % key for key in range(ROWS)}
        failpoints.arm("decide.after_append=raise")
        try:
            with pytest.raises(failpoints.FailpointError):
                commit(driver, ArrowBarrier(driver.log, {TABLE: rows}, batch("query", 0), KEY_GROUPS))
        finally:
            failpoints.arm(None)
        (fact,) = driver.decisions.catch_up().recent
        works = apply.plan(apply.read_manifest(driver.log, fact), fact, 2)
    return types.SimpleNamespace(where=where, works=works, folder=tmp_path)


@contextlib.contextmanager
def driver_of(where, **options):
    log = open_log(where.wal, where.namespace)
    store = open_store(where.store, where.namespace)
    with contextlib.closing(log), contextlib.closing(store):
        yield Coordinator(where, log, store, Options(**options))


def command(place, *more, armed=""):
    """``tidegate recover``, started; its processes inherit the failpoints."""
    words = [f"--wal={place.where.wal}", f"--store={place.where.store}", f"--namespace={NAMESPACE}"]
    return subprocess.Popen(
        [sys.executable, "-c", "from tidegate.cli import main; main()", "recover", *words, "--json", *more],
        env={**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, code=0):
    """Its output, once it has ended with this exit code."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == code, (process.returncode, out, err)
    return types.SimpleNamespace(out=out, err=err)


def workers_of(pid):
    """The processes that apply for this one. One that was started this instant may not be told apart yet:
    its command line stays empty until the kernel has finished ``exec``, which the parent need not await."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if local_worker.PROGRAM in child.cmdline():
                found.append(child)
    return found


def alive(worker):
    with contextlib.suppress(psutil.NoSuchProcess):
        return worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
    return False


def stopped(worker):
    with contextlib.suppress(psutil.NoSuchProcess):
        return worker.status() == psutil.STATUS_STOPPED
    return False


def three(found):
    return found if len(found) == 3 else None


def two_stopped(pid):
    found = [worker for worker in workers_of(pid) if stopped(worker)]
    return found if len(found) == 2 else None


def all_gone(workers):
    return not any(map(alive, workers))


def check_recovered(place, done):
    assert json.loads(done.out) == {"namespace": NAMESPACE, "recovered": [1], "visible": 1}
    with driver_of(place.where) as driver:
        assert not verify(driver.log, driver.store).findings
        assert driver.store.catalog()[-1].changes == {TABLE: ROWS}


# -- that it works --------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("jobs", ["1", "2", "5"])
def test_recover_applies_a_large_version(place, jobs):
    done = ended(command(place, "--jobs", jobs))
    assert done.err == ""
    check_recovered(place, done)


def test_the_parent_leaves_the_works_to_the_processes(place, monkeypatch):
    monkeypatch.setattr(apply, "do", None)
    run = processes.local_apply(place.where, 2, DEADLINE_S)
    for _ in range(2):  # repeatable
        run(place.works)
    assert not workers_of(os.getpid())
    with driver_of(place.where) as driver:
        for work in place.works:
            driver.store.seal(work.stamp, work.counts)


def test_processes_that_were_started_ahead_do_it_or_end_with_the_command(place):
    run = processes.local_apply(place.where, 3, DEADLINE_S)
    with contextlib.closing(run):
        run.start()
        run.start()
        ahead = wait_until(lambda: three(workers_of(os.getpid())), "three processes are there")
        run(place.works)  # two shares: one process has nothing to do
        assert all_gone(ahead)
        run.start()
        idle = wait_until(lambda: three(workers_of(os.getpid())), "three more are there")
        assert not set(idle) & set(ahead)
    assert all_gone(idle)
    with driver_of(place.where) as driver:
        for work in place.works:
            driver.store.seal(work.stamp, work.counts)


def test_what_is_sent_to_a_process_that_has_ended_is_not_waited_for(place):
    worker = processes._Worker(place.where)
    try:
        worker.kill()
        worker._process.wait(DEADLINE_S)
        worker._unsent = memoryview(b"more\n")
        assert worker.send() is False
    finally:
        worker.kill()
        worker.reap()


def test_a_share_may_be_larger_than_a_pipe(place):
    works = 3 * tuple(place.works)
    assert len(msgspec.json.encode(works)) > 2 * PIECE
    worker = processes._Worker(place.where)
    try:
        worker.give(works)
        processes._attend([worker], DEADLINE_S)
    finally:
        worker.kill()
        worker.reap()
    assert worker.done


def test_a_small_version_stays_in_the_process(tmp_path):
    where = Endpoints(NAMESPACE, f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    with driver_of(where, key_groups=KEY_GROUPS) as driver:
        driver.apply_on_executors = processes.local_apply(where, 2, DEADLINE_S)
        open_namespace(driver, "query")
        before = workers_of(os.getpid())
        commit(driver, ArrowBarrier(driver.log, {TABLE: {b"k": b"v"}}, batch("query", 0), KEY_GROUPS))
        assert workers_of(os.getpid()) == before == []


# -- that a process is killed -----------------------------------------------------------------------


def test_what_a_killed_process_left_is_applied_again(place):
    parent = command(place, "--jobs=2", armed="apply.after_chunk=stop")
    try:
        first = wait_until(lambda: two_stopped(parent.pid), "two processes stop in the middle")
        for worker in first:  # who looks at the list of processes learns nothing
            assert str(place.folder) not in " ".join(worker.cmdline())
        first[0].send_signal(signal.SIGKILL)
        wait_until(lambda: all_gone(first), "the other process ends, too")
        second = wait_until(lambda: two_stopped(parent.pid), "two more apply again")
        for worker in second:
            worker.send_signal(signal.SIGCONT)
    finally:
        done = ended(parent)
    assert "was ended by signal 9 (Killed); if memory is short, use fewer jobs" in done.err
    check_recovered(place, done)
    assert all_gone([*first, *second])


def test_a_process_that_is_killed_is_a_retryable_error(place, monkeypatch):
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, "apply.after_chunk=kill@3")
    with pytest.raises(
        StoreUnavailableError, match=r"version 1 to key groups [04] to [37] was ended by signal 9"
    ):
        processes.local_apply(place.where, 2, DEADLINE_S)(place.works)
    assert not workers_of(os.getpid())


def test_a_process_that_makes_no_progress_is_ended(place, monkeypatch):
    monkeypatch.setenv(failpoints.ENVIRONMENT_VARIABLE, "apply.after_chunk=stop")
    with pytest.raises(StoreUnavailableError, match=r"made no progress for 2\.0 s"):
        processes.local_apply(place.where, 2, 2.0)(place.works)
    assert not workers_of(os.getpid())


def test_a_process_that_cannot_be_started_is_a_retryable_error(place, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(StoreUnavailableError, match="cannot be started"):
        processes.local_apply(place.where, 2, DEADLINE_S)(place.works)


def test_a_process_that_closed_its_output_and_stays_is_a_retryable_error(place, monkeypatch):
    """How it ended cannot be told, since it did not: nothing is proven."""
    monkeypatch.setattr(processes, "PROGRAM", "import os, signal; os.close(1); signal.pause()")
    monkeypatch.setattr(processes, "ENDS_S", 0.2)
    with pytest.raises(StoreUnavailableError, match=r"made no progress for 0\.2 s"):
        processes.local_apply(place.where, 2, DEADLINE_S)(place.works)
    assert not workers_of(os.getpid())


def test_a_process_that_outlives_its_kill_is_told_of_and_loses_its_pipes(place, monkeypatch, caplog):
    """One in the middle of an I/O that the system does not end: nobody waits for it for ever."""
    applying = processes.local_apply(place.where, 2, DEADLINE_S)
    applying.start()
    started = list(applying._workers)
    monkeypatch.setattr(processes._Worker, "kill", lambda _: None)
    monkeypatch.setattr(processes, "ENDS_S", 0.0)
    applying.close()
    assert caplog.text.count("was killed and is still there after") == len(started)
    for worker in started:
        assert worker.stdout.closed
        worker._process.wait(DEADLINE_S)  # without its input it ends by itself


# -- that a process fails -----------------------------------------------------------------------------


def test_a_missing_file_of_the_store_is_that_error(place):
    (shard,) = (place.folder / "store").rglob("shard-07.sqlite")
    shard.unlink()
    done = ended(command(place, "--jobs=2"), CorruptError.exit_code)
    assert done.out == ""
    assert re.fullmatch(r"tidegate: CorruptError: store sqlite://.*shard-07.sqlite is missing.*\n", done.err)


def test_a_missing_piece_of_the_log_is_that_error(place):
    segments = (place.folder / "wal").rglob("*.seg")
    for segment in [path for path in segments if not path.stem.endswith("-manifest")]:
        segment.unlink()
    done = ended(command(place, "--jobs=2"), WalGapError.exit_code)
    assert done.err.startswith("tidegate: WalGapError: ")


def test_any_other_error_of_a_process_is_a_defect_with_its_traceback(place):
    done = ended(command(place, "--jobs=2", armed="apply.before_chunk=raise"), TidegateError.exit_code)
    assert "Traceback" in done.err
    assert "failed: FailpointError: failpoint apply.before_chunk" in done.err


def test_a_process_that_ends_without_a_word_is_a_defect(place, monkeypatch):
    monkeypatch.setattr(processes, "PROGRAM", "raise SystemExit(7)")
    with pytest.raises(TidegateError, match="ended with exit code 7") as caught:
        processes.local_apply(place.where, 2, DEADLINE_S)(place.works)
    assert type(caught.value) is TidegateError  # not one that is tried again


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", BY_NAME)
def test_each_error_travels_as_itself(place, name):
    told = local_worker.Failed(local_worker._known_name(BY_NAME[name]("why")), "why")
    worker = types.SimpleNamespace(_what="the process", done=False)
    with pytest.raises(TidegateError, match="why") as caught:
        processes._Worker._hear(worker, told)
    assert type(caught.value) is BY_NAME[name]


def test_an_error_that_is_not_listed_travels_as_what_it_is_too():
    class ThinnerError(IncompleteError):
        pass

    assert local_worker._known_name(ThinnerError("why")) == "IncompleteError"


def test_a_warning_of_a_process_is_one_of_the_parent(caplog):
    sent = []
    record = logging.LogRecord("tidegate.kafka", logging.WARNING, "", 1, "%s replicas", (1,), None)
    local_worker._Forwarder(sent.append).emit(record)
    processes._Worker._hear(types.SimpleNamespace(), *sent)
    assert caplog.record_tuples == [("tidegate.kafka", logging.WARNING, "1 replicas")]


# -- that the parent ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_no_process_outlives_its_parent(place, how):
    """They wait for locks that are held here, for an hour if they were let."""
    where = dataclasses.replace(place.where, store_options={"timeout_s": 3_600})
    shards = sorted((place.folder / "store").rglob("shard-*.sqlite"))
    with contextlib.ExitStack() as locked:
        for shard in shards:
            held = locked.enter_context(contextlib.closing(sqlite3.connect(shard, isolation_level=None)))
            held.execute("BEGIN IMMEDIATE")
        parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)
        workers = []
        try:
            parent.stdin.write(b"%s\n%s\n" % (msgspec.json.encode(where), msgspec.json.encode(place.works)))
            parent.stdin.close()

            def waiting():
                assert parent.poll() is None
                workers[:] = workers_of(parent.pid)
                return len(workers) == 2 and all(map(holds_a_shard, workers))

            wait_until(waiting, "two processes wait for a lock")
            parent.send_signal(how)
            wait_until(lambda: all_gone(workers), f"the processes end after {how.name}")
            parent.wait(DEADLINE_S)
        finally:
            parent.kill()
            parent.wait(DEADLINE_S)
            for worker in filter(alive, workers):
                worker.kill()


def holds_a_shard(worker):
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("shard-" in file.path for file in worker.open_files())
    return False


# -- the edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wal,store,jobs",
    [
        ("memory://a", "sqlite:///s", 2),
        ("file:///w", "memory://a", 2),
        ("file:///w", "sqlite:///s", 1),
    ],
)
def test_what_stays_in_one_process(wal, store, jobs):
    assert processes.local_apply(Endpoints(NAMESPACE, wal, store), jobs, 1.0) is None


@pytest.mark.parametrize("value", [b"bytes", ("a", "tuple"), print, object()])
def test_an_option_that_cannot_travel_is_refused_without_its_value(value):
    where = Endpoints(NAMESPACE, "kafka://b:1", "sqlite:///s", {"sasl.password": value})
    with pytest.raises(
        ConfigError, match=rf"sasl.password is a {type(value).__name__}, which cannot"
    ) as refused:
        processes.local_apply(where, 2, 1.0)
    assert "tuple'" not in str(refused.value)


@pytest.mark.parametrize(
    "module,not_needed",
    [
        ("tidegate.cli", {"rich", "confluent_kafka", "redis", "pyspark"}),
        ("tidegate.committers.apply.worker", {"typer", "rich", "confluent_kafka", "redis", "pyspark"}),
    ],
)
def test_who_starts_quickly_imports_no_more_than_it_needs(module, not_needed):
    told = subprocess.run(
        [sys.executable, "-c", f"import {module}, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not not_needed & set(told.stdout.split())


@pytest.mark.parametrize("works,jobs", [(0, 2), (1, 4), (2, 2), (7, 3), (200, 8), (3, 64)])
def test_shares_are_neighbours_and_about_equal(works, jobs):
    found = shares(range(works), jobs)
    assert [work for share in found for work in share] == list(range(works))
    sizes = [len(share) for share in found]
    assert len(sizes) == min(works, jobs)
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


def test_the_number_of_processes_follows_the_machine():
    assert 1 <= jobs_here() <= JOBS_DEFAULT_MAX


def test_a_pipe_that_is_full_or_empty_is_come_back_to():
    """A selector may wake for nothing: neither the process nor its share is given up."""
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, bytes(65_536))
        there = types.SimpleNamespace(fileno=lambda: write)
        sends = types.SimpleNamespace(stdin=there, _unsent=memoryview(b"share"))
        assert _Worker.send(sends)
        assert bytes(sends._unsent) == b"share"
    finally:
        os.close(read)
        os.close(write)
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        assert _Worker.receive(types.SimpleNamespace(stdout=types.SimpleNamespace(fileno=lambda: read)))
    finally:
        os.close(read)
        os.close(write)
