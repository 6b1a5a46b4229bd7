"""The tables of options in docs/configuration.md have every option with its default."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

from tidegate.options import Options
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.wal.file.log import FileLog

ROOT = Path(__file__).parents[2]
WHOLE = (ROOT / "docs/configuration.md").read_text()
UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2}


def test_what_is_made_from_the_options_is_as_they_are() -> None:
    """Otherwise: python tools/option_tables.py."""
    subprocess.run([sys.executable, ROOT / "tools/option_tables.py", "--check"], check=True)


def test_no_page_and_no_message_names_a_field_that_is_no_option() -> None:
    """Its value is a constant: nobody can be advised to set it."""
    inner = [field.name for field in dataclasses.fields(Options) if "text" not in field.metadata]
    pages = {page.name: page.read_text() for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]}
    advice = re.compile(rf"(?:raise|lower|set) `?({'|'.join(inner)})\b")
    assert not [name for name, text in pages.items() if advice.search(text)]


def test_the_bands_of_the_spill_monitor_stand_there_with_their_defaults() -> None:
    table = WHOLE.partition("| limit | value |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(StateSpill)}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        number, _, unit = rows[name].partition(" ")
        assert float(number) * UNITS[unit] == default, name


def test_the_options_of_files_stand_there_with_their_defaults() -> None:
    for kind, made, option in (("file", FileLog, "lock_timeout_s"), ("sqlite", SqliteStore, "timeout_s")):
        row = re.search(rf"^\| `{option}` \| `{kind}://` \| (\d+) \|", WHOLE, re.MULTILINE)
        assert row is not None, option
        assert float(row[1]) == inspect.signature(made).parameters[option].default
