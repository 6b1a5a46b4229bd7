"""Commands that read, at the edges: times of versions, aliases, files that are none."""

from __future__ import annotations

import datetime
import decimal
import json

import pytest
from typer.testing import CliRunner

from tidegate.base import text as text_of
from tidegate.cli import app
from tidegate.errors import ConfigError
from tidegate.testing.example import Example, write_flights
from tidegate.values.key_text import parse_key
from tidegate.wal.record import Column, TableSchema


@pytest.fixture(autouse=True)
def flights(tmp_path, monkeypatch):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", alias="live")
    monkeypatch.setenv("TIDEGATE_STORE", f"sqlite://{tmp_path}/store")
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "flights")


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="tidegate")
    assert done.exit_code == code, done.output or repr(done.exception)
    return done.stderr if code else done.stdout


def version_at(time):
    return json.loads(run("get", "airports", "EWR", "--at", time, "--json"))["version"]


def test_a_time_that_history_or_status_prints_names_that_version():
    """Without its last digits it was a moment before the version, and named the one before it."""
    rows = [row.split("\t") for row in run("history").splitlines()[1:]]
    assert [version_at(decided) for _, _, decided, *_ in rows] == [1, 2, 3]
    (told,) = (line for line in run("status").splitlines() if line.startswith("its age"))
    assert version_at(told.partition("decided at ")[2]) == 3


def test_stored_times_are_printed_with_all_their_digits():
    time = datetime.datetime(2026, 11, 21, 10, 0, 0, 1)  # noqa: DTZ001 - of a timestamp_ntz
    assert text_of.cell(time) == "2026-11-21 10:00:00.000001"
    assert text_of.cell(time.replace(tzinfo=datetime.timezone.utc)) == "2026-11-21 10:00:00.000001Z"


def test_an_export_by_an_alias_is_of_the_namespace_that_it_names(tmp_path):
    """It said that the namespace has no visible version yet."""
    told = json.loads(run("export", tmp_path / "exported", "--namespace", "live", "--json"))
    assert (told["namespace"], told["version"]) == ("flights", 3)
    assert json.loads((tmp_path / "exported" / "manifest.json").read_bytes())["namespace"] == "flights"


@pytest.mark.parametrize("words", [["scan", "aircraft", "--parquet"], ["quarantine", "export", "aircraft"]])
@pytest.mark.parametrize("folder", [".", "/", "{}"])
def test_a_folder_is_no_file_to_write(tmp_path, words, folder):
    assert "is a folder: give the path of a file" in run(*words, folder.format(tmp_path), code=2)


@pytest.mark.parametrize("words", [["scan", "aircraft", "--parquet"], ["quarantine", "export", "aircraft"]])
def test_a_file_of_another_kind_is_not_replaced(tmp_path, words):
    """Such as a store's own: `--parquet STORE/flights/meta.sqlite`."""
    file = tmp_path / "meta.sqlite"
    file.write_bytes(b"SQLite format 3")
    assert "is there and is no Parquet file; nothing was written" in run(*words, file, code=2)
    assert file.read_bytes() == b"SQLite format 3"
    run(*words, tmp_path / "rows")
    run(*words, tmp_path / "rows")  # of its own kind


@pytest.mark.parametrize("name", ["a:b/rows.parquet", "s3:/x.parquet"])
def test_a_file_has_any_name_that_a_folder_can_hold(tmp_path, monkeypatch, name):
    """pyarrow took names with a colon for URLs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir()
    assert "0 refused rows" in run("quarantine", "export", "aircraft", name)
    run("quarantine", "drop", name, "--yes", "--force", "--wal", f"file://{tmp_path}/wal")


def test_a_name_that_is_no_text_is_read(tmp_path):
    run("export", tmp_path / "exported")
    run("quarantine", "export", "aircraft", tmp_path / "refused")
    folder, file = ((tmp_path / name).rename(tmp_path / f"{name}\udcff") for name in ("exported", "refused"))
    log = ["--wal", f"file://{tmp_path}/wal"]
    assert "version 1 of namespace copy is visible" in run("import", folder, "--namespace", "copy", *log)
    assert "nothing was written" in run("quarantine", "drop", file, "--yes", "--force", *log)


@pytest.mark.parametrize("words", [["history"], ["scan", "airports"], ["quarantine", "list"]])
def test_a_limit_may_be_any_number(words):
    assert run(*words, "--limit", 10**30) == run(*words)


def test_a_url_with_a_null_in_it_is_refused():
    assert "write sqlite:///absolute" in run("history", "--store", "sqlite:///%00", code=2)


@pytest.mark.parametrize(
    "kind,text",
    [
        *(("int", text) for text in ("1_0", " 10", "\u0661", "0x1", "")),
        *(("decimal(9,2)", text) for text in ("1_0", "nan", "Infinity", " 1")),
        *(("date", text) for text in ("20261121", "2026-W47-6", "2026-11-21 ")),
        *(
            ("timestamp", text)
            for text in ("2026-11-21T10:00:00", "2026-11-21T10:00:00+0000", "2026-11-21", "0")
        ),
        *(("timestamp_ntz", text) for text in ("2026-11-21T10:00:00Z", "20261121T1000", "2026-11-21T25:00")),
    ],
)
def test_a_key_is_not_taken_for_another_one(kind, text):
    """Python's own readers take 1_0 for 10."""
    with pytest.raises(ConfigError, match="is no"):
        parse_key("t", [text], [Column("k", kind)])


def test_a_message_does_not_steer_the_terminal(tmp_path):
    """Rows and headings were cleaned, and the name of a key column came out of an error as it was."""
    name = "k\x1b]0;pwn\x07\x1b[2J"
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "hostile")
    example.schemas["e"] = TableSchema((Column(name, "int"),), (Column("v", "int"),))
    example.write({"e": {1: {"v": 1}}})
    example.close()
    told = run("get", "e", "abc", "--namespace", "hostile", code=2)
    assert r"key column k\x1b]0;pwn\x07\x1b[2J" in told
    assert told.isprintable() or told.rstrip("\n").isprintable()


def test_line_breaks_of_messages_stay():
    assert text_of.message_of("one\ntwo\x1b[2J\r") == "one\ntwo\\x1b[2J\\r"


@pytest.mark.parametrize("text", ["1E+400000000", "1E-400000000", "0E-999999999", "1" * 101, "NaN"])
def test_a_decimal_of_very_many_digits_is_printed_with_its_exponent(text):
    """1e400000000 are 11 bytes in a store, and were 400 million characters on a terminal."""
    assert len(text_of.cell(decimal.Decimal(text))) <= 120
    assert decimal.Decimal(text_of.cell(decimal.Decimal(text))) == decimal.Decimal(text) or text == "NaN"
    assert len(text_of.json_of({decimal.Decimal(text): [decimal.Decimal(text)]})) <= 300


@pytest.mark.parametrize("text", ["0.0000001000", "12.50", "9" * 38, "-0.00"])
def test_other_decimals_are_printed_with_all_their_digits(text):
    assert text_of.cell(decimal.Decimal(text)) == text
