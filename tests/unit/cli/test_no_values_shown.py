"""A stored value is in no message, finding or log line, whatever is damaged and whichever command runs.

A marker is in every value, in many forms. A row gets bytes that its table's columns do not admit, and the
files of the log lose a byte beside it. Then every command that reads runs.
"""

import logging
import shutil
import sqlite3
import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.testing.example import Example
from tidegate.wal.record import Column, TableSchema

MARKER = "Zq7Secret"
KINDS = (
    *("string", "int", "bigint", "double", "float", "boolean", "decimal(10,2)", "date", "timestamp"),
    *("binary", "array<int>", "map<string,int>", "map<date,int>", "struct<a:double>"),
)
FORMS = (
    *(f'"{MARKER}"', f'["{MARKER}"]', f'{{"a":"{MARKER}"}}', f'{{"{MARKER}":"{MARKER}"}}'),
    *(f"{MARKER}", f'"{MARKER}', f'{{"{MARKER}":1', f"1e{MARKER}"),
)
"""Damaged contents in place of a value: another type, or no JSON."""
READS = (
    *("status", "history", "doctor", "verify", "repair", "vacuum", "recover", "diff 1 2", "changes 2 t"),
    *("get t k", "scan t", "export {out}", "import {out} --yes", "backup {backup}", "store list"),
    *("quarantine list", "restore --to 1 --yes"),
)
OF_THE_LOG = ("verify", "changes 2 t", "diff 1 2", "repair", "restore --to 1 --yes")


def damaged(kind, form):
    """A stored value: a plain one's flags byte, and a row whose column has the form."""
    return b"+" + f'{{"v":{form}}}'.encode()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """For each type a namespace with two versions of one row, whose text is the marker."""
    folder = tmp_path_factory.mktemp("made")
    for n, kind in enumerate(KINDS):
        example = Example(
            f"file://{folder}/{n}/wal", f"sqlite://{folder}/{n}/store", options=Options(key_groups=1)
        )
        schema = TableSchema((Column("k", "string"),), (Column("v", kind), Column("s", "string")))
        example.schemas["t"] = schema
        for version in (1, 2):
            example.write({"t": {"k": {"v": None, "s": f"{MARKER}{version}"}}})
        example.close()
    return folder


def run(folder, line, caplog):
    caplog.clear()
    at = ["--store", f"sqlite://{folder}/store", "--namespace", "flights"]
    words = line.format(out=folder / "out", backup=folder / "backup").split()
    wal = ["--wal", f"file://{folder}/wal"]
    result = CliRunner().invoke(app, [*words, *at, *wal], prog_name="tidegate")
    if "No such option: --wal" in result.stderr:
        result = CliRunner().invoke(app, [*words, *at], prog_name="tidegate")
    assert "Usage:" not in result.stderr, result.stderr
    logged = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    return result.stderr + logged, result.stdout


def rows_files(folder):
    for path in sorted(Path(folder).rglob("*.sqlite")):
        with sqlite3.connect(path) as db:
            names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
                if {"kg", "key", "version", "value"} <= set(columns):
                    yield path, name


def tamper(folder, content, version):
    hit = 0
    for path, name in rows_files(folder):
        with sqlite3.connect(path) as db:
            hit += db.execute(f"UPDATE {name} SET value = ? WHERE version = ?", (content, version)).rowcount
    return hit


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_has_a_part_of_a_stored_value(kind, made, tmp_path, caplog):
    source = made / str(KINDS.index(kind))
    shown = []
    for number, form in enumerate(FORMS):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        assert tamper(folder, damaged(kind, form), 2) == 1
        for line in READS if (kind, number) == ("bigint", 0) else ("verify", "get t k")[: 2 - number % 2]:
            messages, printed = run(folder, line, caplog)
            if MARKER in messages or (line.startswith(("verify", "status", "doctor")) and MARKER in printed):
                shown.append((form, line, (messages + printed)[:400]))
        with tidegate.connect(f"sqlite://{folder}/store", "flights") as gate:
            for read in (lambda t: t.get("k"), lambda t: list(t.scan()), lambda t: t.get_many(["k"])):
                try:
                    read(gate.table("t"))
                except TidegateError as error:
                    told = "".join(traceback.format_exception(error))
                    if MARKER in told.replace(repr(form), ""):
                        shown.append((form, "gate", told[-300:]))
    assert shown == []


def test_no_message_has_a_part_of_a_damaged_log(made, tmp_path, caplog):
    """Each file of the log that has the marker loses the byte before it."""
    hit = [p for p in (made / "0" / "wal").rglob("*") if p.is_file() and MARKER.encode() in p.read_bytes()]
    assert hit
    shown = []
    for number, path in enumerate(hit):
        folder = tmp_path / str(number)
        shutil.copytree(made / "0", folder)
        file = folder / "wal" / path.relative_to(made / "0" / "wal")
        content = bytearray(file.read_bytes())
        content[content.index(MARKER.encode()) - 1] ^= 0xFF
        file.write_bytes(content)
        for line in OF_THE_LOG:
            messages, printed = run(folder, line, caplog)
            if MARKER in messages or (line == "verify" and MARKER in printed):
                shown.append((path.name, line, (messages + printed)[:400]))
    assert shown == []
