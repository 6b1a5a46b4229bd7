"""The tables of options in docs/configuration.md have every option with its default."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from tidegate.keys.groups import KEY_GROUPS_DEFAULT
from tidegate.options import Options
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.wal.file.log import FileLog

WHOLE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
PAGE = WHOLE.partition("## URLs")[0]
UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2}
MEANT_BY_NONE = {
    "metrics_port": "none",
    "key_groups": f"the power of two above 10 x the tasks, at least {KEY_GROUPS_DEFAULT}",
    "parallelism": "Spark's default",
    "keep_versions": "100; Redis 2",
    "ttl": "rows do not expire",
    "table_key_groups": "as many as the namespace",
    "local_dir": "the system's temporary folder",
    "state_spill": "`StateSpill()`",
    "max_layers": "keep_versions + 1,000; Redis + 14",
}


def test_every_option_stands_there_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(Options)}
    assert rows.keys() == fields.keys()
    for name, default in fields.items():
        if default is None:
            assert rows[name] == MEANT_BY_NONE[name]
            continue
        if isinstance(default, str | bool):
            assert rows[name] == str(default)
            continue
        number, _, unit = rows[name].partition(" ")
        assert float(number.replace(",", "")) * UNITS[unit] == default, name


def test_the_bands_of_the_spill_monitor_stand_there_with_their_defaults() -> None:
    table = WHOLE.partition("| field of `StateSpill` |")[2].partition("\n\n")[0]
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
