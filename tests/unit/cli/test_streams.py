"""The command line with standard streams that are closed, or that do not have every letter."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from tidegate.testing.example import Example, write_flights

SCRIPT = [sys.executable, "-c", "from tidegate.cli import main; main()"]
AGAIN_S = 5.0
DEADLINE_S = 120


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    root = tmp_path_factory.mktemp("streams")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store", alias="live")
    example = Example(f"file://{root}/wal", f"sqlite://{root}/store", "words")
    example.write({"aircraft": {"é\U0001f600": {"carrier": "ключ", "flights": 1}}})
    example.close()
    return {"TIDEGATE_STORE": f"sqlite://{root}/store", "TIDEGATE_WAL": f"file://{root}/wal"}


def shell(flights, ending, *words, namespace="flights", **environment):
    """The command with the shell's ``ending`` behind it, such as ``2>&-``."""
    line = " ".join(f"'{word}'" for word in [*SCRIPT, *words]) + " " + ending
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, **flights, "TIDEGATE_NAMESPACE": namespace, **environment},
    )


@pytest.mark.parametrize("words", [("get", "aircraft", "N14228"), ("history",), ("status",), ("doctor",)])
def test_without_a_standard_output_nothing_is_printed_and_nothing_fails(flights, words):
    done = shell(flights, ">&-", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_without_a_standard_error_its_messages_do_not_go_to_standard_output(flights):
    done = shell(flights, "2>&-", "get", "aircraft", "N0", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["value"] is None


@pytest.mark.parametrize("words", [("alias", "drop", "live"), ("drop",)])
def test_without_a_standard_input_nobody_is_asked(flights, words):
    done = shell(flights, "<&-", *words)
    assert done.returncode == 2, done.stderr
    assert b"add --yes" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_no_file_takes_the_number_of_a_stream_that_is_closed():
    """What a library writes to standard error would go into it."""
    program = (
        "import os, sys\n"
        "from tidegate.cli.core.streams import made_ready\n"
        "made_ready()\n"
        "file = open(sys.argv[1], 'wb')\n"
        "sys.exit(file.fileno() < 3 or None in (sys.stdin, sys.stdout, sys.stderr))"
    )
    line = f'{sys.executable} -c "$0" /dev/null <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line, program], check=False, timeout=DEADLINE_S).returncode == 0


def test_what_the_encoding_of_the_output_does_not_have_is_escaped(flights):
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    done = shell(flights, "", "scan", "aircraft", namespace="words", **ascii_only)
    assert (done.returncode, done.stderr) == (0, b"")
    key, carrier = rb"\u00e9\ud83d\ude00", rb"\u043a\u043b\u044e\u0447"
    assert done.stdout.splitlines()[1] == key + b"\t" + carrier + b"\t1"
    done = shell(flights, "", "scan", "aircraft", "--json", namespace="words", **ascii_only)
    assert json.loads(done.stdout) == {"key": "é\U0001f600", "value": {"carrier": "ключ", "flights": 1}}


@pytest.mark.parametrize("ended_by", ["Ctrl-C", "Ctrl-D"])
def test_ctrl_c_where_it_asks_has_the_exit_code_of_ctrl_c(flights, ended_by):
    screen, terminal = pty.openpty()
    environment = {**os.environ, **flights}
    with contextlib.ExitStack() as ending:
        running = ending.enter_context(
            subprocess.Popen(
                [*SCRIPT, "alias", "drop", "live"],
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                env=environment,
            )
        )
        ending.callback(running.kill)  # else it is waited for without a deadline when something is wrong
        os.close(terminal)
        shown = b""
        while b"[y/N]" not in shown and (piece := _read(screen)):
            shown += piece
        if ended_by == "Ctrl-C":
            _interrupt(running, screen)
        else:
            os.write(screen, b"\x04")
        while piece := _read(screen):
            shown += piece
        running.wait(DEADLINE_S)
    os.close(screen)
    assert running.returncode == 130
    assert b"nothing was changed" in shown


def _interrupt(running, screen):
    """Send SIGINT until there is an answer: Python does not notice one between its prompt and its read."""
    for _ in range(int(DEADLINE_S / AGAIN_S)):
        running.send_signal(signal.SIGINT)
        if select.select([screen], [], [], AGAIN_S)[0]:
            return


def _read(screen):
    readable, _, _ = select.select([screen], [], [], DEADLINE_S)
    assert readable, f"nothing was said within {DEADLINE_S} s"
    try:
        return os.read(screen, 65536)
    except OSError:  # the other end is closed
        return b""
