"""Readers do without the libraries of the extras: Arrow, numpy, and those of the command line."""

import json
import subprocess
import sys

import pytest

import tidegate
from support.bare_reader import BARRED, read_without_extras
from tidegate.base import extras
from tidegate.errors import ConfigError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.columns import PlainColumn, batch_from, column_of
from tidegate.sinks.rules.layout import Stored, pack, payloads
from tidegate.sinks.rules.reads import live_rows
from tidegate.testing.example import write_flights


def test_a_reader_of_files_reads_in_every_way_without_arrow(tmp_path):
    url = f"sqlite://{tmp_path}/store"
    write_flights(wal=f"file://{tmp_path}/wal", store=url)
    read = read_without_extras(url, "flights")
    with tidegate.connect(url, "flights") as gate:
        expected = {name: sorted(gate.table(name).scan(), key=repr) for name in gate.tables()}
    expected = json.loads(json.dumps(expected, default=repr))
    assert {way: tables == expected for way, tables in read["ways"].items()} == dict.fromkeys(
        ("get", "get_many", "scan", "snapshot", "aio"), True
    )
    for told in read["refused"].values():
        assert "needs pyarrow: pip install 'tidegate[arrow]'" in told
    assert read["refused"].keys() == {"to_arrow", "diff"}


def test_import_and_connect_import_no_library_of_an_extra_even_where_it_is_installed(tmp_path):
    write_flights(wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    code = (
        "import sys, tidegate\n"
        f"tidegate.connect('sqlite://{tmp_path}/store', 'flights').version()\n"
        f"print(sorted({set(BARRED) | {'asyncio'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_line_without_its_libraries_names_their_extra():
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({BARRED!r}))\n"
        "from tidegate.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == ConfigError.exit_code
    assert done.stderr == "tidegate: the command line needs typer: pip install 'tidegate[cli]'\n"


def test_a_library_of_no_extra_is_no_matter_of_configuration():
    with pytest.raises(ModuleNotFoundError):
        raise extras.missing("a store", ModuleNotFoundError("No module named 'lost'", name="lost"))


def test_columns_without_arrow_give_the_rows_that_arrow_gives(monkeypatch):
    forms = [Stored(b"a"), Stored(None), Stored(b"b", 5), Stored(b"c", 15), Stored(b"d", None, b"s")] * 7
    stored = [*map(pack, forms), None]
    keys = [b"%d" % at for at in range(len(stored))]
    with_arrow = payloads(column_of(stored), 10).to_pylist()
    rows = live_rows(batch_from(column_of(keys), column_of(stored)), ReadAt("t", 1, at_us=10), "store")
    monkeypatch.setattr("tidegate.sinks.rules.columns.has_arrow", lambda: False)
    plain = column_of(stored)
    assert isinstance(plain, PlainColumn)
    assert payloads(plain, 10).to_pylist() == with_arrow
    plain_rows = live_rows(batch_from(column_of(keys), plain), ReadAt("t", 1, at_us=10), "store")
    assert plain_rows.num_rows == rows.num_rows
    for name in ("key", "value"):
        assert plain_rows.column(name).to_pylist() == rows[name].to_pylist()
