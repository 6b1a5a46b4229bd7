"""tidegate status --watch: looks again and again, shows what does not answer, ends when told to."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.inspect import status
from tidegate.errors import StoreUnavailableError
from tidegate.status import look
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.record import Summary, decode_record

WAIT_S = 60
COMMAND = [sys.executable, "-m", "tidegate", "status", "--watch", "--every", "0.1"]


@pytest.fixture
def example(tmp_path, monkeypatch):
    for name, at in (("STORE", f"sqlite://{tmp_path}/store"), ("WAL", f"file://{tmp_path}/wal")):
        monkeypatch.setenv(f"TIDEGATE_{name}", at)
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "flights")
    made = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    made.write(BATCHES[0])
    yield made
    made.close()


@pytest.fixture
def between(monkeypatch):
    """What happens between two looks, one after the other; after the last one, Ctrl-C."""
    happens = []

    def sleep(_):
        if not happens:
            raise KeyboardInterrupt
        happens.pop(0)()

    monkeypatch.setattr(status.time, "sleep", sleep)
    return happens


def watch(*words, code=0):
    told = CliRunner().invoke(app, ["status", "--watch", *words])
    assert told.exit_code == code, told.output
    return told.stdout


def test_a_log_that_is_cut_between_two_looks_is_no_gap(example, between):
    """It was told as a WalGapError, and by --for ended with its exit code."""
    example.driver.options = dataclasses.replace(example.driver.options, summary_every=1)

    def write_and_cut():
        example.write(BATCHES[1])
        example.write(BATCHES[2])
        log = example.driver.log
        records = [(one.position, decode_record(one.content, "")) for one in log.decisions()]
        log.trim_decisions([at for at, record in records if isinstance(record, Summary)][-1])

    between += [write_and_cut]
    looks = [json.loads(line) for line in watch("--json").splitlines()]
    assert [one.get("error") for one in looks] == [None, None]
    assert [(one["visible"], one["decided"]) for one in looks] == [(1, 1), (3, 3)]


def test_each_look_sees_what_is_new(example, between):
    between += [lambda: example.write(BATCHES[1]), lambda: example.write(BATCHES[2])]
    looks = [json.loads(line) for line in watch("--json").splitlines()]
    assert [(one["visible"], one["decided"], one["lag"]) for one in looks] == [
        (1, 1, 0),
        (2, 2, 0),
        (3, 3, 0),
    ]
    assert all(one["age_s"] >= 0 for one in looks)


def test_a_block_for_each_look_tells_the_time_and_the_age(example, between):
    between += [lambda: example.write(BATCHES[1])]
    first, second, rest = watch().split("\n\n")
    assert "visible version\t1\n" in first
    assert "visible version\t2\n" in second
    for block in (first, second):
        assert block.startswith("at\t")
        assert "its age\t" in block
        assert "log keeps\t" in block
    assert rest == ""


def test_what_does_not_answer_is_told_and_asked_again(example, between, monkeypatch):
    reads, away = look._in_store, StoreUnavailableError("the store is away")

    def broken(_):
        raise away

    between += [
        lambda: monkeypatch.setattr(look, "_in_store", broken),
        lambda: monkeypatch.setattr(look, "_in_store", reads),
    ]
    first, second, third, _ = watch().split("\n\n")
    assert "visible version\t1" in first
    assert "error\tStoreUnavailableError: the store is away" in second
    assert "visible version\t1" in third


def test_the_end_has_the_exit_code_of_the_last_look(example, tmp_path):
    watch("--for", "1s", "--every", "60")
    shutil.rmtree(tmp_path / "wal")
    shown = watch("--for", "1s", "--every", "60", code=10)
    assert "problem\tthe log is gone: it is empty, and the store is not" in shown


def test_a_wrong_name_is_refused_at_once(example):
    assert watch("--namespace", "other", code=2) == ""


def test_its_options_are_for_it_alone(example):
    told = CliRunner().invoke(app, ["status", "--every", "5"])
    assert (told.exit_code, told.stdout) == (2, "")
    assert "--watch: add it" in told.stderr


def test_ctrl_c_ends_it_with_exit_code_0(example):
    with subprocess.Popen(
        [*COMMAND, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        for _ in range(2):
            assert json.loads(running.stdout.readline())["visible"] == 1
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=WAIT_S)
    assert (running.returncode, told) == (0, "")


def test_a_terminal_gets_one_view_that_stays_in_its_place(example):
    screen, terminal = pty.openpty()
    with subprocess.Popen(COMMAND, stdin=terminal, stdout=terminal, stderr=terminal) as running:
        os.close(terminal)
        shown = b""
        while b"\x1b[1A" not in shown and (piece := _read(screen)):  # the cursor goes up: one over the other
            shown += piece
        running.send_signal(signal.SIGINT)
        while piece := _read(screen):
            shown += piece
    os.close(screen)
    assert running.returncode == 0, shown
    assert b"visible version" in shown
    assert b"Traceback" not in shown


def _read(screen):
    try:
        return os.read(screen, 65536)
    except OSError:  # the other end is closed
        return b""
