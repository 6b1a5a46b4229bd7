"""The table of lifecycles has a row of every command, its page shows it, and every command keeps to it."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.cli import ended, run
from support.places import silence_writer
from support.rekeyed import MORE, NEW, OFFSETS, RekeyedPlace
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.base.names import OWN_TOKENS, check_token, escape
from tidegate.cli.core.app import COMMANDS, command
from tidegate.committers.opening import lifecycle
from tidegate.committers.opening.lifecycle import QUERY, Lifecycle
from tidegate.errors import ConfigError
from tidegate.testing.example import LINEAGE

ROOT = Path(__file__).parents[4]
WORDS = {
    "import": ("import", "{at}/export", "--yes", "--token=again"),
    "restore": ("restore", "--to=2", "--yes"),
    "schema rename": ("schema", "rename", "airports", "delay", "wait"),
    "quarantine drop": ("quarantine", "drop", "{at}/rows.parquet", "--yes"),
    "store add": ("store", "add", "copy=sqlite://{at}/copy", "--store=main=sqlite://{at}/store"),
    "store remove": ("store", "remove", "gone"),
    "rebuild-checkpoint": ("rebuild-checkpoint", "{at}/checkpoint"),
    "adopt": ("adopt", f"--lineage={LINEAGE[:-1]}0", "--yes"),
    "drop": ("drop", "--yes"),
    "backup": ("backup", "{at}/backups"),
    "relog": ("relog", "--to=saved", "--yes"),
    "alias set": ("alias", "set", "live"),
    "rekey": ("rekey", "--to=flights_33", "--key-groups=33"),
}
"""The commands that refuse anything, as they are called here."""
KINDS = [
    pytest.param(
        kind, marks=[] if any(kind in row for row in lifecycle.COMMANDS.values()) else pytest.mark.slow
    )
    for kind in Lifecycle
    if kind not in (Lifecycle.DROPPED, Lifecycle.STALE)
]
"""Those of a namespace by itself, and with the one that it was moved to."""
ELSEWHERE = {QUERY, "rekey --to", "relog --to"}
"""Rows that are no calls of a command: see the tests of their own."""
NEED_A_VERSION = {"backup", "relog", "alias set"}
"""The commands that refuse any namespace without a visible version."""


def test_every_command_has_a_row():
    """Red if a command is added without an answer to the marks of the others."""
    calls = set()
    for name in COMMANDS:
        group = getattr(command(name), "commands", None)
        calls |= {name} if group is None else {f"{name} {part}" for part in group}
    assert calls | {*ELSEWHERE, "drop --only-stores"} == {*lifecycle.COMMANDS}
    assert {*WORDS} | ELSEWHERE == {name for name, row in lifecycle.COMMANDS.items() if row}


def test_the_page_has_the_table():
    subprocess.run([sys.executable, ROOT / "tools" / "lifecycle_table.py", "--check"], check=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a place of a lifecycle once, and copy it from then on."""
    made = {}

    def copied(kind, into):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind.name.lower())
            make(kind, made[kind])
        shutil.copytree(made[kind], into, dirs_exist_ok=True)
        return NEW if kind in (Lifecycle.BEGUN, Lifecycle.UNFINISHED, Lifecycle.WHOLE) else "flights"

    return copied


class Reopened(RekeyedPlace):
    """Log and store of a place that was made before, without a writer."""

    def __init__(self, at):
        self.wal, self.store = f"file://{at}/wal", f"sqlite://{at}/store"


def make(kind, at):
    place = Reopened(at)
    RekeyedPlace(place.wal, place.store).old.close()
    where = ("--namespace=flights", f"--store={place.store}", f"--wal={place.wal}")
    ended(0, "export", at / "export", *where[:2])
    pq.write_table(pa.table({"id": ["absent"]}), at / "rows.parquet")
    silence_writer(at / "store", "flights")
    if kind in (Lifecycle.RESTORED, Lifecycle.REWOUND):
        ended(0, "restore", "--to=1", "--yes", *where, *["--reprocess"] * (kind is Lifecycle.REWOUND))
    elif kind is Lifecycle.BEGUN:
        shutil.rmtree(at / "wal" / "flights" / "changelog")
        failpoints.arm("open.before_append=raise@1")
        assert run("relog", f"--to={NEW}", "--yes", *where).exit_code != 0
        failpoints.arm(None)
    elif kind is Lifecycle.UNFINISHED:
        place.follow()
    elif kind is Lifecycle.MOVING:
        failpoints.arm("rekey.after_move=raise@1")
        with pytest.raises(FailpointError):
            place.finish()
        failpoints.arm(None)
    elif kind is not Lifecycle.ORDINARY:
        place.finish()
    if kind is Lifecycle.GONE:
        silence_writer(at / "store", escape(NEW))
        ended(0, "drop", "--yes", f"--namespace={NEW}", *where[1:])
    if kind in (Lifecycle.CONTINUED, Lifecycle.WHOLE):
        with contextlib.closing(place.writer(NEW)) as query:
            query.write(MORE, source_offsets=OFFSETS)
    for namespace in ("flights", NEW):
        if (at / "store" / escape(namespace)).exists():
            silence_writer(at / "store", escape(namespace))


def is_refused(kind, text, answer):
    """Whether a message has what the namespace is, and the next step."""
    return kind.value.partition("{")[0] in text and answer.text.partition("{")[0] in text


@pytest.mark.parametrize("kind", KINDS)
def test_each_command_keeps_to_its_row(kind, places, tmp_path):
    wrong = []
    for name, words in WORDS.items():
        at = tmp_path / name.replace(" ", "-")
        namespace = places(kind, at)
        if name == "relog":
            shutil.rmtree(at / "wal" / escape(namespace) / "changelog")
        given = [f"--store=sqlite://{at}/store"] * (name != "store add")
        given += [f"--wal=file://{at}/wal"] * (name != "alias set")
        done = run(*(word.replace("{at}", str(at)) for word in words), f"--namespace={namespace}", *given)
        if kind is Lifecycle.BEGUN and name in NEED_A_VERSION:
            assert done.exit_code == ConfigError.exit_code, done.output
            continue
        answer = lifecycle.COMMANDS[name].get(kind)
        as_listed = (
            done.exit_code == 0 or "has no store gone" in done.stderr
            if answer is None
            else done.exit_code == ConfigError.exit_code and is_refused(kind, done.stderr, answer)
        )
        if not as_listed or "Traceback" in done.stderr:
            wrong.append((name, done.exit_code, done.output))
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_keeps_to_its_row(kind, places, tmp_path):
    namespace = places(kind, tmp_path)
    place = Reopened(tmp_path)
    answer = lifecycle.COMMANDS[QUERY].get(kind)
    if answer is None:
        place.writer(namespace).close()
    else:
        with pytest.raises(ConfigError) as refusal:
            place.writer(namespace)
        assert is_refused(kind, str(refusal.value), answer)


# -- tokens ---------------------------------------------------------------------------------------


def test_the_tokens_of_commands_are_refused_as_anybodys():
    for start in OWN_TOKENS:
        with pytest.raises(ConfigError, match="begins like a token of tidegate's own"):
            check_token(f"{start}x")
        check_token(f"x{start}")
